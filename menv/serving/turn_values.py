"""Observations and actions of messages within an episode, by agent.

`Interactive` reads them with it, and the translator those of large messages. It knows no episodes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from typing import Any

from msgspec import Raw

from menv.base_env import SINGLE_AGENT, AgentId
from menv.input_context import InputContext
from menv.serving.agent_spaces import AgentSpaces
from menv.serving.wire import columns
from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.dialect import Dialect, fields
from menv.serving.wire.space_readers import Column, Space


class TurnValues:
    """Reads observations and actions.

    Args:
        ioctx: What clients play.
        max_agents: Of one message, `Limits.max_agents`.
    """

    def __init__(self, ioctx: InputContext, max_agents: int) -> None:
        self._multi_agent = ioctx.multi_agent
        self._max_agents = max_agents
        self._spaces = AgentSpaces(ioctx)

    def observations(
        self, raw: Raw, dialect: Dialect, what: str, final: bool = False, gone: Container[AgentId] = ()
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

    def _observation(self, agent: AgentId, raw: Raw, dialect: Dialect, where: str, final: bool) -> Any:
        space, actions = self.spaces(agent, where)
        return columns.observation(raw, space, dialect, where, final, actions)

    def column(self, raws: Sequence[Raw], dialect: Dialect, what: str) -> Column | None:
        """Return the observations of R messages, on which somebody acts; None where there are several agents.

        Raises:
            BadMessageError: One of them is none; which one, is not said.
        """
        if self._multi_agent:
            return None
        where = f"{what}.observation"
        return columns.observations(raws, self.spaces(SINGLE_AGENT, where), dialect, where)

    def actions(
        self, raw: Raw, obs: Mapping[AgentId, Any], dialect: Dialect, gone: Set[AgentId] = frozenset()
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
                Code.WRONG_LENGTH,
                f"{where}: actions of {len(given)} agents and observations of {len(obs)}, expected the same agents",
            )
        return {
            agent: self._action(agent, value, obs[agent], dialect, f"{where}[{agent[:40]!r}]")
            for agent, value in given.items()
            if agent not in gone
        }

    def _action(self, agent: AgentId, raw: Raw, obs: Any, dialect: Dialect, where: str) -> Any:
        spaces = self.spaces(agent, where)
        action = columns.action(raw, spaces[1], dialect, where)
        columns.check_mask(spaces, obs, action, where)
        return action

    def spaces(self, agent: AgentId, where: str) -> tuple[Space, Space]:
        """Return the spaces of an agent that there may be.

        Raises:
            BadMessageError: There is none.
        """
        spaces = self._spaces.of(agent)
        if spaces is None:
            raise BadMessageError(
                Code.UNKNOWN_AGENT,
                f"{where}: no agent {str(agent)[:40]!r}, expected one of the environment's",
            )
        return spaces

    def _by_agent(self, raw: Raw, dialect: Dialect, where: str) -> dict[str, Raw]:
        found = fields(raw, dialect, where)
        if len(found) > self._max_agents:
            raise BadMessageError(
                Code.TOO_MANY,
                f"{where}: {len(found)} agents, expected at most {self._max_agents} (Limits.max_agents)",
            )
        return found
