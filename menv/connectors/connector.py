"""Connector: what agent connectors, action connectors and their pipelines have in common.

It knows names, state and whether the policy is being trained; no data.
"""

from __future__ import annotations

from typing import Any, Self

from menv.connectors.connector_context import ConnectorContext
from menv.errors import ContractError


class Connector:
    """One transform with a name and a state.

    Args:
        ctx: What it may know; a pipeline lends its own to connectors that were made without one.

    Attributes:
        ctx: The context.
        is_training: Whether statistics may grow.
    """

    # Here, so that a subclass whose constructor does not call this one works too.
    ctx: ConnectorContext | None = None
    is_training: bool = True

    def __init__(self, ctx: ConnectorContext | None = None) -> None:
        self.ctx = ctx

    @property
    def name(self) -> str:
        """The name by which pipelines find it, which is its class's."""
        return type(self).__name__

    def in_training(self) -> None:
        """Go on as in training."""
        self.is_training = True

    def in_eval(self) -> None:
        """Go on as in evaluation: whatever is learned from data stays as it is."""
        self.is_training = False

    def to_state(self) -> tuple[str, Any]:
        """Return the registered name and the parameters, which JSON can hold.

        Raises:
            ContractError: A subclass does not define it.
        """
        raise ContractError(
            f"{self.name}.to_state: not defined, expected (name, parameters that JSON can hold); define to_state and "
            "from_state in your class"
        )

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return a connector with the parameters that `to_state` returned."""
        raise ContractError(
            f"{cls.__name__}.from_state: not defined, expected a connector; define to_state and from_state in your "
            "class"
        )

    def known(self, what: str) -> Any:
        """Return an attribute of the context that cannot be done without.

        Raises:
            ContractError: There is none.
        """
        value = getattr(self.ctx, what, None)
        if value is None:
            raise ContractError(
                f"{self.name}: its context has no {what}, expected one; pass ConnectorContext({what}=...) or "
                "ConnectorContext.from_policy(policy)"
            )
        return value

    def __str__(self) -> str:
        return self.name
