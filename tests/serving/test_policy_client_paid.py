"""What policy clients pay and no action owns: it counts in the return of its episode, in either mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.errors import ContractError, RefusedError
from menv.serving.client.policy_client import PolicyClient
from tests.serving.courses import Course, observation
from tests.serving.talks import eventually
from tests.serving.test_policy_client_policies import TEAMS

MODES = ("local", "remote")


def is_unclaimed(course: Course, reward: float) -> bool:
    """Wait until a reward is unclaimed, and no episode has been counted for it."""
    metrics = course.algo._metrics
    return eventually(lambda: metrics.unclaimed_rewards == reward) and not metrics.summary()["episodes_total"]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_paid_to_those_who_are_done_or_never_came_counts_in_the_return(mode: str) -> None:
    seen = np.zeros(10, np.float32)
    with Course(TEAMS) as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
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
        assert course.algo._metrics.summary()["hist_stats"]["episode_reward"] == [63.0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("several", [True, False], ids=["several", "one"])
def test_what_is_paid_in_an_episode_in_which_nobody_acts_is_unclaimed(mode: str, several: bool) -> None:
    seen = np.zeros(10, np.float32)
    paid: list[Any] = [{"red_0": 5.0, "blue_0": -1.0}, {}] if several else [4.0, 0.0]
    with Course(TEAMS if several else None) as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        for reward in paid:
            name = client.start_episode()
            client.log_returns(name, reward)
            client.end_episode(name, {"red_0": seen} if several else observation(0))
        client.close()
        assert is_unclaimed(course, 4.0)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_paid_to_those_who_were_done_before_anybody_acted_counts(mode: str) -> None:
    with Course(TEAMS) as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        client.log_returns(name, {"red_0": 5.0, "blue_0": 2.0}, multiagent_done_dict={"red_0": True})
        assert client.get_action(name, {}) == {}
        client.log_returns(name, {"red_0": 1.0})
        client.end_episode(name, {})
        client.close()
        assert is_unclaimed(course, 8.0)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_paid_counts_also_where_the_one_question_was_none(mode: str) -> None:
    with Course() as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        client.log_returns(name, 5.0)
        with pytest.raises((ContractError, RefusedError)):
            client.get_action(name, np.zeros(7, np.float32))
        client.log_returns(name, 3.0)
        client.end_episode(name, observation(0))
        client.close()
        assert is_unclaimed(course, 8.0)
