"""Pipelines: connectors in a row, to be edited by name, index and type.

Each network policy has two of them. A change that cannot be made raises, and leaves the pipeline as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any, ClassVar, Generic, Self, TypeVar

import gymnasium as gym

from menv.connectors.action_connector import ActionConnector
from menv.connectors.action_data import ActionConnectorDataType
from menv.connectors.agent_connector import AgentConnector
from menv.connectors.agent_rows import AgentConnectorDataType, AgentRows
from menv.connectors.connector import Connector
from menv.connectors.connector_context import ConnectorContext
from menv.connectors.connector_registry import get_connector, register_connector
from menv.errors import ConfigError, UnknownNameError
from menv.spaces import OutsideSpaceError

C = TypeVar("C", bound=Connector)


class Pipeline(Connector, Generic[C]):
    """Connectors in a row.

    Args:
        ctx: Lent to connectors that have none.
        connectors: In the order in which data goes through them.

    Attributes:
        connectors: They.
    """

    kind: ClassVar[type[Connector]]

    def __init__(self, ctx: ConnectorContext | None = None, connectors: Iterable[C] = ()) -> None:
        super().__init__(ctx)
        self._changes = 0
        self.connectors: list[C] = []
        for connector in connectors:
            self.append(connector)

    @property
    def version(self) -> int:
        """Grows with each change, in pipelines that are in it too."""
        return self._changes + sum(
            [inner.version for inner in self.connectors if isinstance(inner, Pipeline)]
        )

    def prepend(self, connector: C) -> None:
        """Put a connector before all others."""
        self._insert(0, connector)

    def append(self, connector: C) -> None:
        """Put a connector behind all others."""
        self._insert(len(self.connectors), connector)

    def insert_before(self, name: str, connector: C) -> None:
        """Put a connector before the first one that has a name; an unknown one is an UnknownNameError."""
        self._insert(self._index(name, "insert_before"), connector)

    def insert_after(self, name: str, connector: C) -> None:
        """Put a connector behind the first one that has a name; an unknown one is an UnknownNameError."""
        self._insert(self._index(name, "insert_after") + 1, connector)

    def remove(self, name: str) -> None:
        """Take out the first connector that has a name; an unknown one is an UnknownNameError."""
        del self.connectors[self._index(name, "remove")]
        self._changes += 1

    def __getitem__(self, key: str | int | type[Any]) -> list[C]:
        """Return a list of connectors: those that have a name, the one at an index, or those of a type.

        Raises:
            UnknownNameError: None has the name. (Of a type there may be none.)
            IndexError: The index is not between those of the first and the last.
            ConfigError: The key is something else.
        """
        if isinstance(key, str):
            self._index(key, "[]")
            return [connector for connector in self.connectors if connector.name == key]
        if isinstance(key, int) and not isinstance(key, bool):
            if not -len(self.connectors) <= key < len(self.connectors):
                raise IndexError(
                    f"{self.name}[{key}]: it has {len(self.connectors)} connectors, expected an index of one; look at "
                    "print(pipeline)"
                )
            return [self.connectors[key]]
        if isinstance(key, type):
            return [connector for connector in self.connectors if isinstance(connector, key)]
        raise ConfigError(f"{self.name}[{key!r}]: expected a name, an index or a class; pass one of these")

    def __len__(self) -> int:
        return len(self.connectors)

    def in_training(self) -> None:
        """Go on as in training, all of them."""
        super().in_training()
        for connector in self.connectors:
            connector.in_training()

    def in_eval(self) -> None:
        """Go on as in evaluation, all of them."""
        super().in_eval()
        for connector in self.connectors:
            connector.in_eval()

    def to_state(self) -> tuple[str, Any]:
        """Return the name and the states of the connectors.

        Raises:
            ConfigError: JSON cannot hold the state of one of them.
            ContractError: One of them does not tell its state.
        """
        states = [connector.to_state() for connector in self.connectors]
        for connector, state in zip(self.connectors, states, strict=True):
            try:
                json.dumps(state, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"{connector.name}.to_state: {error}, expected lists, dicts with text as keys, text and finite "
                    "numbers; turn arrays into lists with .tolist()"
                ) from error
        return type(self).__name__, states

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return the pipeline of what `to_state` returned behind the name, also after a way through JSON.

        Raises:
            UnknownNameError: A connector is not registered.
            ConfigError: `params` is no list of pairs.
        """
        pairs: list[Any] = list(params) if isinstance(params, list | tuple) else [None]
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise ConfigError(
                f"{cls.__name__}: state is no list of pairs, expected (name, parameters) for each connector; pass what "
                "to_state returned"
            )
        connectors: Any = [get_connector(name, ctx, own) for name, own in pairs]
        return cls(ctx, connectors)

    def restore(self, params: Any) -> None:
        """Take the connectors of a state in place of those that are here.

        Raises:
            UnknownNameError: See `from_state`; so is ConfigError. The pipeline is as it was then.
        """
        made = type(self).from_state(self.ctx or ConnectorContext(), params)
        self.connectors = made.connectors
        self._changes += 1
        (self.in_training if self.is_training else self.in_eval)()

    def __str__(self) -> str:
        lines = [line for connector in self.connectors for line in str(connector).splitlines()]
        return "\n".join([self.name, *(f"    {line}" for line in lines)])

    def _insert(self, place: int, connector: C) -> None:
        if not isinstance(connector, self.kind):
            got = connector.__name__ if isinstance(connector, type) else type(connector).__name__
            raise ConfigError(
                f"{self.name}: {got}, expected an instance of {self.kind.__name__}; agent connectors go into "
                "agent_connectors, action connectors into action_connectors, as objects and not as classes"
            )
        if any(connector is other for other in self.connectors):
            raise ConfigError(
                f"{self.name}: the very same {connector.name} is in it already, expected another; make a new one"
            )
        if connector.ctx is None:
            connector.ctx = self.ctx
        self.connectors.insert(place, connector)
        self._changes += 1

    def _index(self, name: str, method: str) -> int:
        names = [connector.name for connector in self.connectors]
        if name not in names:
            raise UnknownNameError(
                f"{self.name}.{method}: no connector {name!r}, expected one of {names}; use one of these names"
            )
        return names.index(name)


class AgentConnectorPipeline(Pipeline[AgentConnector], AgentConnector):
    """Agent connectors in a row; itself one."""

    kind = AgentConnector
    _groups: tuple[int, list[tuple[bool, list[AgentConnector]]]] | None = None

    def __call__(self, acd_list: list[AgentConnectorDataType]) -> list[AgentConnectorDataType]:
        asked: list[str] = []
        try:
            for connector in self.connectors:
                if not connector.takes_rows:
                    asked.append(connector.name)
                acd_list = connector(acd_list)
        except OutsideSpaceError as error:
            error.makers = [*asked, *error.makers]
            raise
        return acd_list

    def over_rows(self, rows: AgentRows) -> None:
        """Transform a whole batch; only a user's own connectors see agent by agent."""
        asked: list[str] = []
        try:
            for takes_rows, group in self._grouped():
                if takes_rows:
                    for connector in group:
                        connector.over_rows(rows)
                    continue
                agents = rows.to_agents()
                for connector in group:
                    asked.append(connector.name)
                    agents = connector(agents)
                    rows.take(agents, connector.name)
        except OutsideSpaceError as error:
            error.makers = [*asked, *error.makers]
            raise

    def _grouped(self) -> list[tuple[bool, list[AgentConnector]]]:
        """Return neighbours that are called in the same way; found out once for each change."""
        if self._groups is None or self._groups[0] != self._changes:
            grouped = groupby(self.connectors, lambda connector: connector.takes_rows)
            self._groups = self._changes, [(takes_rows, list(group)) for takes_rows, group in grouped]
        return self._groups[1]

    def space(self, space: gym.Space[Any], width: int) -> tuple[gym.Space[Any], int]:
        """Return the space and the width of rows behind all of them."""
        for connector in self.connectors:
            space, width = connector.space(space, width)
        return space, width

    def begin(self, slot: int) -> None:
        """Forget the life that had a slot, all of them."""
        for connector in self.connectors:
            connector.begin(slot)

    def settle(self) -> None:
        """Do what is done once for many rows, all of them."""
        for connector in self.connectors:
            connector.settle()

    def reset(self, env_id: Any) -> None:
        """Forget an environment's agents, all of them."""
        for connector in self.connectors:
            connector.reset(env_id)

    def forget(self, env_id: Any, agent_id: Any) -> None:
        """Forget one agent, all of them."""
        for connector in self.connectors:
            connector.forget(env_id, agent_id)

    def on_policy_output(self, output: ActionConnectorDataType) -> None:
        """Show all of them what the policy answered."""
        for connector in self.connectors:
            connector.on_policy_output(output)


class ActionConnectorPipeline(Pipeline[ActionConnector], ActionConnector):
    """Action connectors in a row; itself one."""

    kind = ActionConnector

    def __call__(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        for connector in self.connectors:
            ac_data = connector(ac_data)
        return ac_data


register_connector("AgentConnectorPipeline", AgentConnectorPipeline)
register_connector("ActionConnectorPipeline", ActionConnectorPipeline)
