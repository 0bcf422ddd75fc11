"""An environment whose steps cost nothing, to measure menv's own overhead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from menv import MultiAgentEnv


class NullEnv(MultiAgentEnv):
    """N agents that all act at once, see constants and earn 1.0 per step.

    `reset` and `step` return the same dicts and arrays every time, which the caller must not change.

    Args:
        config: `"num_agents"` (default 100), `"obs_size"` (default 4) and `"episode_length"` (default 100),
            the env steps after which the episode is truncated.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        settings = {"num_agents": 100, "obs_size": 4, "episode_length": 100, **(config or {})}
        count, size = settings["num_agents"], settings["obs_size"]
        self.possible_agents = [f"agent_{number}" for number in range(count)]
        self.agents = list(self.possible_agents)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        rows = np.repeat(np.arange(count, dtype=np.float32)[:, None] / count, size, axis=1)
        self._obs: Any = dict(zip(self.agents, rows, strict=True))
        rewards = dict.fromkeys(self.agents, 1.0)
        going, over = {"__all__": False}, {"__all__": True}
        self._running: Any = (self._obs, rewards, going, going, {})
        self._ending: Any = (self._obs, rewards, going, over, {})
        self._episode_length = int(settings["episode_length"])
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return self._obs, {}

    def step(self, action_dict: Any) -> Any:
        self._steps += 1
        return self._running if self._steps < self._episode_length else self._ending
