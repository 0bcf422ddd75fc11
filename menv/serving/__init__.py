"""Environments of remote clients, over TCP and HTTP. Nothing here imports torch or ray.

Clients run the environment: they request actions, or run a policy themselves and send episodes. `PolicyServerInput` in
`policy_server` is the server side, `client` the other. Begin to read with `policy_server` (the server and its
environments), `session` (the messages of one connection) and `protocol` (the messages themselves). `transports` carry
bodies; `protocol`, `value_readers` and `episodes` decode them and check every value against the spaces. The protocol is
described in docs/reference/rllink.md.
"""

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.serving.client.policy_client import PolicyClient as PolicyClient
    from menv.serving.limits import Limits as Limits
    from menv.serving.policy_server import PolicyServerInput as PolicyServerInput
    from menv.serving.policy_server import RLlinkInput as RLlinkInput
    from menv.serving.transports.access import Access as Access

__all__, __getattr__, __dir__ = lazy_names(__name__)
