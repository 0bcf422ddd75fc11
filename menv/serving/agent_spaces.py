"""The spaces of the agents that there may be, for whoever reads what clients send about them.

The desks of a server ask for them, and the translator, which is told them as JSON. It knows no messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping
from typing import Any

from menv.base_env import ALL, COMMON, SINGLE_AGENT
from menv.errors import ConfigError
from menv.input_context import InputContext
from menv.serving.wire.space_readers import Space
from menv.spaces_json import space_from_json, space_to_json


class AgentSpaces:
    """Spaces by agent.

    Args:
        ioctx: What clients play.
    """

    def __init__(self, ioctx: InputContext) -> None:
        self._ioctx = ioctx
        self._known = frozenset(ioctx.possible_agents)

    def of(self, agent: Hashable | None) -> tuple[Space, Space] | None:
        """Return an agent's observation and action space, None if there is no such agent.

        Asked for None, those of the only agent of a single-agent environment; None if it has several.
        """
        if agent is None and self._ioctx.multi_agent:
            return None
        name = SINGLE_AGENT if agent is None else agent
        observation, action = self._ioctx.spaces_of(name)
        if (
            observation is None
            or action is None
            or name in (ALL, COMMON)
            or (self._known and name not in self._known)
        ):
            return None
        return observation, action


def context_to_json(ioctx: InputContext) -> dict[str, Any]:
    """Return what readers of messages need to know of what clients play.

    Raises:
        ConfigError: A space has no form in JSON.
    """
    return {
        "multi_agent": ioctx.multi_agent,
        "observation_space": _one(ioctx.observation_space),
        "action_space": _one(ioctx.action_space),
        "observation_spaces": _by_name(ioctx.observation_spaces),
        "action_spaces": _by_name(ioctx.action_spaces),
        # An agent that is no text cannot be named in a message; that there are agents still has to be known.
        "possible_agents": [name if isinstance(name, str) else None for name in ioctx.possible_agents],
    }


def context_from_json(value: Mapping[str, Any]) -> InputContext:
    """Return the part of an `InputContext` that `context_to_json` described.

    Raises:
        ConfigError: It describes a space that cannot be.
    """

    def shared(name: str) -> Space | None:
        return None if value[name] is None else space_from_json(value[name], name)

    def own(name: str) -> dict[Hashable, Space]:
        return {agent: space_from_json(one, f"{name}[{agent!r:.40}]") for agent, one in value[name].items()}

    return InputContext(
        multi_agent=value["multi_agent"],
        possible_agents=tuple(value["possible_agents"]),
        observation_space=shared("observation_space"),
        action_space=shared("action_space"),
        observation_spaces=own("observation_spaces"),
        action_spaces=own("action_spaces"),
    )


def told_action_spaces(ioctx: InputContext) -> dict[str, Any]:
    """Return what SET_CONFIG tells of the action spaces of several agents.

    One that has no form in JSON is left out: no policy acts in it.
    """
    own: dict[str, Any] = {}
    for agent, space in ioctx.action_spaces.items():
        with contextlib.suppress(ConfigError):
            own.update(_by_name({agent: space}))
    told: dict[str, Any] = {"action_spaces": own or None}
    with contextlib.suppress(ConfigError):
        told["action_space"] = _one(ioctx.action_space)
    return told


def _one(space: Space | None) -> dict[str, Any] | None:
    return None if space is None else space_to_json(space)


def _by_name(spaces: Mapping[Hashable, Space]) -> dict[str, Any]:
    return {agent: space_to_json(space) for agent, space in spaces.items() if isinstance(agent, str)}
