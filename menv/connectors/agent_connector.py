"""AgentConnector: a transform between an environment's observations and a policy.

Users subclass it; `AgentConnectorPipeline` calls it. The built-in ones also work on whole batches of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import gymnasium as gym

from menv.connectors.action_data import ActionConnectorDataType
from menv.connectors.agent_rows import AgentConnectorDataType, AgentRows
from menv.connectors.connector import Connector
from menv.errors import ContractError

_WAYS = ("__call__", "transform", "over_rows")


class AgentConnector(Connector):
    """Base of agent connectors; override `transform`, or `__call__` to see all agents that wait together."""

    keeps_lives: ClassVar[bool] = False
    """Whether it remembers something of each life, so that it must be told whose the observations are."""
    tells_lives: ClassVar[bool] = False
    """Whether `lives` says all that it remembers of whole batches, so that lives can go on in another process."""
    at_ends: ClassVar[bool] = True
    """Whether it must be shown last observations and rewards when they come, and not all at once later."""

    def __call__(self, acd_list: list[AgentConnectorDataType]) -> list[AgentConnectorDataType]:
        """Return the data of the same agents, in the same order.

        Raises:
            ContractError: What came in is no list, or `transform` returned something else than an agent's data.
        """
        if not isinstance(acd_list, list | tuple):
            raise ContractError(
                f"{self.name}: {type(acd_list).__name__}, expected a list of AgentConnectorDataType; pass [data]"
            )
        out = [self.transform(data) for data in acd_list]
        for data in out:
            if not isinstance(data, AgentConnectorDataType):
                raise ContractError(
                    f"{self.name}.transform: returned {type(data).__name__}, expected AgentConnectorDataType; return "
                    "the one that came in, changed"
                )
        return out

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        """Return one agent's data, transformed."""
        raise ContractError(
            f"{self.name}.transform: not defined, expected the agent's data; define transform or __call__"
        )

    def over_rows(self, rows: AgentRows) -> None:
        """Transform a whole batch in place; `takes_rows` says whether this may take the place of `__call__`."""
        raise ContractError(
            f"{self.name}.over_rows: not defined, expected a transformation of whole batches; define it, or __call__"
        )

    @property
    def takes_rows(self) -> bool:
        """Whether `over_rows` is what this class does: not where a subclass has changed one of the other ways."""
        kind: Any = type(self)
        return _takes_rows(kind)

    def space(self, space: gym.Space[Any], width: int) -> tuple[gym.Space[Any], int]:
        """Return the space and the width of rows behind this connector.

        Args:
            space: Of the observations before it.
            width: Numbers in each of them as a flat row.
        """
        return space, width

    def begin(self, slot: int) -> None:
        """Forget the life that had a slot; a new one begins."""

    def lives(self, slots: Sequence[int]) -> list[Any]:
        """Return what it remembers of the life on each slot; None of a new one. Only asked where `tells_lives`.

        Checkpoints hold it: arrays, numbers, texts, and lists and dicts of them.
        """
        return [None] * len(slots)

    def take_lives(self, slots: Sequence[int], lives: Sequence[Any]) -> None:
        """Remember what `lives` told of lives that go on here, on these slots."""

    def settle(self) -> None:
        """Do what is done once for many rows; a fragment has been closed."""

    def reset(self, env_id: Any) -> None:
        """Forget an environment's agents; its episode ended."""

    def forget(self, env_id: Any, agent_id: Any) -> None:
        """Forget one agent; its life ended without a last observation that could be shown."""

    def on_policy_output(self, output: ActionConnectorDataType) -> None:
        """Look at what the policy answered to an agent, before action connectors change it."""


@cache
def _takes_rows(kind: Any) -> bool:
    """Return whether the first class of its line that says anything says `over_rows`."""
    for base in kind.__mro__:
        found = [way for way in _WAYS if way in vars(base)]
        if found:
            return "over_rows" in found and base is not AgentConnector
    return False


def columns_of(connector: Connector, ac_data: AgentConnectorDataType) -> Mapping[str, Any]:
    """Return the dict of an agent's data.

    Raises:
        ContractError: It is none.
    """
    if not isinstance(ac_data.data, dict):
        raise ContractError(
            f"{connector.name}: data is {type(ac_data.data).__name__}, expected a dict of columns; place the connector "
            "before ViewRequirementAgentConnector"
        )
    return ac_data.data
