"""The interface between transports, which carry bodies, and sessions, which understand them; and the limits of peers.

A transport receives whole bodies from its peers and hands each to a session, which replies. `Server` runs transports.
"""

from __future__ import annotations

import math
import traceback
from abc import ABC, abstractmethod
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from menv.errors import ConfigError

if TYPE_CHECKING:
    from menv.serving.transports.access import Access


Reply = Callable[[bytes], None]
"""Sends one body to the peer. Call it in the loop's thread, at once or later, at most once for each received body.
After the end of the connection it does nothing."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, for reports; nothing about it is trusted.

    Attributes:
        transport: "tcp", "http", "websocket", or the name of your own transport.
        address: For example "127.0.0.1:51234".
    """

    transport: str
    address: str

    @classmethod
    def at(cls, transport: str, name: tuple[Any, ...] | None) -> Peer:
        """Return the peer of a socket, whose `getpeername()` is `name`; None if it is closed."""
        host, port = ("unknown", 0) if name is None else name[:2]
        return cls(transport, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


class SessionProtocol(Protocol):
    """The session of one peer. Every method is called in the loop's thread, and none may block.

    Attributes:
        admitted: Whether the peer has shown the token, or needs none; a new peer may replace one that is not
            admitted.
    """

    admitted: bool

    def received(self, body: bytes, reply: Reply, close: Callable[[], None]) -> Future[None] | None:
        """Handle one whole body, without framing.

        Bad input is answered, never raised: an exception is a bug of the server and costs the connection. Over HTTP
        (`Peer.transport`) every body needs a reply; elsewhere it may have none.

        Args:
            body: The body.
            reply: Sends the reply to this body.
            close: Closes the connection after all replies are sent.

        Returns:
            None, or a future if the body takes longer. Until it is done, later bodies are queued; a transport that
            stops reading keeps memory bounded.
        """

    def lost(self) -> None:
        """The connection is closed, by either side. Called exactly once, and nothing is received afterwards."""


class Handler(Protocol):
    """Opens the sessions of a server."""

    def open(self, peer: Peer, token: str | None) -> SessionProtocol:
        """Return the session of a new peer.

        Over HTTP there is one session for each value of the header `menv-session`, over any number of connections,
        and one for each request without that header.

        Args:
            peer: The peer.
            token: The token of the peer's `Authorization` header, already verified; None if there was none.
        """

    def refused(self, why: str) -> bytes:
        """Return the body of an ERROR for something that the transport itself refuses.

        Args:
            why: "code: sentence", such as "too_large: a body of 9 bytes, expected at most 8".
        """


class Transport(ABC):
    """Carries bodies between peers and sessions.

    To write your own, for example for shared memory: `start` makes it reachable for peers and returns at once.
    Whatever waits for peers afterwards is a task, or a reader of the running loop
    (`asyncio.get_running_loop().add_reader` on an eventfd or a pipe through which a peer announces data). For every
    new peer call `handler.open(peer, None)` once. For every whole body call `session.received(body, reply, close)` in
    the loop's thread, with a `reply` that writes one body back. Call `session.lost()` once when the peer has gone.
    Sessions keep bodies, so copy a body out of shared memory first. A transport also

    - checks bodies against `limits` before it holds them in memory, and tells a refused peer the reason:
      `handler.refused("too_large: ...")` is the body for that;
    - stops reading from a peer that does not read its replies, and never waits for one peer while others have sent
      something;
    - passes exceptions of a session to `faults.add`, closes that connection, and continues.

    One object serves one server, once.
    """

    faults: ErrorLog
    """Log for exceptions of sessions; the server sets it before it calls `start`."""

    @abstractmethod
    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        """Begin to accept peers; called once, in the loop's thread.

        Returns:
            Host and port; for a transport without ports, a name and 0.

        Raises:
            ConfigError: It cannot start with these settings.
        """

    def look(self) -> None:  # noqa: B027 - optional
        """Handle data that has arrived; optional, as the loop finds it anyway.

        Called repeatedly while the server waits for a batch, because a whole round of the loop is slower.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Close all connections and free everything within a second. Called also if `start` has failed."""

    @property
    @abstractmethod
    def connections(self) -> int:
        """Number of connected peers. May be read from any thread."""


_LARGEST_FRAME = 99_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on what peers may send, how often, and how long they may take.

    Exceeding one costs the peer its connection only.

    Attributes:
        max_body: Bytes of one body. A longer one is refused before it is read.
        inline_body: Bytes of a body that is parsed in the serving thread. A longer one is parsed by another process,
            while other peers are served. Everything in it but episodes, observations and actions is bounded by this.
        max_large: Bytes of all peers' bodies that may wait for that process. Further ones are refused.
        max_depth: Nested lists and objects in one `info`, which no space bounds.
        max_connections: Peers of one transport at the same time. A new peer replaces one that has sent nothing, has
            not shown the token, or is closing; if there is none, the new peer is refused.
        max_rate: Bodies per second of one connection, with bursts of one second. A faster peer is slowed down;
            nothing that it sends is lost.
        handshake_s: Seconds until a new connection has sent its first body, and from the first byte of a body to its
            last; over HTTP also from the last request of a client without an open connection.
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
        if self.max_body > _LARGEST_FRAME:
            raise ConfigError(
                f"Limits.max_body: got {self.max_body}, expected at most {_LARGEST_FRAME}, which is what eight digits "
                "can say; have clients send episodes in chunks"
            )


class TokenBucket:
    """Limits a rate per second, with bursts of one second. The caller provides the time."""

    __slots__ = ("_booked", "_each", "_span")

    def __init__(self, rate: float) -> None:
        self._each = 1.0 / rate
        self._span = max(1.0, self._each)
        self._booked = 0.0

    def wait(self, now: float) -> float:
        """Return 0 and count one event if it may happen now, otherwise the seconds until it may."""
        if self._booked < now:
            # The usual case: nothing is used up.
            self._booked = now + self._each
            return 0.0
        # The rate is used up until `_booked`; each call adds its share.
        ahead = self._booked - now - self._span
        if ahead > -self._each / 2:
            return ahead + self._each
        self._booked += self._each
        return 0.0


_KEPT = 10


class ErrorLog:
    """Exceptions of the server, each of which cost a peer its connection. Read from any thread."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: deque[BaseException] = deque(maxlen=_KEPT)

    @property
    def kept(self) -> list[BaseException]:
        """The last ten exceptions, oldest first, with their tracebacks."""
        return list(self._kept)

    def add(self, error: BaseException) -> None:
        # Variables of the frames hold connections and whole bodies, which must not stay in memory.
        traceback.clear_frames(error.__traceback__)
        self.count += 1
        self._kept.append(error)
