"""Local clients whose agents come back within an episode: each life has draws of its own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv.serving.client.policy_client import PolicyClient
from tests.serving.courses import OBSERVATIONS, Course

TWO: dict[str, Any] = {
    "observation_space": dict.fromkeys("ab", OBSERVATIONS),
    "action_space": dict.fromkeys("ab", gym.spaces.Discrete(10)),
}
SEEN = dict.fromkeys("ab", np.zeros(3, np.float32))


def lives_of(course: Course, trained: bool) -> list[list[int]]:
    """Return what agent a does in each of four lives of an episode."""
    lives: list[list[int]] = []
    with PolicyClient(course.address, "local", update_interval=None, timeout=20, seed=5) as client:
        name = client.start_episode("same", training_enabled=trained)
        for _ in range(4):
            lives.append([])
            for _ in range(8):
                lives[-1].append(int(client.get_action(name, SEEN)["a"]))
                client.log_returns(name, {"a": 1.0, "b": 1.0})
            client.log_returns(name, {"a": 0.0}, None, {"a": True})
            client.get_action(name, SEEN)
        client.end_episode(name, SEEN)
    return lives


def test_an_agent_that_comes_back_draws_anew_whether_anybody_learns_from_it_or_not() -> None:
    with Course(TWO) as course:
        untrained = lives_of(course, trained=False)
        assert len({*map(tuple, untrained)}) == 4
        assert lives_of(course, trained=True) == untrained
        assert course.algo._external_clients.report()["external"]["messages_refused"] == 0
