"""Names of connectors: what a saved pipeline says, and which class it means.

A state names its class and never where to import it from, so reading one runs no code of the file's choice.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from menv.connectors.built_in import BUILT_IN
from menv.connectors.connector import Connector
from menv.connectors.connector_context import ConnectorContext
from menv.errors import ConfigError, UnknownNameError

_classes: dict[str, type[Connector]] = {}


def register_connector(name: str, cls: type[Connector]) -> None:
    """Make a class known under a name.

    Raises:
        ConfigError: The name is taken, or `cls` is no subclass of Connector.
    """
    if not (isinstance(cls, type) and issubclass(cls, Connector)):
        raise ConfigError(
            f"register_connector: {name!r} is {cls!r}, expected a subclass of AgentConnector or ActionConnector; "
            "pass the class itself"
        )
    if not isinstance(name, str) or not name:
        raise ConfigError(f"register_connector: {name!r}, expected a name that is not empty; pass a string")
    own = f"menv.connectors.{BUILT_IN[name]}" if name in BUILT_IN else cls.__module__
    if name in _classes or cls.__module__ != own:
        raise ConfigError(
            f"register_connector: {name!r} is a registered connector already, expected a new name; choose another one"
        )
    _classes[name] = cls


def get_connector(name: str, ctx: ConnectorContext | None = None, params: Any = None) -> Connector:
    """Return a connector of a registered class.

    Args:
        name: What it is registered as.
        ctx: What it may know.
        params: What `to_state` returned behind the name; None for the class's own defaults.

    Raises:
        UnknownNameError: Nothing is registered under the name.
        ConfigError: The parameters are none of this class.
    """
    if name in BUILT_IN:
        import_module(f"menv.connectors.{BUILT_IN[name]}")
    if name not in _classes:
        near = difflib.get_close_matches(str(name), {**BUILT_IN, **_classes}, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else "call register_connector in this process first"
        raise UnknownNameError(f"connector {name!r}: not registered, expected a registered name; {hint}")
    return _classes[name].from_state(ctx or ConnectorContext(), params)


def keywords(where: str, params: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """Return parameters that are keyword arguments; None is none at all.

    Raises:
        ConfigError: They are no dict, or have an unknown key.
    """
    if params is None:
        return {}
    if not isinstance(params, dict) or not params.keys() <= set(known):
        got = sorted(map(str, params)) if isinstance(params, dict) else type(params).__name__
        raise ConfigError(
            f"{where}: parameters {got}, expected a dict with keys of {list(known)}; pass what to_state returned"
        )
    return dict(params)
