"""What connectors without parameters have in common: their name says everything about them."""

from __future__ import annotations

from typing import Any, Self

from menv.connectors.connector import Connector
from menv.connectors.connector_context import ConnectorContext
from menv.connectors.connector_registry import keywords


class Stateless(Connector):
    """A connector that its name says everything about."""

    def to_state(self) -> tuple[str, Any]:
        """Return the name, and no parameters."""
        return self.name, None

    @classmethod
    def from_state(cls, ctx: ConnectorContext, params: Any) -> Self:
        """Return one."""
        keywords(cls.__name__, params, ())
        return cls(ctx)
