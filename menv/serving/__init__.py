"""Serving: environments that call us, over TCP, HTTP and WebSocket, and clients. Nothing here imports torch or ray."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from menv.serving.carriers.access import Access as Access
    from menv.serving.carriers.limits import Limits as Limits
    from menv.serving.carriers.transport import Transport as Transport
    from menv.serving.client.policy_client import PolicyClient as PolicyClient
    from menv.serving.policy_server import PolicyServerInput as PolicyServerInput
    from menv.serving.rllink import RLlinkInput as RLlinkInput

_HOMES = {
    "Access": "carriers.access",
    "Limits": "carriers.limits",
    "PolicyClient": "client.policy_client",
    "PolicyServerInput": "policy_server",
    "RLlinkInput": "rllink",
    "Transport": "carriers.transport",
}
__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'menv.serving' has no attribute {name!r}, expected one of {__all__}")
    return getattr(import_module(f"menv.serving.{_HOMES[name]}"), name)
