"""Observations and actions of messages within an episode, by agent; and the spaces of agents.

The server and the body parser process both use it. The latter receives the spaces as JSON.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Hashable, Mapping, Sequence, Set
from typing import Any

from msgspec import Raw

from menv.base_env import ALL, COMMON, SINGLE_AGENT, AgentId
from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serialization import space_from_json, space_to_json
from menv.serving import value_readers
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat, fields
from menv.serving.value_readers import Column, Space


def agent_spaces(ioctx: InputContext) -> Callable[[Hashable | None], tuple[Space, Space] | None]:
    """Return a function that looks up the observation and action space of an agent; None if there is no such agent.

    Asked for None, it returns the spaces of a single-agent environment, and None in a multi-agent one.
    """
    known = frozenset(ioctx.possible_agents)

    def spaces_of(agent: Hashable | None) -> tuple[Space, Space] | None:
        if agent is None and ioctx.multi_agent:
            return None
        name = SINGLE_AGENT if agent is None else agent
        observation, action = ioctx.spaces_of(name)
        if observation is None or action is None or name in (ALL, COMMON) or (known and name not in known):
            return None
        return observation, action

    return spaces_of


def context_to_json(ioctx: InputContext) -> dict[str, Any]:
    """Return the spaces and agents as JSON; raise `ConfigError` if a space cannot be written as JSON."""
    return {
        "multi_agent": ioctx.multi_agent,
        "observation_space": _one(ioctx.observation_space),
        "action_space": _one(ioctx.action_space),
        "observation_spaces": _by_name(ioctx.observation_spaces),
        "action_spaces": _by_name(ioctx.action_spaces),
        # Agents that are not strings cannot be named in a message, but they count.
        "possible_agents": [name if isinstance(name, str) else None for name in ioctx.possible_agents],
    }


def context_from_json(value: Mapping[str, Any]) -> InputContext:
    """Return the part of an `InputContext` that `context_to_json` describes."""

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


def action_spaces_json(ioctx: InputContext) -> dict[str, Any]:
    """Return the action spaces in SET_CONFIG of a multi-agent environment; those without JSON form are omitted."""
    own: dict[str, Any] = {}
    for agent, space in ioctx.action_spaces.items():
        with contextlib.suppress(ConfigError):
            own.update(_by_name({agent: space}))
    found: dict[str, Any] = {"action_spaces": own or None}
    with contextlib.suppress(ConfigError):
        found["action_space"] = _one(ioctx.action_space)
    return found


def _one(space: Space | None) -> dict[str, Any] | None:
    return None if space is None else space_to_json(space)


def _by_name(spaces: Mapping[Hashable, Space]) -> dict[str, Any]:
    return {agent: space_to_json(space) for agent, space in spaces.items() if isinstance(agent, str)}


class StepColumns:
    """Reads observations and actions; `max_agents` bounds the agents of one message."""

    def __init__(self, ioctx: InputContext, max_agents: int) -> None:
        self._multi_agent = ioctx.multi_agent
        self._max_agents = max_agents
        self._spaces_of = agent_spaces(ioctx)
        self._alone = self._spaces_of(None)

    def observations(
        self, raw: Raw, wire_format: WireFormat, what: str, final: bool = False, gone: Container[AgentId] = ()
    ) -> dict[AgentId, Any]:
        """Return observations by agent. `what` is the type of the message.

        `final` or a name in `gone` says that no action follows, so that an action mask may allow nothing.
        """
        where = f"{what}.observation"
        if not self._multi_agent:
            return {SINGLE_AGENT: self._observation(SINGLE_AGENT, raw, wire_format, where, final)}
        return {
            agent: self._observation(
                agent, value, wire_format, f"{where}[{agent[:40]!r}]", final or agent in gone
            )
            for agent, value in self._by_agent(raw, wire_format, where).items()
        }

    def _observation(self, agent: AgentId, raw: Raw, wire_format: WireFormat, where: str, final: bool) -> Any:
        space, actions = self.spaces(agent, where)
        return value_readers.observation(raw, space, wire_format, where, final, actions)

    def column(self, raws: Sequence[Raw], wire_format: WireFormat, what: str) -> Column | None:
        """Return the observations of R messages; None in a multi-agent environment."""
        if self._multi_agent:
            return None
        where = f"{what}.observation"
        return value_readers.observations(raws, self.spaces(SINGLE_AGENT, where), wire_format, where)

    def actions(
        self, raw: Raw, obs: Mapping[AgentId, Any], wire_format: WireFormat, gone: Set[AgentId] = frozenset()
    ) -> dict[AgentId, Any]:
        """Return the actions of exactly the agents in `obs`; those in `gone` need none."""
        where = "LOG_ACTION.action"
        if not self._multi_agent:
            return {SINGLE_AGENT: self._action(SINGLE_AGENT, raw, obs[SINGLE_AGENT], wire_format, where)}
        given = self._by_agent(raw, wire_format, where)
        if given.keys() - gone != obs.keys() - gone:
            raise BadMessageError(
                ErrorCode.WRONG_LENGTH,
                f"{where}: actions of {len(given)} agents and observations of {len(obs)}, expected the same agents",
            )
        return {
            agent: self._action(agent, value, obs[agent], wire_format, f"{where}[{agent[:40]!r}]")
            for agent, value in given.items()
            if agent not in gone
        }

    def _action(self, agent: AgentId, raw: Raw, obs: Any, wire_format: WireFormat, where: str) -> Any:
        spaces = self.spaces(agent, where)
        action = value_readers.action(raw, spaces[1], wire_format, where)
        value_readers.check_mask(spaces, obs, action, where)
        return action

    def spaces(self, agent: AgentId, where: str) -> tuple[Space, Space]:
        """Return the spaces of an agent, or raise `BadMessageError`."""
        spaces = self._alone or self._spaces_of(agent)
        if spaces is None:
            raise BadMessageError(
                ErrorCode.UNKNOWN_ID,
                f"{where}: no agent {str(agent)[:40]!r}, expected one of the environment's",
            )
        return spaces

    def _by_agent(self, raw: Raw, wire_format: WireFormat, where: str) -> dict[str, Raw]:
        found = fields(raw, wire_format, where)
        if len(found) > self._max_agents:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where}: {len(found)} agents, expected at most {self._max_agents} (Limits.max_agents)",
            )
        return found
