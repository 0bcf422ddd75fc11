"""Local clients of which a server refuses a part: it costs the episode that it belongs to and no other."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from menv import DefaultCallbacks
from menv.errors import ContractError, EpisodeError, RefusedError
from menv.serving.client.policy_client import PolicyClient
from menv.serving.limits import Limits
from menv.serving.policy_server import TransportName
from tests.serving.courses import Course, observation, play
from tests.serving.talks import eventually

REFUSED = (
    r"episode '{}': a part of it was refused \(.*(got nan, expected a finite|2.0 at index 0|got 2.0).*\); "
    r"start a new one"
)
NOTHING = np.full(3, np.nan, np.float32)
# A network acts on it, and only who looks at bounds refuses it.
OUTSIDE = np.full(3, 2.0, np.float32)
SMALL = Limits(max_body=20_000, inline_body=10_000)
every_transport = pytest.mark.parametrize("transport", ["tcp", "http", "websocket"])


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_what_is_wrong_in_one_episode_costs_no_other_one_a_step(bad: int) -> None:
    with Course() as course, client_of(course) as client:
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


def test_an_observation_of_nan_is_refused_at_once_and_the_call_comes_again() -> None:
    with Course() as course, client_of(course) as client:
        name = client.start_episode()
        client.get_action(name, observation(0))
        client.log_returns(name, 4.0)
        for _ in range(2):
            with pytest.raises(
                ContractError, match=f"get_action: episode '{name}': .*number 0 of the 3 .* is NaN"
            ):
                client.get_action(name, NOTHING)
        client.get_action(name, observation(1))
        client.log_returns(name, 5.0)
        client.end_episode(name, observation(2))
        client.update_policy_weights()
        assert course.has_rewards([4.0, 5.0])
        assert np.isfinite(course.column("obs")).all()


def test_of_an_episode_that_has_been_ended_the_call_tells_that_sends_it() -> None:
    with Course() as course, client_of(course) as client:
        name, other = client.start_episode(), client.start_episode()
        client.get_action(other, observation(0))
        client.get_action(name, observation(0))
        client.end_episode(name, NOTHING)
        with pytest.raises(EpisodeError, match=REFUSED.format(name)):
            client.update_policy_weights()
        client.log_returns(other, 5.0)
        client.end_episode(other, observation(1))
        client.update_policy_weights()
        assert course.has_rewards([5.0])


def test_clients_that_wait_for_weights_get_them_all_the_same() -> None:
    with (
        Course({"rollout_fragment_length": 4}, trains=True, force_on_policy=True) as course,
        client_of(course) as client,
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


@pytest.mark.parametrize("begun", [0, 12])
def test_nobody_waits_for_the_end_of_an_episode_that_was_given_up(begun: int) -> None:
    whole = {"batch_mode": "complete_episodes", "rollout_fragment_length": 20}
    with Course(whole) as course, client_of(course) as client:
        bad = client.start_episode()
        for step in range(begun):
            client.get_action(bad, observation(step))
            client.log_returns(bad, 7.0)
        client.get_action(bad, OUTSIDE)
        with pytest.raises(EpisodeError, match=REFUSED.format(bad)):
            client.end_episode(bad, observation(1))
        play(client, [1.0] * 15)
        play(client, [2.0] * 20)
        client.update_policy_weights()
        assert eventually(lambda: set(course.column("rewards").tolist()) >= {1.0, 2.0})
        assert course.column("rewards").tolist().count(7.0) <= begun
        assert course.algo._external_clients.report()["external"]["open_episodes"] == 0


def test_what_is_refused_for_lack_of_room_is_kept_for_the_next_time() -> None:
    sampling, go = threading.Event(), threading.Event()

    class Stalls(DefaultCallbacks):
        def on_sample_end(self, **kwargs: Any) -> None:
            sampling.set()
            go.wait(30)

    little = Limits(max_waiting=20_000)
    with (
        Course({"callbacks": Stalls}, limits=little, force_on_policy=False) as course,
        client_of(course) as client,
    ):
        play(client, [5.0] * 20)
        assert sampling.wait(30)
        name, refused = client.start_episode(), []
        for step in range(1500):
            try:
                client.get_action(name, observation(step % 5))
            except RefusedError as error:
                refused.append(error.code)
                go.set()
                time.sleep(0.05)
                client.get_action(name, observation(step % 5))
            client.log_returns(name, float(step))
        assert set(refused) == {"too_many"}
        client.end_episode(name, observation(0))
        client.update_policy_weights()
        assert course.has_rewards([5.0] * 20 + [float(step) for step in range(1500)])


@pytest.mark.parametrize("mode", ["local", "remote"])
@pytest.mark.parametrize("info", [5, "x", [("a", 1)]])
def test_an_info_that_is_no_dict_is_refused_and_nothing_is_paid_twice(mode: Any, info: Any) -> None:
    with Course() as course, PolicyClient(course.address, mode, update_interval=None, timeout=20) as client:
        name = client.start_episode()
        for step in range(12):
            client.get_action(name, observation(step))
            with pytest.raises(ContractError, match=r"log_returns: info is \w+, expected a dict"):
                client.log_returns(name, 7.0, info)
            client.log_returns(name, 7.0, {"fine": 1})
        client.end_episode(name, observation(12))
        play(client, [900.0] * 3)
        client.update_policy_weights()
        assert eventually(lambda: (course.column("rewards") == 7.0).sum() == 12)


@every_transport
def test_an_episode_that_is_too_large_costs_no_other_one_whatever_the_transport(
    transport: TransportName,
) -> None:
    with (
        Course(transport=transport, env_steps_per_sample=10_000, limits=SMALL) as course,
        client_of(course) as client,
    ):
        play(client, [7.0] * 900, "large")
        play(client, [1.0, 2.0, 3.0])
        with pytest.raises(EpisodeError, match=r"episode 'large': a part of it was refused \(.*20000"):
            client.update_policy_weights()
        play(client, [4.0, 5.0])
        client.update_policy_weights()
        assert course.has_rewards([1.0, 2.0, 3.0, 4.0, 5.0])


@every_transport
def test_a_server_that_takes_no_episodes_says_why_whatever_the_transport(transport: TransportName) -> None:
    config = {"multiagent": {"observation_fn": lambda agent_obs, **_: agent_obs}}
    with Course(config, transport=transport) as course, client_of(course) as client:
        for name in ("first", "second"):
            play(client, [1.0, 2.0], name)
            with pytest.raises(EpisodeError, match=f"episode '{name}': .*observation_fn"):
                client.update_policy_weights()


@every_transport
def test_a_question_that_is_too_large_is_refused_whatever_the_transport(transport: TransportName) -> None:
    with (
        Course(transport=transport, limits=SMALL) as course,
        PolicyClient(course.address, "remote", timeout=20) as client,
    ):
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


def client_of(course: Course) -> Any:
    return PolicyClient(course.address, "local", update_interval=None, timeout=20)
