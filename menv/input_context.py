"""InputContext: what the function `config["input"]` is told, when it makes the source of all experience."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym


@dataclass(frozen=True, slots=True)
class InputContext:
    """Where an input belongs and what its clients play.

    Attributes:
        worker_index: 0 in the driver's own process, from 1 in workers.
        num_workers: How many workers there are.
        observation_space: Of an agent, None where it depends on the agent.
        action_space: Likewise.
        observation_spaces: By agent, where agents have spaces of their own.
        action_spaces: Likewise.
        possible_agents: Agents that may ever appear, () if nobody knows.
        multi_agent: Whether clients name agents.
        env_config: Items of the config.
        env_steps_per_sample: Env steps of one fragment.
    """

    worker_index: int = 0
    num_workers: int = 0
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    observation_spaces: Mapping[Hashable, gym.Space[Any]] = field(default_factory=dict)
    action_spaces: Mapping[Hashable, gym.Space[Any]] = field(default_factory=dict)
    possible_agents: tuple[Hashable, ...] = ()
    multi_agent: bool = False
    env_config: Mapping[str, Any] = field(default_factory=dict)
    env_steps_per_sample: int = 1

    @property
    def worker(self) -> InputContext:
        """Itself: classic functions ask `ioctx.worker.num_workers`."""
        return self

    def spaces_of(self, agent_id: Hashable) -> tuple[gym.Space[Any] | None, gym.Space[Any] | None]:
        """Return an agent's observation and action space."""
        observation = self.observation_spaces.get(agent_id, self.observation_space)
        return observation, self.action_spaces.get(agent_id, self.action_space)
