"""Serving: environments that call us, over TCP, HTTP and WebSocket, and clients. Nothing here imports torch or ray."""

from typing import TYPE_CHECKING

from menv._names_on_demand import names_on_demand

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

__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
