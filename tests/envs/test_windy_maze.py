"""The windy maze: wind, walls, rewards, ends; flat, on two levels and on three."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from menv import PolicySpec, RandomPolicy
from menv.algorithms import PPO
from menv.base_env import ALL
from menv.envs import HierarchicalWindyMaze, ThreeLevelMaze, WindyMaze
from menv.envs.windy_maze import DOWN, LEFT, RIGHT, UP, walked
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from tests.bad_input.broken_envs import checked

HALL = {"maze": ["S...G"]}
ROOM = {"maze": ["G....", "..S..", "....G"]}


def calm(maze: WindyMaze, wind: int = UP) -> None:
    """Let the wind blow into one direction for good."""
    maze.np_random = _Calm(wind)  # type: ignore[assignment]
    maze.wind = wind


class _Calm:
    def __init__(self, wind: int) -> None:
        self.wind = wind

    def random(self) -> float:
        return 1.0

    def integers(self, most: int) -> int:
        return self.wind % most


def test_nobody_walks_against_the_wind_or_into_a_wall() -> None:
    maze = WindyMaze({"maze": ["...", ".S#", "..G"]})
    maze.reset(seed=0)
    calm(maze, UP)
    for move, expected in (
        (DOWN, (1, 1)),
        (RIGHT, (1, 1)),
        (UP, (0, 1)),
        (UP, (0, 1)),
        (LEFT, (0, 0)),
        (LEFT, (0, 0)),
    ):
        obs, *_ = maze.step(move)
        assert obs["position"].tolist() == list(expected)
        assert maze.observation_space.contains(obs)


def test_the_way_to_the_goal_is_paid_and_the_goal_ends_it() -> None:
    maze = WindyMaze(HALL)
    maze.reset(seed=0)
    calm(maze)
    rewards = [maze.step(RIGHT)[1:4] for _ in range(4)]
    assert rewards == [(-0.01, False, False)] * 3 + [(0.99, True, False)]
    with pytest.raises(CallOrderError, match="call reset"):
        maze.step(RIGHT)


def test_moves_that_run_out_are_a_truncation() -> None:
    maze = WindyMaze({**HALL, "max_steps": 2})
    maze.reset(seed=0)
    assert maze.step(LEFT)[2:4] == (False, False)
    assert maze.step(LEFT)[2:4] == (False, True)


def test_the_same_seed_brings_the_same_winds_and_the_same_goal() -> None:
    def winds(seed: int) -> list[Any]:
        maze = WindyMaze(ROOM)
        first, _ = maze.reset(seed=seed)
        return [(first["goal"], first["wind"]), *[maze.step(UP)[0]["wind"] for _ in range(30)]]

    assert winds(3) == winds(3)
    assert len({tuple(map(str, winds(seed))) for seed in range(8)}) == 8
    assert {winds(seed)[0][0] for seed in range(20)} == {0, 1}
    assert {wind for seed in range(8) for wind in winds(seed)[1:]} == {UP, RIGHT, DOWN, LEFT}


@pytest.mark.parametrize("rows", [["SG", "S."], ["S."], ["S.G", ".."], ["G"]])
def test_a_map_that_cannot_be_walked_is_refused(rows: list[str]) -> None:
    with pytest.raises(ConfigError, match="WindyMaze: the maze has") as caught:
        WindyMaze({"maze": rows})
    checked(str(caught.value))


def test_an_action_that_is_no_direction_is_refused() -> None:
    maze = WindyMaze()
    maze.reset(seed=0)
    with pytest.raises(ContractError, match=r"got 4, expected 0 to 3"):
        maze.step(4)


def test_cells_count_along_the_direction() -> None:
    here = (3, 3)
    assert [walked(here, there, RIGHT) for there in ((3, 4), (3, 2), (2, 3), here)] == [1.0, -1.0, -0.5, 0.0]


def play(env: MultiAgentEnv, choose: Callable[[str], int]) -> Iterator[tuple[str, StepDicts]]:
    """Play an episode: who acted, and what came back."""
    obs, _ = env.reset(seed=0)
    while env.agents:
        [agent] = obs
        result = env.step({agent: choose(agent)})
        assert all(env.get_observation_space(one).contains(seen) for one, seen in result[0].items())
        yield agent, result
        obs = {one: seen for one, seen in result[0].items() if not result[2].get(one)}


def test_each_pick_opens_an_agent_that_walks_for_some_moves() -> None:
    env = HierarchicalWindyMaze({"option_moves": 3, "max_steps": 8})
    actors = [agent for agent, _ in play(env, lambda agent: UP)]
    high = "high_level_agent"
    assert actors == [
        high, *["low_level_0"] * 3, high, *["low_level_1"] * 3, high, *["low_level_2"] * 2,
    ]  # fmt: skip
    assert env.possible_agents == list(dict.fromkeys(actors))


def test_with_one_id_every_option_is_a_life_of_the_same_agent() -> None:
    env = HierarchicalWindyMaze({"option_moves": 3, "max_steps": 8, "new_ids": False})
    results = list(play(env, lambda agent: UP))
    assert {agent for agent, _ in results} == {"high_level_agent", "low_level_0"}
    assert sum(bool(result[2].get("low_level_0")) for _, result in results) == 2


def test_a_level_that_ends_hands_back_to_the_one_above_in_the_same_step() -> None:
    env = HierarchicalWindyMaze({"option_moves": 2, "maze": ["S....G"]})
    env.reset(seed=0)
    calm(env.maze)
    obs, rewards, *_ = env.step({"high_level_agent": RIGHT})
    assert (list(obs), rewards) == (["low_level_0"], {})
    obs, rewards, terminateds, _, _ = env.step({"low_level_0": RIGHT})
    assert (list(obs), rewards) == (["low_level_0"], {"high_level_agent": -0.01, "low_level_0": 1.0})
    assert obs["low_level_0"]["direction"] == RIGHT
    assert obs["low_level_0"]["moves_left"] == 1
    obs, _, terminateds, truncateds, _ = env.step({"low_level_0": LEFT})
    assert set(obs) == {"low_level_0", "high_level_agent"}
    assert (terminateds, truncateds) == ({"low_level_0": True, ALL: False}, {ALL: False})
    assert env.agents == ["high_level_agent"]


@pytest.mark.parametrize(("moves", "ends"), [(4, (True, False)), (2, (False, True))])
def test_the_end_of_the_maze_ends_both_levels(moves: int, ends: tuple[bool, bool]) -> None:
    env = HierarchicalWindyMaze({"option_moves": 9, "maze": ["S...G"], "max_steps": moves})
    env.reset(seed=0)
    calm(env.maze)
    env.step({"high_level_agent": RIGHT})
    results = [env.step({"low_level_0": RIGHT}) for _ in range(moves)]
    obs, _, terminateds, truncateds, _ = results[-1]
    assert set(obs) == {"low_level_0", "high_level_agent"}
    assert (terminateds[ALL], truncateds[ALL]) == ends
    assert env.agents == []


@pytest.mark.parametrize("make", [HierarchicalWindyMaze, ThreeLevelMaze])
def test_an_answer_of_somebody_else_is_named(make: Any) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(
        ContractError, match=r"got actions for \['low_level_0'\], expected one for '(high|top)"
    ) as caught:
        env.step({"low_level_0": 0})
    checked(str(caught.value))


def test_one_step_of_the_top_level_is_several_of_the_levels_below() -> None:
    env = ThreeLevelMaze({"picks": 2, "moves": 2, "max_steps": 7})
    actors = [agent for agent, _ in play(env, lambda agent: 0)]
    assert actors == [
        "top_level", "mid_level_0", *["low_level_0"] * 2, "mid_level_0", *["low_level_1"] * 2,
        "top_level", "mid_level_1", *["low_level_2"] * 2, "mid_level_1", "low_level_3",
    ]  # fmt: skip
    assert set(env.possible_agents) == set(actors)
    assert len(env.possible_agents) == len(set(actors))


def test_three_levels_are_paid_for_what_each_of_them_is_after() -> None:
    env = ThreeLevelMaze({"maze": ["G...S...G"], "picks": 1, "moves": 2})
    env.reset(seed=0)
    calm(env.maze)
    env.step({"top_level": 1})
    env.step({"mid_level_0": LEFT})
    _, rewards, terminateds, _, _ = env.step({"low_level_0": RIGHT})
    assert rewards == {"top_level": -0.01, "mid_level_0": 1.0, "low_level_0": -1.0}
    assert terminateds == {ALL: False}
    obs, _, terminateds, _, _ = env.step({"low_level_0": LEFT})
    assert terminateds == {"low_level_0": True, "mid_level_0": True, ALL: False}
    assert set(obs) == {"low_level_0", "mid_level_0", "top_level"}
    assert env.agents == ["top_level"]


@pytest.mark.slow_unless("ThreeLevelMaze")
@pytest.mark.parametrize("make", [
    HierarchicalWindyMaze, ThreeLevelMaze, lambda context: HierarchicalWindyMaze({"new_ids": False}),
])  # fmt: skip
def test_the_returns_of_the_levels_in_the_batch_are_what_the_maze_paid(make: Any) -> None:
    paid: Counter[str] = Counter()

    def level(agent_id: str) -> str:
        return agent_id.rsplit("_", 1)[0] if agent_id[-1].isdigit() else "top"

    def tapped(context: Any) -> Any:
        env = make(context)
        step = env.step

        def paying(action_dict: AgentDict) -> StepDicts:
            result: StepDicts = step(action_dict)
            for agent, reward in result[1].items():
                paid[level(agent)] += reward
            return result

        env.step = paying
        return env

    levels = ["top", "low_level"] + ["mid_level"] * (make is ThreeLevelMaze)
    config = {
        "multiagent": {"policies": dict.fromkeys(levels, RandomPolicy), "policy_mapping_fn": level},
        "batch_mode": "complete_episodes",
        "rollout_fragment_length": 2000,
        "seed": 5,
    }
    with PPO(env=tapped, config=config) as algo:
        batch = algo.sample()
    for name in levels:
        assert batch[name]["rewards"].sum() == pytest.approx(paid[name], abs=1e-3)
        assert batch[name].count > 50
    lengths = batch["low_level"].segments.lengths
    assert lengths.max() <= 4
    assert sum(lengths) == batch["low_level"].count


LEARNED = {"high_level": 0.3, "top_level": 0.8}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("env", "levels"), [
    (HierarchicalWindyMaze, ("high_level", "low_level")),
    (lambda context: HierarchicalWindyMaze({"new_ids": False}), ("high_level", "low_level")),
    (ThreeLevelMaze, ("top_level", "mid_level", "low_level")),
])  # fmt: skip
def test_levels_learn_together(env: Any, levels: tuple[str, ...], seed: int) -> None:
    deciding = PolicySpec(config={"entropy_coeff": 0.05})
    multiagent = {
        "policies": {name: None if name == "low_level" else deciding for name in levels},
        "policy_mapping_fn": lambda agent_id: "_".join(agent_id.split("_")[:2]),
    }
    config = {
        "num_envs_per_worker": 32,
        "sgd_minibatch_size": 512,
        "num_sgd_iter": 6,
        "lr": 2e-3,
        "multiagent": multiagent,
        "seed": seed,
    }
    with PPO(env=env, config=config) as algo:
        for _ in range(80):
            mean = algo.train()["policy_reward_mean"].get(levels[0], -9.0)
            if mean >= LEARNED[levels[0]]:
                break
    assert mean >= LEARNED[levels[0]]
