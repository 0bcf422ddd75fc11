"""An environment that does nothing, quickly: what remains to be measured is the library's own work.

`benchmarks` runs it. It knows nothing of who acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL
from menv.errors import ConfigError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts


class NullEnv(MultiAgentEnv):
    """N agents that all act at once, see constants and earn 1.0 per step.

    `reset` and `step` return the very same dicts and arrays every time; they belong to the environment, and
    whoever calls must not change them. Actions are not looked at.

    Args:
        config: `"num_agents"` (default 100), `"obs_size"` (default 4) and `"episode_length"` (default 100),
            the env steps after which the episode is truncated.

    Raises:
        ConfigError: One of the three is not 1 or more.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        settings = {"num_agents": 100, "obs_size": 4, "episode_length": 100, **(config or {})}
        for name in ("num_agents", "obs_size", "episode_length"):
            if settings[name] < 1:
                raise ConfigError(
                    f"NullEnv: {name} is {settings[name]!r}, expected 1 or more; change the config"
                )
        count, size = settings["num_agents"], settings["obs_size"]
        self.possible_agents = [f"agent_{number}" for number in range(count)]
        self.agents = list(self.possible_agents)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        rows = np.repeat(np.arange(count, dtype=np.float32)[:, None] / count, size, axis=1)
        self._obs: AgentDict = dict(zip(self.agents, rows, strict=True))
        self._infos: AgentDict = {}
        rewards: AgentDict = dict.fromkeys(self.agents, 1.0)
        self._going_on: StepDicts = (self._obs, rewards, {ALL: False}, {ALL: False}, self._infos)
        self._ending: StepDicts = (self._obs, rewards, {ALL: False}, {ALL: True}, self._infos)
        self._episode_length = int(settings["episode_length"])
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Count from 0 again."""
        self._steps = 0
        return self._obs, self._infos

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Count one step."""
        self._steps += 1
        return self._going_on if self._steps < self._episode_length else self._ending
