"""Local clients of which a server refuses a part: it costs the episode that it belongs to and no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.errors import EpisodeError
from menv.serving.client.policy_client import PolicyClient
from tests.serving.courses import Course, observation, play
from tests.serving.talks import eventually

REFUSED = (
    r"episode '{}': a part of it was refused \(.*(that is not finite|nan at index 0).*\); start a new one"
)
NOTHING = np.full(3, np.nan, np.float32)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_what_is_wrong_in_one_episode_costs_no_other_one_a_step(bad: int) -> None:
    with Course() as course, client_of(course) as client:
        names = [client.start_episode() for _ in range(3)]
        good = [number for number in range(3) if number != bad]
        for step in range(12):
            for number in good if step > 3 else range(3):
                wrong = number == bad and step == 3
                client.get_action(names[number], NOTHING if wrong else observation(step))
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
        eventually(lambda: len([got for got in course.column("rewards") if got not in early]) >= len(paid))
        assert sorted(got for got in course.column("rewards").tolist() if got not in early) == sorted(paid)


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
                    client.get_action(name, NOTHING if name in wrong else observation(step))
                    client.log_returns(name, 1.0)

        with pytest.raises(EpisodeError, match=REFUSED.format(names[1])):
            steps(names[1])
        steps()
        client.end_episode(names[0], observation(0))
        eventually(lambda: course.algo.iteration > 5)


def client_of(course: Course) -> Any:
    return PolicyClient(course.address, "local", update_interval=None, timeout=20)
