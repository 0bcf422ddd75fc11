"""Observations and actions of messages within an episode, by agent.

`Interactive` reads them with it, and the translator those of large messages. It knows no episodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Hashable, Mapping, Sequence, Set
from typing import Any

from msgspec import Raw

from menv.base_env import ALL, COMMON, SINGLE_AGENT, AgentId
from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serialization import space_from_json, space_to_json
from menv.serving import value_readers
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat, fields
from menv.serving.value_readers import Column, Space

# SEAM menv.serving.agent_spaces
# The spaces of the agents that there may be, for whoever reads what clients send about them.
#
# The desks of a server ask for them, and the translator, which is told them as JSON. It knows no messages.


class AgentSpaceTable:
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


class StepColumns:
    """Reads observations and actions.

    Args:
        ioctx: What clients play.
        max_agents: Of one message, `Limits.max_agents`.
    """

    def __init__(self, ioctx: InputContext, max_agents: int) -> None:
        self._multi_agent = ioctx.multi_agent
        self._max_agents = max_agents
        self._spaces = AgentSpaceTable(ioctx)

    def observations(
        self, raw: Raw, dialect: WireFormat, what: str, final: bool = False, gone: Container[AgentId] = ()
    ) -> dict[AgentId, Any]:
        """Return observations by agent.

        Args:
            raw: From a message.
            dialect: Of the message.
            what: Type of the message.
            final: Whether nobody acts on them.
            gone: Agents that have ended, and do not act on theirs.

        Raises:
            BadMessageError: One of them is none.
        """
        where = f"{what}.observation"
        if not self._multi_agent:
            return {SINGLE_AGENT: self._observation(SINGLE_AGENT, raw, dialect, where, final)}
        return {
            agent: self._observation(
                agent, value, dialect, f"{where}[{agent[:40]!r}]", final or agent in gone
            )
            for agent, value in self._by_agent(raw, dialect, where).items()
        }

    def _observation(self, agent: AgentId, raw: Raw, dialect: WireFormat, where: str, final: bool) -> Any:
        space, actions = self.spaces(agent, where)
        return value_readers.observation(raw, space, dialect, where, final, actions)

    def column(self, raws: Sequence[Raw], dialect: WireFormat, what: str) -> Column | None:
        """Return the observations of R messages, on which somebody acts; None where there are several agents.

        Raises:
            BadMessageError: One of them is none; which one, is not said.
        """
        if self._multi_agent:
            return None
        where = f"{what}.observation"
        return value_readers.observations(raws, self.spaces(SINGLE_AGENT, where), dialect, where)

    def actions(
        self, raw: Raw, obs: Mapping[AgentId, Any], dialect: WireFormat, gone: Set[AgentId] = frozenset()
    ) -> dict[AgentId, Any]:
        """Return the actions that a client took, for the agents that observe; those that have `gone` need none.

        Raises:
            BadMessageError: One of them is none, or other agents have acted than observed.
        """
        where = "LOG_ACTION.action"
        if not self._multi_agent:
            return {SINGLE_AGENT: self._action(SINGLE_AGENT, raw, obs[SINGLE_AGENT], dialect, where)}
        given = self._by_agent(raw, dialect, where)
        if given.keys() - gone != obs.keys() - gone:
            raise BadMessageError(
                ErrorCode.WRONG_LENGTH,
                f"{where}: actions of {len(given)} agents and observations of {len(obs)}, expected the same agents",
            )
        return {
            agent: self._action(agent, value, obs[agent], dialect, f"{where}[{agent[:40]!r}]")
            for agent, value in given.items()
            if agent not in gone
        }

    def _action(self, agent: AgentId, raw: Raw, obs: Any, dialect: WireFormat, where: str) -> Any:
        spaces = self.spaces(agent, where)
        action = value_readers.action(raw, spaces[1], dialect, where)
        value_readers.check_mask(spaces, obs, action, where)
        return action

    def spaces(self, agent: AgentId, where: str) -> tuple[Space, Space]:
        """Return the spaces of an agent that there may be.

        Raises:
            BadMessageError: There is none.
        """
        spaces = self._spaces.of(agent)
        if spaces is None:
            raise BadMessageError(
                ErrorCode.UNKNOWN_AGENT,
                f"{where}: no agent {str(agent)[:40]!r}, expected one of the environment's",
            )
        return spaces

    def _by_agent(self, raw: Raw, dialect: WireFormat, where: str) -> dict[str, Raw]:
        found = fields(raw, dialect, where)
        if len(found) > self._max_agents:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where}: {len(found)} agents, expected at most {self._max_agents} (Limits.max_agents)",
            )
        return found
