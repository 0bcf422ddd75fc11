"""Bounds on what one client may ask of a server. Transports and sessions enforce them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from menv.errors import ConfigError
from menv.serving.protocol import MOST_BODY_BYTES

MOST_BEFORE_TOKEN = 32_000
"""Bytes of a body that is read from a peer that has not shown the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on what peers may send, how often, and how long they may take.

    Exceeding one costs the peer its connection only.

    Attributes:
        max_body: Bytes of one body. A longer one is refused before it is read. Bodies are parsed one after the other,
            and no client is answered meanwhile: 1 MB of JSON takes 10 to 40 ms.
        max_connections: Peers of one transport at the same time. Further ones are refused.
        handshake_s: Seconds until a new connection has sent its first body and the token, and from the first byte of a
            body to its last; over HTTP also from the last request of a client without an open connection.
        idle_s: Seconds without any data; also how long a peer may leave its replies unread.
        max_unsent: Bytes of replies that may wait for one peer to read them.
        max_agents: Agents of one episode.
        max_episodes: Open episodes of one connection.
        max_open_episodes: Open episodes of all clients. Further ones are refused.
        max_waiting: Bytes of one client's episodes and observations that wait to be sampled; four times as many for
            all clients. Further ones are refused.

    Raises:
        ConfigError: A limit is not a positive number of its kind.
    """

    max_body: int = 1_000_000
    max_connections: int = 256
    handshake_s: float = 10.0
    idle_s: float = 600.0
    max_unsent: int = 64_000_000
    max_agents: int = 1_000
    max_episodes: int = 10_000
    max_open_episodes: int = 65_536
    max_waiting: int = 64_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.type == "int"
            number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise ConfigError(
                    f"Limits.{field.name}: got {value!r}, expected a {'whole ' * whole}number above 0; "
                    f"leave it out for {field.default!r}"
                )
        if self.max_body > MOST_BODY_BYTES:
            raise ConfigError(
                f"Limits.max_body: got {self.max_body}, expected at most {MOST_BODY_BYTES}, which is what eight digits "
                "can say; have clients send episodes in chunks"
            )
