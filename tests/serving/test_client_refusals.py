"""Policy clients of which a server refuses a part: it costs the episode that it belongs to and no other."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import DefaultCallbacks
from menv.errors import EpisodeError, RefusedError
from menv.serving import Limits
from menv.serving.policy_server import TransportName
from tests.inside import metrics
from tests.serving.courses import (
    PAIR,
    TEAMS,
    both,
    every_mode,
    every_transport,
    keeping,
    observation,
    play,
    playing,
)
from tests.serving.served import Served
from tests.serving.talks import eventually

REFUSED = r"episode '{}': .*(nan|2\.0)"
# A network acts on it, and only who looks at bounds refuses it.
OUTSIDE = np.full(3, 2.0, np.float32)
SMALL = Limits(max_body=20_000)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_what_is_wrong_in_one_episode_costs_no_other_one_a_step(bad: int) -> None:
    with playing("local") as (course, client):
        names = [client.start_episode() for _ in range(3)]
        good = [number for number in range(3) if number != bad]
        for step in range(12):
            for number in good if step > 3 else range(3):
                wrong = number == bad and step == 3
                client.get_action(names[number], OUTSIDE if wrong else observation(step))
                client.log_returns(names[number], 100.0 * number + step)
        for _ in range(2):
            with pytest.raises(EpisodeError, match=REFUSED.format(names[bad])):
                client.get_action(names[bad], observation(0))
        with pytest.raises(EpisodeError, match=REFUSED.format(names[bad])):
            client.end_episode(names[bad], observation(0))
        for number in good:
            client.end_episode(names[number], observation(12))
        play(client, [900.0] * 3)
        client.update_policy_weights()
        paid = [100.0 * number + step for number in good for step in range(12)] + [900.0] * 3
        # Of the other one there is what came before.
        early = [100.0 * bad + step for step in range(3)]
        assert eventually(
            lambda: len([got for got in course.column("rewards") if got not in early]) >= len(paid)
        )
        assert sorted(got for got in course.column("rewards").tolist() if got not in early) == sorted(paid)


def test_clients_that_wait_for_weights_get_them_all_the_same() -> None:
    with playing("local", {"rollout_fragment_length": 4}, trains=True, force_on_policy=True) as (
        course,
        client,
    ):
        play(client, [1.0] * 4)
        names = [client.start_episode() for _ in range(2)]

        def steps(*wrong: str) -> None:
            for step in range(30):
                for name in (names[0], *wrong):
                    client.get_action(name, OUTSIDE if name in wrong else observation(step))
                    client.log_returns(name, 1.0)

        with pytest.raises(EpisodeError, match=REFUSED.format(names[1])):
            steps(names[1])
        steps()
        client.end_episode(names[0], observation(0))
        assert eventually(lambda: course.algo.iteration > 5)


def test_steps_for_which_the_server_has_no_room_wait_until_it_has() -> None:
    sampling, go = threading.Event(), threading.Event()

    class Stalls(DefaultCallbacks):
        def on_sample_end(self, **kwargs: Any) -> None:
            sampling.set()
            go.wait(30)

    little = Limits(max_waiting=20_000)
    with playing("local", {"callbacks": Stalls}, limits=little, force_on_policy=False) as (course, client):
        play(client, [5.0] * 20)
        assert sampling.wait(30)
        later = threading.Timer(0.3, go.set)
        later.start()
        play(client, [float(step) for step in range(1500)], see=lambda step: observation(step % 5))
        client.update_policy_weights()
        later.join()
        assert course.has_rewards([5.0] * 20 + [float(step) for step in range(1500)])


@every_transport
def test_a_server_that_takes_no_episodes_says_why_whatever_the_transport(transport: TransportName) -> None:
    config = {"multiagent": {"observation_fn": lambda agent_obs, **_: agent_obs}}
    with playing("local", config, transport=transport) as (_, client):
        for name in ("first", "second"):
            play(client, [1.0, 2.0], name)
            with pytest.raises(EpisodeError, match=f"episode '{name}': .*observation_fn"):
                client.update_policy_weights()


@every_transport
def test_a_question_that_is_too_large_is_refused_whatever_the_transport(transport: TransportName) -> None:
    with playing("remote", transport=transport, limits=SMALL) as (course, client):
        name = client.start_episode()
        client.get_action(name, observation(0))
        client.log_returns(name, 1.0, {"note": "x" * 30_000})
        with pytest.raises(RefusedError, match="20000") as caught:
            client.get_action(name, observation(1))
        assert caught.value.code == "too_large"
        client.get_action(name, observation(1))
        client.log_returns(name, 2.0)
        client.end_episode(name, observation(2))
        assert course.has_rewards([1.0, 2.0])


@pytest.mark.parametrize("told", [
    {"reward": {"a": 1.0, "typo": 5.0}},
    {"reward": {"a": 1.0}, "info": {"typo": {"x": 1}}},
    {"reward": {"a": 1.0}, "multiagent_done_dict": {"typo": True}},
])  # fmt: skip
def test_what_an_agent_is_paid_that_there_is_not_is_refused_once(told: dict[str, Any]) -> None:
    with playing("remote", PAIR) as (course, client):
        name = client.start_episode()
        client.get_action(name, both(0))
        client.log_returns(name, **told)
        with pytest.raises(RefusedError, match="'typo'"):
            client.get_action(name, both(1))
        assert client.get_action(name, both(1)).keys() == {"a", "b"}
        client.log_returns(name, {"a": 2.0, "b": 4.0})
        client.end_episode(name, both(2))
        assert course.has_rewards([0.0, 0.0, 2.0, 4.0])


WIDE = gym.spaces.Box(-1.0, 1.0, (75_000,), np.float32)
LISTS = gym.spaces.Dict({"seen": gym.spaces.Box(-1.0, 1.0, (500,), np.float32)})
HUNDREDS = gym.spaces.Tuple([gym.spaces.Box(-1.0, 1.0, (4,), np.float32)] * 25)


@pytest.mark.slow_unless("many choices", "numbers in lists")
@pytest.mark.parametrize(("config", "seen", "steps"), [
    ({"action_space": gym.spaces.Discrete(1000)}, np.zeros(3, np.float32), 1500),
    ({"model": {"use_lstm": True, "lstm_cell_size": 256}}, np.zeros(3, np.float32), 2500),
    ({"action_space": HUNDREDS}, np.zeros(3, np.float32), 2500),
    ({"observation_space": LISTS}, {"seen": [0.123] * 500}, 1000),
    ({"observation_space": WIDE, "model": {"fcnet_hiddens": [2]}}, np.zeros(75_000, np.float32), 5),
], ids=["many choices", "a memory", "a wide action", "numbers in lists", "a wide observation"])  # fmt: skip
def test_no_episode_is_too_large_for_a_server_however_much_a_step_holds(
    config: dict[str, Any], seen: Any, steps: int
) -> None:
    with playing("local", config, env_steps_per_sample=10_000) as (course, client):
        play(client, [float(step) for step in range(steps)], see=lambda step: seen)
        client.update_policy_weights()
        assert course.has_rewards([float(step) for step in range(steps)])


BLACK = np.zeros(20_000, np.uint8)


def test_a_step_that_fits_in_no_message_names_the_limit_with_which_it_does() -> None:
    everybody = {f"a{number}": BLACK for number in range(40)}
    config = {
        "observation_space": dict.fromkeys(everybody, gym.spaces.Box(0, 255, BLACK.shape, np.uint8)),
        "action_space": dict.fromkeys(everybody, gym.spaces.Discrete(2)),
        "model": {"fcnet_hiddens": [2]},
    }

    def plays(course: Served, mode: Any) -> None:
        with course.client(mode) as client:
            name = client.start_episode()
            client.get_action(name, everybody)
            client.log_returns(name, dict.fromkeys(everybody, 1.0))
            client.end_episode(name, everybody)
            client.update_policy_weights()

    with keeping(config, env_steps_per_sample=10_000, limits=Limits(max_body=1_500_000)) as course:
        with pytest.raises(EpisodeError, match=r"Limits\.max_body"):
            plays(course, "local")
        plays(course, "remote")
        assert course.has_rewards([1.0] * 40)


@every_mode
def test_what_is_paid_to_those_who_are_done_or_never_came_counts_in_the_return(mode: str) -> None:
    seen = np.zeros(10, np.float32)
    with playing(mode, TEAMS) as (course, client):
        name = client.start_episode()
        client.get_action(name, {"red_0": seen, "blue_0": seen})
        client.log_returns(name, {"red_0": 1.0, "blue_0": 2.0}, multiagent_done_dict={"red_0": True})
        client.get_action(name, {"blue_0": seen})
        client.log_returns(name, {"red_0": 4.0, "red_1": 8.0, "blue_0": 16.0})
        client.get_action(name, {"blue_0": seen})
        # Who comes back begins anew, with what was paid since the last call.
        client.log_returns(name, {"red_0": 32.0})
        client.get_action(name, {"blue_0": seen, "red_0": seen})
        client.end_episode(name, {"blue_0": seen})
        client.close()
        assert course.has_rewards([2.0, 16.0, 0.0, 0.0], "blue")
        assert course.has_rewards([1.0, 32.0], "red")
        assert course.summary()["hist_stats"]["episode_reward"] == [63.0]


@every_mode
@pytest.mark.parametrize("several", [True, False], ids=["several", "one"])
def test_what_is_paid_in_an_episode_in_which_nobody_acts_is_unclaimed(mode: str, several: bool) -> None:
    seen = np.zeros(10, np.float32)
    paid: list[Any] = [{"red_0": 5.0, "blue_0": -1.0}, {}] if several else [4.0, 0.0]
    with playing(mode, TEAMS if several else None) as (course, client):
        for reward in paid:
            name = client.start_episode()
            client.log_returns(name, reward)
            client.end_episode(name, {"red_0": seen} if several else observation(0))
        client.close()
        found = metrics(course.algo)
        assert eventually(lambda: found.unclaimed_rewards == 4.0)
        assert not found.summary()["episodes_total"]
