"""Remote episodes of which a server refuses what was paid, or that another client is ahead with: they go on."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.errors import EpisodeError, RefusedError
from menv.serving.client.policy_client import PolicyClient
from tests.serving.courses import OBSERVATIONS, Course, observation
from tests.serving.talks import eventually

PAIR: dict[str, Any] = {
    "observation_space": dict.fromkeys("ab", OBSERVATIONS),
    "action_space": dict.fromkeys("ab", gym.spaces.Discrete(2)),
}
LARGEST = float(np.finfo(float).max)


def both(step: int) -> dict[str, Any]:
    return dict.fromkeys("ab", observation(step))


@pytest.mark.parametrize("told", [
    {"reward": {"a": 1.0, "typo": 5.0}},
    {"reward": {"a": 1.0}, "info": {"typo": {"x": 1}}},
    {"reward": {"a": 1.0}, "multiagent_done_dict": {"typo": True}},
])  # fmt: skip
def test_what_an_agent_is_paid_that_there_is_not_is_refused_once_and_costs_the_others_nothing(
    told: dict[str, Any],
) -> None:
    with Course(PAIR) as course, PolicyClient(course.address, "remote", timeout=20) as client:
        name = client.start_episode()
        client.get_action(name, both(0))
        client.log_returns(name, **told)
        with pytest.raises(
            RefusedError, match=r"no agent 'typo'.* of \['typo'\] .* are dropped.*: call again"
        ):
            client.get_action(name, both(1))
        assert client.get_action(name, both(1)).keys() == {"a", "b"}
        client.log_returns(name, {"a": 2.0, "b": 4.0})
        client.end_episode(name, both(2))
        assert course.has_rewards([1.0, 0.0, 2.0, 4.0])


def test_with_local_inference_the_server_refuses_what_an_agent_is_paid_that_there_is_not() -> None:
    with Course(PAIR) as course, PolicyClient(course.address, "local", timeout=20) as client:
        name = client.start_episode()
        client.get_action(name, both(0))
        client.log_returns(name, {"a": 1.0, "typo": 5.0})
        client.end_episode(name, both(1))
        with pytest.raises(EpisodeError, match=r"refused .*unclaimed: no agent 'typo'"):
            client.update_policy_weights()
        name = client.start_episode()
        client.get_action(name, both(0))
        client.log_returns(name, {"a": 2.0, "b": 4.0})
        client.end_episode(name, both(1))
        client.update_policy_weights()
        assert course.has_rewards([2.0, 4.0])


def test_rewards_whose_sum_is_infinite_are_refused_once() -> None:
    with Course() as course, PolicyClient(course.address, "remote", timeout=20) as client:
        name = client.start_episode()
        client.get_action(name, observation(0))
        for _ in range(2):
            client.log_returns(name, LARGEST)
        with pytest.raises(RefusedError, match="dropped"):
            client.end_episode(name, observation(1))
        client.log_returns(name, 2.0)
        client.end_episode(name, observation(1))
        assert course.has_rewards([2.0])


def test_a_client_that_closes_tells_of_every_episode_whatever_is_refused_of_one() -> None:
    with Course(PAIR) as course:
        client = PolicyClient(course.address, "remote", timeout=20)
        names = [client.start_episode() for _ in range(3)]
        for number, name in enumerate(names):
            client.get_action(name, both(0))
            client.log_returns(name, {"a": 1.0 + number, ("b", "typo")[number == 1]: 10.0})
        with pytest.raises(RefusedError, match=r"no agent 'typo'.* are dropped"):
            client.close()
        with PolicyClient(course.address, "remote", timeout=20, session=client.session) as second:
            assert sorted(second.open_episodes) == sorted(names)
            for name in names:
                second.end_episode(name, both(1))
        assert course.has_rewards([1.0, 10.0, 2.0, 0.0, 3.0, 10.0])


def test_a_client_that_is_behind_another_one_of_its_session_catches_up() -> None:
    with Course() as course, PolicyClient(course.address, "remote", timeout=20) as ahead:
        name = ahead.start_episode()
        with PolicyClient(course.address, "remote", timeout=20, session=ahead.session) as behind:
            for step in range(3):
                ahead.get_action(name, observation(step))
                ahead.log_returns(name, 1.0 + step)
            behind.log_returns(name, 10.0)
            with pytest.raises(EpisodeError, match=r"another client of this session .*: call again"):
                behind.end_episode(name, observation(3))
            assert behind.open_episodes == [name]
            behind.end_episode(name, observation(3))
        # What the one that is ahead paid last it had not sent yet.
        assert course.has_rewards([1.0, 2.0, 10.0])
        assert eventually(lambda: course.algo._external_clients.report()["external"]["open_episodes"] == 0)
