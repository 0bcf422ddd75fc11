"""The spaces that a server told a client: what answered actions are elements of. It knows no messages but that one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.serving.wire.messages import SetConfig
from menv.spaces_json import space_from_json

Space = gym.Space[Any]


class ClientSpaces:
    """What the greeting says of spaces.

    Args:
        config: The greeting.

    Attributes:
        multi_agent: Whether observations are dicts by agent.

    Raises:
        ConfigError: A space is none that this version knows.
    """

    def __init__(self, config: SetConfig) -> None:
        self.multi_agent = bool(config.multi_agent)
        own = config.action_space
        self._shared = None if own is None else space_from_json(own, "SET_CONFIG.action_space")
        self._own = {
            agent: space_from_json(one, f"SET_CONFIG.action_spaces[{agent!a:.40}]")
            for agent, one in (config.action_spaces or {}).items()
        }

    def action_space(self, agent: str) -> Space | None:
        """Return that of an agent, None where nobody told."""
        return self._own.get(agent, self._shared)
