"""The interface between transports, which carry bodies, and sessions, which understand them; and the limits of peers.

A transport receives whole bodies from its peers and hands each to a session, which replies. `Server` runs transports.
Transports over sockets extend `Listener`.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from menv.serving.limits import Limits

if TYPE_CHECKING:
    from menv.serving.transports.access import Access


Reply = Callable[[bytes], None]
"""Sends one body to the peer. Call it in the loop's thread, at once or later, at most once for each received body.
After the end of the connection it does nothing."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, for reports; nothing about it is trusted.

    Attributes:
        transport: "tcp", "http", "websocket", or the name of a custom transport.
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

    def metrics(self) -> bytes:
        """Return the figures of the server in Prometheus' text format."""


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

    @abstractmethod
    async def stop(self) -> None:
        """Close all connections and free everything within a second. Called also if `start` has failed."""

    @property
    @abstractmethod
    def connections(self) -> int:
        """Number of connected peers. May be read from any thread."""


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
