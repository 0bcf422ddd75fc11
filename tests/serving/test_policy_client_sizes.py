"""Local clients whose steps are large: what they send stays below what servers take unless they are told otherwise."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.serving.client.policy_client import PolicyClient
from tests.serving.courses import Course

WIDE = gym.spaces.Box(-1.0, 1.0, (375_000,), np.float32)
LISTS = gym.spaces.Dict({"seen": gym.spaces.Box(-1.0, 1.0, (500,), np.float32)})
HUNDREDS = gym.spaces.Tuple([gym.spaces.Box(-1.0, 1.0, (4,), np.float32)] * 25)


@pytest.mark.parametrize(("config", "seen", "steps"), [
    ({"action_space": gym.spaces.Discrete(1000)}, np.zeros(3, np.float32), 1500),
    ({"model": {"use_lstm": True, "lstm_cell_size": 256}}, np.zeros(3, np.float32), 2500),
    ({"action_space": HUNDREDS}, np.zeros(3, np.float32), 2500),
    ({"observation_space": LISTS}, {"seen": [0.123] * 500}, 1000),
    ({"observation_space": WIDE, "model": {"fcnet_hiddens": [2]}}, np.zeros(375_000, np.float32), 5),
], ids=["many choices", "a memory", "a wide action", "numbers in lists", "a wide observation"])  # fmt: skip
def test_no_episode_is_too_large_for_a_server_however_much_a_step_holds(
    config: dict[str, Any], seen: Any, steps: int
) -> None:
    with (
        Course(config, env_steps_per_sample=10_000) as course,
        PolicyClient(course.address, "local", update_interval=None, timeout=20) as client,
    ):
        name = client.start_episode()
        for step in range(steps):
            client.get_action(name, seen)
            client.log_returns(name, float(step))
        client.end_episode(name, seen)
        client.update_policy_weights()
        assert course.has_rewards([float(step) for step in range(steps)])
