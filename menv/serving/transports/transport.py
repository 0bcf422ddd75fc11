"""The interface between transports, which carry bodies, and sessions, which understand them; and the limits of peers.

A transport receives whole bodies from its peers and hands each to a session, which replies. `Server` runs transports.
Transports over sockets extend `Listener`, whose `ListeningSocket` bounds the connections of a port from their first
byte on, whatever server accepts them: asyncio and uvicorn accept from it as from any socket. Connections count until
they are closed, silent ones make room for new ones, and `watch` ends the slow ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from menv.errors import ConfigError
from menv.serving.limits import Limits
from menv.serving.transports.access import Access, bind

Reply = Callable[[bytes], None]
"""Sends one body to the peer. Call it in the loop's thread, at once or later, at most once for each received body.
After the end of the connection it does nothing."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, for reports; nothing about it is trusted.

    Attributes:
        transport: "tcp", "http", or the name of a custom transport.
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

    def received(self, body: bytes, reply: Reply, close: Callable[[], None]) -> asyncio.Future[None] | None:
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


_MAX_ACCEPTS = 4
"""Few in a row, so that connections that are closed already are noticed before they fill all places."""
_MAX_REFUSED = 32
FLUSH_S = 0.2
"""Seconds that connections have to send the last replies when a server stops."""
MAX_DISCARDED = 4
"""Bodies of `max_body` bytes that are read and dropped after a refusal, so that closing does not lose the reason."""
_MAX_READ = 32_768
"""Bytes of one read, so that no peer keeps a parser busy for long."""


class Arrival(socket.socket):
    """An accepted connection.

    Attributes:
        listening: The socket that accepted it.
        key: Address of the peer and of this end.
        since: When it was accepted, or its last request ended.
        kept: Whether the peer has sent a whole request, so that no new connection may replace it.
        busy: Whether a request is under way, which has its own timeouts.
        refused: Whether there are too many connections.
        broken: Whether the peer cannot be sent anything any more.
        scattered: Whether the body under way came in too many pieces, so that the rest is not read.
        partial_since: When the first byte of an incomplete request came.
        bucket: Limits the rate of its bodies.
        on_close: Called when the connection is closed.
    """

    listening: ListeningSocket
    key: tuple[Any, Any]
    since: float
    bucket: TokenBucket
    kept = busy = refused = broken = scattered = False
    partial_since: float | None = None
    on_close: Callable[[], object] = staticmethod(lambda: None)
    _is_new = True

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Read a bounded number of bytes; the first ones may get an answer that ends the connection."""
        try:
            data = super().recv(min(size, _MAX_READ), flags)
        except ConnectionError:
            # After an error uvicorn would keep the connection in memory until its timer runs out.
            return b""
        self._begin_partial()
        if self._is_new:
            self._is_new = False
            answer = self.listening.answer_first(data)
            if answer is not None:
                with contextlib.suppress(OSError):
                    self.send(answer)
                return b""
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0, /) -> int:
        """Read a bounded number of bytes."""
        try:
            count = super().recv_into(memoryview(buffer)[:_MAX_READ], size, flags)
        except ConnectionError:
            return 0
        self._begin_partial()
        return count

    def _begin_partial(self) -> None:
        if not self.busy and self.partial_since is None:
            self.partial_since = asyncio.get_running_loop().time()

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send, and remember whether that is over."""
        try:
            return super().send(data, flags)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError:
            self.broken = True
            raise

    def close(self) -> None:
        """Close the connection, which makes room for another one."""
        if self.fileno() >= 0:
            self.listening.forget(self)
            # A forked process may have the socket, too.
            self.cut()
            super().close()
            self.on_close()

    def cut(self) -> None:
        """End the connection in both directions; the transport that reads it finds its end."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def begin(self) -> None:
        """A request begins."""
        self.busy, self.partial_since = True, None

    def end(self) -> None:
        """A request has ended."""
        self.busy, self.partial_since = False, None
        self.since = asyncio.get_running_loop().time()


class ListeningSocket(socket.socket):
    """Accepts connections.

    Attributes:
        limits: Bounds of the connections; set before it listens.
        answer_first: Returns the answer to a peer whose first bytes belong to another protocol, or None.
        arrivals: Open connections by `Arrival.key`, oldest first.
        closing: Whether new connections are closed at once.
    """

    limits: Limits
    closing = False
    answer_first: Callable[[bytes], bytes | None] = staticmethod(lambda _: None)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.arrivals: dict[tuple[Any, Any], Arrival] = {}
        self._accepts = 0

    def accept(self) -> tuple[Arrival, Any]:
        """Accept a connection; see `socket.accept`."""
        self._accepts += 1
        if self._accepts > _MAX_ACCEPTS:
            self._accepts = 0
            raise BlockingIOError
        accepted, address = super().accept()
        if self.closing:
            accepted.close()
            raise BlockingIOError
        arrival = Arrival(self.family, self.type, self.proto, fileno=accepted.detach())
        arrival.listening, arrival.bucket = self, TokenBucket(self.limits.max_rate)
        arrival.key = (address[:2], arrival.getsockname()[:2])
        arrival.since = asyncio.get_running_loop().time()
        if not self._make_room():
            arrival.refused = True
            if sum(one.refused for one in self.arrivals.values()) >= _MAX_REFUSED:
                arrival.close()
                raise BlockingIOError
        self.arrivals[arrival.key] = arrival
        return arrival, address

    def close(self) -> None:
        """Close the port."""
        # A forked process has the socket, too, and would keep the port.
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)
        super().close()

    def forget(self, arrival: Arrival) -> None:
        """The connection is closed, or gives way."""
        if self.arrivals.get(arrival.key) is arrival:
            del self.arrivals[arrival.key]

    def watch(self, now: float) -> None:
        """End the connections on which no request has come for too long, or only a part of one."""
        for arrival in list(self.arrivals.values()):
            if arrival.partial_since is not None and now - arrival.partial_since > self.limits.handshake_s:
                arrival.partial_since = None
                arrival.cut()
            most = self.limits.idle_s if arrival.kept else self.limits.handshake_s
            if not arrival.busy and now - arrival.since > most:
                arrival.cut()

    def _make_room(self) -> bool:
        places = [one for one in self.arrivals.values() if not one.refused]
        if len(places) < self.limits.max_connections:
            return True
        for arrival in places:
            if not arrival.kept:
                self.forget(arrival)
                arrival.cut()
                return True
        return False


class Listener(Transport):
    """A transport with a port; 0 chooses a free one.

    Attributes:
        listening: The socket; None before the start.
    """

    handler: Handler
    limits: Limits
    access: Access

    def __init__(self, port: int = 0) -> None:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65_535:
            raise ConfigError(
                f"{type(self).__name__}: port is {port!r}, expected 0 to 65535; 0 takes one that is free"
            )
        self._port = port
        self.listening: ListeningSocket | None = None
        self._watching: asyncio.Task[None] | None = None

    def _bind(self, handler: Handler, limits: Limits, access: Access) -> ListeningSocket:
        """Open the port, whose connections are watched from now on."""
        self.handler, self.limits, self.access = handler, limits, access
        listening = self.listening = bind(access.address, self._port, ListeningSocket)
        listening.limits = limits
        self._watching = asyncio.get_running_loop().create_task(self._watch(listening))
        return listening

    async def _watch(self, listening: ListeningSocket) -> None:
        time = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(min(1.0, self.limits.handshake_s / 4, self.limits.idle_s / 4))
            try:
                listening.watch(time())
                self._end_slow(time())
            except Exception as fault:
                self.faults.add(fault)

    @abstractmethod
    def _end_slow(self, now: float) -> None:
        """End what has been idle or slow for too long; called from time to time."""

    @property
    def connections(self) -> int:
        return 0 if self.listening is None else len(self.listening.arrivals)

    def arrival(self, transport: asyncio.BaseTransport) -> Arrival | None:
        """Return the connection of a transport; None if it is closed or gives way to another one."""
        assert self.listening is not None
        ends = [(transport.get_extra_info(name) or ())[:2] for name in ("peername", "sockname")]
        return self.listening.arrivals.get((ends[0], ends[1]))

    async def _accept_no_more(self) -> None:
        """Close connections that come from now on, and let asyncio make transports of those before.

        asyncio makes none once its server is closed, and then nothing closes the connection.
        """
        if self._watching is not None:
            self._watching.cancel()
        if self.listening is not None:
            self.listening.closing = True
            await asyncio.sleep(0)

    async def _cut_all(self) -> None:
        """Close the port, end all connections, and wait a moment until they are closed."""
        if self.listening is None:
            return
        self.listening.close()
        for arrival in list(self.listening.arrivals.values()):
            arrival.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self.listening.arrivals:
                    await asyncio.sleep(0.002)
