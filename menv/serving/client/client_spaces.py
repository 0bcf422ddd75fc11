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
        told = (
            [own]
            if own is not None
            else [one.get("action_space") for one in (config.policies or {}).values()]
        )
        # Agents of different spaces cannot be told apart by what the server says of its policies.
        alike = bool(told) and all(one == told[0] for one in told)
        self._action_space = space_from_json(told[0], "SET_CONFIG.action_space") if alike else None

    @property
    def action_space(self) -> Space | None:
        """Of every agent, None where they differ or nobody told."""
        return self._action_space
