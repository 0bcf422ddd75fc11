"""How much one peer may ask of a server. Transports and sessions read it; it enforces nothing itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from menv.errors import ConfigError

_FRAMES_END = 99_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what peers send, how often, and how long they may take. What breaks one costs its own connection.

    Attributes:
        max_body: Bytes of one body. A longer one is refused before it is read.
        inline_body: Bytes of a body that is read in the serving thread. A longer one is read by a process
            beside it, and others are answered meanwhile; what is neither episode nor observation nor action in
            it may not be longer than this.
        max_large: Bytes of bodies that may wait for that process, those of all peers together. Further ones are
            refused.
        max_depth: Lists and objects within each other in one `info`, which no space bounds.
        max_connections: Peers of one transport at the same time. The next one takes the place of somebody who
            has not said anything yet, or not shown the token, or has said goodbye; where everybody talks it is told so
            and turned away.
        max_rate: Bodies a second of one connection, with a second's worth at once. A faster peer is slowed
            down; nothing of what it sends is lost.
        handshake_s: Seconds until a new connection has sent its first body, and from the first byte of any body
            to its last; over HTTP also from the last request of a client all of whose connections are gone.
        idle_s: Seconds in which nothing comes and nothing goes; also how long a peer may leave its replies
            unread.
        max_unsent: Bytes of replies that may wait for one peer to read them.
        max_agents: Agents of one episode.
        max_episodes: Open episodes of one connection.
        max_open_episodes: Open episodes of all clients together. While there are so many, further ones are refused.
        max_waiting: Bytes of episodes and observations of one client that nobody has sampled yet, and a quarter
            of those of all clients together. While there are more, further ones are refused.

    Raises:
        ConfigError: A bound is no positive number of its kind.
    """

    max_body: int = 4_000_000
    inline_body: int = 32_000
    max_large: int = 256_000_000
    max_depth: int = 32
    max_connections: int = 256
    max_rate: float = 100_000
    handshake_s: float = 30.0
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
        if self.max_body > _FRAMES_END:
            raise ConfigError(
                f"Limits.max_body: got {self.max_body}, expected at most {_FRAMES_END}, which is what eight digits "
                "can say; have clients send episodes in chunks"
            )
