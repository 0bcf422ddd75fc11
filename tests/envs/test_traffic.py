"""The traffic environment: agents of two kinds that come and go, rewards, endings, baselines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from menv.base_env import ALL
from menv.envs.traffic import AGE_LIMIT, CROSS, MAIN, SIGHT, Car, Light, MultiAgentTrafficEnv
from menv.errors import CallOrderError, ConfigError, ContractError
from tests.envs.traffic_rules import ACCELERATE, BRAKE, KEEP, careful_driver, fixed_cycle

Steps = list[tuple[Any, ...]]


def run(env: MultiAgentTrafficEnv, seed: int, act: Callable[[str, Any], int]) -> Steps:
    """Play one episode and return what reset and every step gave."""
    steps: Steps = [env.reset(seed=seed)]
    while env.agents:
        obs = steps[-1][0]
        steps.append(env.step({agent: act(agent, obs[agent]) for agent in env.agents}))
    return steps


def by_the_rules(agent: str, obs: Any) -> int:
    return careful_driver(obs) if agent.startswith("car") else fixed_cycle(obs)


def at_random(seed: int) -> Callable[[str, Any], int]:
    rng = np.random.default_rng(seed)
    return lambda agent, obs: int(rng.integers(3 if agent.startswith("car") else 2))


def alone(position: int, **settings: Any) -> MultiAgentTrafficEnv:
    """Return a running env with car_1 standing at `position`."""
    env = MultiAgentTrafficEnv(num_cars=1, max_cars=1, **settings)
    env.reset(seed=0)
    env.lanes[0].cars[0].position = position
    return env


def test_the_documented_call_gives_two_cars_and_a_light() -> None:
    env = MultiAgentTrafficEnv(num_cars=2, num_traffic_lights=1)
    obs, infos = env.reset()
    assert list(obs) == env.agents == ["car_1", "car_2", "traffic_light_1"]
    assert env.possible_agents == ["car_1", "car_2", "car_3", "car_4", "traffic_light_1"]
    assert infos == {}


def test_cars_and_lights_have_different_spaces() -> None:
    env = MultiAgentTrafficEnv()
    assert env.get_observation_space("car_1").shape == (8,)
    assert env.get_observation_space("traffic_light_1").shape == (9,)
    assert env.action_space_contains({"car_4": 2, "traffic_light_1": 1})
    assert not env.action_space_contains({"traffic_light_1": 2})


@pytest.mark.parametrize("lights", [0, 1, 3])
def test_obs_rewards_and_flags_fit_the_contract_in_random_play(lights: int) -> None:
    env = MultiAgentTrafficEnv(num_cars=4, num_traffic_lights=lights, max_cars=9, entry_rate=0.5)
    for seed in range(10):
        steps = run(env, seed, at_random(seed))
        waiting, gone = set(steps[0][0]), set[str]()
        for obs, rewards, terminateds, truncateds, infos in steps[1:]:
            assert env.observation_space_contains(obs)
            over = terminateds[ALL] or truncateds[ALL]
            ended = set(terminateds) | set(truncateds) - {ALL}
            assert set(rewards) == waiting
            assert set(infos) <= set(obs)
            assert not gone & set(obs)
            gone |= ended
            waiting = set() if over else set(obs) - ended
        assert over
        assert len(steps) - 1 <= 100


def test_the_same_seed_gives_the_same_episode() -> None:
    env = MultiAgentTrafficEnv(num_cars=3, num_traffic_lights=2, entry_rate=0.4)
    first, again, other = (run(env, seed, at_random(5)) for seed in (1, 1, 2))
    assert len(first) == len(again)
    for one, two in zip(first, again, strict=True):
        assert all(np.array_equal(one[0][agent], two[0][agent]) for agent in one[0])
        assert one[1:] == two[1:]
    assert any(not np.array_equal(first[0][0][agent], other[0][0][agent]) for agent in first[0][0])


def test_a_car_that_arrives_is_terminated_and_gone_while_others_drive_on() -> None:
    env = MultiAgentTrafficEnv(num_cars=2, max_cars=2)
    env.reset(seed=0)
    env.lanes[0].cars[0].position = 15
    actions = {"car_1": ACCELERATE, "car_2": BRAKE, "traffic_light_1": 0}
    obs, rewards, terminateds, truncateds, _ = env.step(actions)
    assert terminateds == {"car_1": True, ALL: False}
    assert truncateds == {ALL: False}
    assert rewards["car_1"] == 11.0
    assert obs["car_1"][1] == 0.0
    assert env.agents == ["car_2", "traffic_light_1"]
    obs, rewards, *_ = env.step({"car_2": BRAKE, "traffic_light_1": 0})
    assert "car_1" not in obs
    assert "car_1" not in rewards


def test_more_cars_enter_in_order_up_to_the_most() -> None:
    env = MultiAgentTrafficEnv(num_cars=1, max_cars=4, entry_rate=1.0)
    steps = run(env, 0, by_the_rules)
    first_seen: dict[str, int] = {}
    for number, (obs, *_) in enumerate(steps):
        for agent in obs:
            first_seen.setdefault(agent, number)
    assert list(first_seen) == ["car_1", "traffic_light_1", "car_2", "car_3", "car_4"]
    assert first_seen["car_2"] == 1
    assert steps[-1][2][ALL]


@pytest.mark.parametrize("horizon", [100, 1])
def test_the_episode_terminates_when_the_last_car_has_arrived(horizon: int) -> None:
    env = alone(15, horizon=horizon)
    _, _, terminateds, truncateds, _ = env.step({"car_1": ACCELERATE, "traffic_light_1": 0})
    assert terminateds == {"car_1": True, "traffic_light_1": True, ALL: True}
    assert truncateds == {ALL: False}
    assert env.agents == []


def test_the_episode_is_truncated_after_the_horizon() -> None:
    steps = run(MultiAgentTrafficEnv(horizon=7, max_cars=2), 0, lambda agent, obs: 0)
    assert len(steps) - 1 == 7
    obs, _, terminateds, truncateds, _ = steps[-1]
    assert truncateds == {"car_1": True, "car_2": True, "traffic_light_1": True, ALL: True}
    assert terminateds == {ALL: False}
    assert set(obs) == {"car_1", "car_2", "traffic_light_1"}


def test_cars_earn_progress_and_lose_by_standing() -> None:
    env = alone(0)
    rewards = [env.step({"car_1": pedal, "traffic_light_1": 0})[1]["car_1"] for pedal in (2, 2, 2, 0, 0, 0)]
    assert rewards == [1.0, 2.0, 3.0, 2.0, 1.0, -1.0]


def test_running_a_red_light_costs_ten_and_is_in_the_info() -> None:
    env = MultiAgentTrafficEnv(num_cars=2, max_cars=2)
    env.reset(seed=0)
    env.lanes[0].cars[0].position = 0
    env.lanes[1].cars[0].position = 7
    _, rewards, _, _, infos = env.step({"car_1": BRAKE, "car_2": ACCELERATE, "traffic_light_1": 0})
    assert rewards == {"car_1": -1.0, "car_2": -9.0, "traffic_light_1": 0.0}
    assert infos == {"car_2": {"ran_red": True}}


def test_lights_earn_flow_minus_waiting() -> None:
    env = MultiAgentTrafficEnv(num_cars=2, max_cars=2)
    env.reset(seed=0)
    env.lanes[0].cars[0].position = 7
    env.lanes[1].cars[0].position = 7
    _, rewards, *_ = env.step({"car_1": ACCELERATE, "car_2": BRAKE, "traffic_light_1": 0})
    assert rewards["traffic_light_1"] == 0.0
    _, rewards, *_ = env.step({"car_1": ACCELERATE, "car_2": BRAKE, "traffic_light_1": 0})
    assert rewards["traffic_light_1"] == -1.0


def test_a_car_observes_speed_road_light_and_the_car_ahead() -> None:
    env = MultiAgentTrafficEnv(num_cars=3, max_cars=3)
    env.reset(seed=0)
    ahead, behind = env.lanes[0].cars
    ahead.position, ahead.speed, behind.position, behind.speed = 6, 2, 2, 0
    obs, *_ = env.step({"car_1": KEEP, "car_2": KEEP, "car_3": KEEP, "traffic_light_1": 0})
    third = 1 / 3
    assert obs[behind.name] == pytest.approx([0, 14 / 16, 6 / SIGHT, 1, 0, 0, 6 / SIGHT, 2 * third], abs=1e-6)
    assert obs[ahead.name] == pytest.approx([2 * third, 0.5, 1, 0, 0, 0, 1, 0], abs=1e-6)
    assert obs["car_2"][3:6].tolist() == [0, 0, 1]


def test_a_light_observes_its_colour_its_age_and_the_queues() -> None:
    env = MultiAgentTrafficEnv(num_cars=4, max_cars=4)
    env.reset(seed=0)
    for lane in env.lanes:
        for car, cell in zip(lane.cars, (5, 2), strict=True):
            car.position = cell
    actions = {"car_1": 0, "car_2": 0, "car_3": 2, "car_4": 0, "traffic_light_1": 1}
    obs, *_ = env.step(actions)
    seen = obs["traffic_light_1"].tolist()
    assert seen == pytest.approx([0, 1, 0, 0, 1 / AGE_LIMIT, 2 / 8, 2 / 8, 1 / 8, 2 / 8])


@pytest.mark.parametrize("lights", [0, 1, 3])
@pytest.mark.parametrize("green_steps", [1, 4, 8])
def test_careful_drivers_under_a_fixed_cycle_never_offend_and_all_arrive(
    lights: int, green_steps: int
) -> None:
    env = MultiAgentTrafficEnv(
        num_cars=8, num_traffic_lights=lights, max_cars=20, entry_rate=0.5, horizon=1000
    )

    def act(agent: str, obs: Any) -> int:
        return careful_driver(obs) if agent.startswith("car") else fixed_cycle(obs, green_steps)

    for seed in range(3):
        steps = run(env, seed, act)
        assert not any(infos for *_, infos in steps)
        assert steps[-1][2][ALL]


def test_the_fixed_cycle_gives_each_direction_its_time() -> None:
    env = MultiAgentTrafficEnv(num_cars=0, max_cars=1, entry_rate=0.0)
    steps = run(env, 0, lambda agent, obs: fixed_cycle(obs, green_steps=5))
    green = [obs["traffic_light_1"][2] + obs["traffic_light_1"][3] for obs, *_ in steps]
    changes = np.flatnonzero(np.diff(green))
    assert np.diff(changes).tolist() == [9] * (len(changes) - 1)
    assert len(changes) > 5


@pytest.mark.parametrize(("actions", "named"), [
    ({"car_1": 1}, "traffic_light_1"), ({}, "car_1"), ({"car_1": 1, "traffic_light_1": 0, "car_9": 0}, "car_9"),
    ({"car_1": 3, "traffic_light_1": 0}, "car_1"), ({"car_1": 0, "traffic_light_1": -1}, "traffic_light_1"),
])  # fmt: skip
def test_wrong_actions_are_named_and_nothing_moves(actions: dict[str, int], named: str) -> None:
    env = alone(3)
    with pytest.raises(ContractError, match=f"action of '{named}'"):
        env.step(actions)
    assert env.lanes[0].cars[0].position == 3
    assert env.lights[0].age == 0


def test_a_step_outside_an_episode_asks_for_reset() -> None:
    env = MultiAgentTrafficEnv()
    with pytest.raises(CallOrderError, match="reset"):
        env.step({})
    run(env, 0, at_random(0))
    with pytest.raises(CallOrderError, match="reset"):
        env.step({})


@pytest.mark.parametrize("settings", [
    {"num_car": 2}, {"num_cars": -1}, {"max_cars": 2, "num_cars": 3}, {"entry_rate": 2.0}, {"horizon": 0},
    {"num_traffic_lights": -1},
])  # fmt: skip
def test_a_wrong_setting_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        MultiAgentTrafficEnv(settings)


def test_it_renders_a_line_for_each_lane() -> None:
    env = MultiAgentTrafficEnv(num_cars=2, max_cars=2)
    env.reset(seed=0)
    for lane, position in zip(env.lanes, (3, 0), strict=True):
        lane.cars[0].position = position
    assert env.render().splitlines() == ["...>....=.......", ">.......|......."]


def driven(*cars: tuple[int, int, int], lights: int = 1) -> tuple[MultiAgentTrafficEnv, Any]:
    """Return an env and its step in which cars (lane, position, speed) keep their speed."""
    env = MultiAgentTrafficEnv(num_cars=2 * len(cars), num_traffic_lights=lights)
    env.reset(seed=0)
    names = [name for name, _ in zip(env.agents, cars, strict=False)]
    lamps = [name for name in env.agents if name.startswith("traffic_light")]
    for lane in env.lanes:
        lane.cars.clear()
    there = {name: Car(name, env.lanes[lane], *at) for name, (lane, *at) in zip(names, cars, strict=True)}
    for car in there.values():
        car.lane.cars.append(car)
    env._cars = there
    env.agents = [*names, *lamps]
    return env, env.step({**dict.fromkeys(names, KEEP), **dict.fromkeys(lamps, 0)})


def test_a_car_accelerates_to_three_cells_and_brakes_to_a_stop() -> None:
    env = alone(0, num_traffic_lights=0)
    places = []
    for action in (ACCELERATE,) * 4 + (BRAKE,) * 4:
        env.step({"car_1": action})
        places.append(env.lanes[0].cars[0].position)
    assert places == [1, 3, 6, 9, 11, 12, 12, 12]


@pytest.mark.parametrize(
    ("cars", "crashed"),
    [
        # Into the car ahead; behind it at its speed; both on a crossing; into a car that stands on a crossing.
        ([(0, 5, 0), (0, 3, 3)], {"car_2"}),
        ([(0, 5, 2), (0, 4, 2)], set()),
        ([(0, 7, 2), (1, 7, 2)], {"car_1", "car_2"}),
        ([(0, 8, 0), (1, 7, 1)], {"car_1", "car_2"}),
    ],
)
def test_cars_crash_into_the_car_ahead_and_on_crossings(cars: list[Any], crashed: set[str]) -> None:
    infos = driven(*cars)[1][4]
    assert {name for name, info in infos.items() if info.get("crashed")} == crashed


def test_a_light_turns_after_three_steps_of_amber_and_ignores_actions_meanwhile() -> None:
    light = Light()
    states = []
    for wish in (MAIN, CROSS, MAIN, MAIN, MAIN, MAIN):
        light.advance(wish)
        states.append((light.green, light.amber, light.age))
    assert states == [(0, 0, 1), (0, 3, 2), (0, 2, 3), (0, 1, 4), (1, 0, 0), (1, 3, 1)]
