"""Clients of several agents that act in different spaces: each answer is an element of its agent's own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.serving.client.policy_client import PolicyClient
from tests.serving.courses import OBSERVATIONS, Course

S = gym.spaces
FLAT: Any = S.Box(-1.0, 1.0, (1,), np.float32)
OWN: dict[str, Any] = {
    "tuple": S.Tuple((S.Discrete(2), S.MultiDiscrete([2, 3]))),
    "dict": S.Dict({"turn": S.Discrete(3), "steps": S.MultiDiscrete([2, 3])}),
    "square": S.Box(-1.0, 1.0, (2, 2), np.float64),
    "choice": S.Discrete(3, start=5),
    "car": S.Dict({"brake": S.Discrete(2, start=1), "steer": S.Box(-1.0, 3.0, (2,), np.float32)}),
}
APART: dict[str, Any] = {
    "observation_space": dict.fromkeys(OWN, OBSERVATIONS),
    "action_space": OWN,
    "multiagent": {
        "policies": {name: (None, OBSERVATIONS, space, {}) for name, space in OWN.items()},
        "policy_mapping_fn": lambda agent_id, **kwargs: agent_id,
    },
}


def same_kind(left: Any, right: Any) -> bool:
    """Return whether two elements of a space are built alike."""
    if isinstance(left, dict):
        return isinstance(right, dict) and all(same_kind(left[key], right[key]) for key in right)
    if isinstance(left, tuple):
        return isinstance(right, tuple) and all(map(same_kind, left, right))
    return type(left) is type(right) and left.dtype == right.dtype and left.shape == right.shape


@pytest.mark.parametrize("mode", ["local", "remote"])
def test_agents_of_different_spaces_get_elements_of_their_own(mode: Any) -> None:
    with Course(APART) as course, PolicyClient(course.address, mode, timeout=20) as client:
        name = client.start_episode()
        for _ in range(3):
            actions = client.get_action(name, dict.fromkeys(OWN, np.zeros(3, np.float32)))
            assert actions.keys() == OWN.keys()
            for agent, space in OWN.items():
                assert space.contains(actions[agent]), (agent, actions[agent])
                assert same_kind(actions[agent], space.sample()), (agent, actions[agent])
            client.log_returns(name, dict.fromkeys(OWN, 1.0))
        client.end_episode(name, dict.fromkeys(OWN, np.zeros(3, np.float32)))
