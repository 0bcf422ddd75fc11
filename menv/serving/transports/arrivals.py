"""`ListeningSocket`: bounds the connections of a port from their first byte on, whatever server accepts them.

asyncio and uvicorn accept from it as from any socket. Connections count until they are closed, silent ones make room
for new ones, and `watch` ends the slow ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from menv.errors import ConfigError
from menv.serving.limits import Limits
from menv.serving.transports.access import Access
from menv.serving.transports.transport import Handler, Transport

_MAX_ACCEPTS = 4
"""Few in a row, so that connections that are closed already are noticed before they fill all places."""
_MAX_REFUSED = 32
_FLUSH_S = 0.2
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
        partial_since: When the first byte of an incomplete request or message came.
        on_slow: Called when that is too long ago, instead of `cut`.
        on_close: Called when the connection is closed.
    """

    listening: ListeningSocket
    key: tuple[Any, Any]
    since: float
    kept = busy = refused = broken = False
    partial_since: float | None = None
    on_slow: Callable[[], object] | None = None
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
        arrival.listening = self
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
                (arrival.on_slow or arrival.cut)()
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

    @property
    def connections(self) -> int:
        """Number of open connections."""
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
            async with asyncio.timeout(_FLUSH_S):
                while self.listening.arrivals:
                    await asyncio.sleep(0.002)

    def _period(self) -> float:
        """Return the seconds after which connections are checked again."""
        return min(1.0, self.limits.handshake_s / 4, self.limits.idle_s / 4)
