"""`Listener`: a transport with a port. It binds, accepts connections, watches their timeouts, and closes all of them.

TCP, HTTP and WebSocket derive from it. It accepts sockets without asyncio, so that connections count and are
bounded from their first byte on, including those in a TLS handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from menv.errors import ConfigError
from menv.serving.limits import Limits
from menv.serving.protocol import frame
from menv.serving.transports.access import Access, bind
from menv.serving.transports.transport import Handler, Transport

_LARGE_READ = 262_144
"""Bytes of one read of a connection that sends large messages."""
_SMALL_READ = 65_536
"""Bytes of any other read; larger buffers would be mapped and unmapped for each."""
_POLL_BYTES = 16_384
"""`SocketReader.look` polls until it has read this many bytes; a round of the loop is slower than a read."""
_POLL_COST = 1_024
"""One poll counts as this many bytes."""


LINGER_S = 1.0
"""Seconds that a refused or half-closed peer has to read the last replies."""
MAX_DISCARDED = 4
"""Bodies of `max_body` bytes that are read and dropped meanwhile, so that closing does not reset the connection."""
_FLUSH_S = 0.3
_ACCEPT_RETRY_S = 0.1
_MAX_ACCEPTS = 4
"""Few, so that connections that are closed already are noticed before they fill all places."""
_MAX_REJECTING = 32


class Connection(Protocol):
    """A connection as its listener sees it: an `asyncio.Protocol` that calls `opened` and `closed`."""

    def look(self, now: float) -> None:
        """Close the connection if the peer is too slow; `now` is the loop's time."""

    def hang_up(self) -> None:
        """Close it after all replies are sent; receive nothing more."""

    def abort(self) -> None:
        """Close it at once."""


class Listener(Transport):
    """A transport with a port; 0 chooses a free one.

    Attributes:
        reads_together: Whether `reader` reads for connections without TLS.
        draining: Closed connections whose last bodies are still being handled.
        reader: Reads for connections; None if asyncio does.
    """

    reads_together = False
    handler: Handler
    limits: Limits
    access: Access

    def __init__(self, port: int = 0) -> None:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65_535:
            raise ConfigError(
                f"{type(self).__name__}: port is {port!r}, expected 0 to 65535; 0 takes one that is free"
            )
        self._port = port
        self._socket: socket.socket | None = None
        self._tls: dict[str, Any] = {}
        self._open: dict[Connection, None] = {}
        self._evictable: dict[Connection, None] = {}
        self.draining: dict[Connection, None] = {}
        self._accepted: dict[Connection, asyncio.Task[None]] = {}
        self._num_rejecting = 0
        self._connecting: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._none_open = asyncio.Event()
        self._none_open.set()
        self.reader: SocketReader | None = None
        # Slices of work of connections with many bodies; one runs per round of the loop.
        self._slices: deque[Callable[[], None]] = deque()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._open)

    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        """Bind and begin to accept; see `Transport.start`."""
        self.handler, self.limits, self.access = handler, limits, access
        context = access.tls()
        if context is not None:
            self._tls = {
                "ssl": context,
                "ssl_handshake_timeout": limits.handshake_s,
                "ssl_shutdown_timeout": LINGER_S,
            }
        self._prepare()
        self._socket = bind(access.address, self._port, socket.socket)
        if self.reads_together and context is None and hasattr(select, "epoll"):
            self.reader = SocketReader()
        self._listen()
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        host, port = self._socket.getsockname()[:2]
        return host, port

    def look(self) -> None:
        """Read from sockets; see `Transport.look`."""
        if self.reader is not None:
            self.reader.look()

    async def stop(self) -> None:
        """Close the port, then all connections, with a moment for unsent replies."""
        self._close_port()
        tasks = [*self._connecting, *([] if self._watching is None else [self._watching])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._open):
            connection.hang_up()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), _FLUSH_S)
        for connection in [*self._open, *self.draining]:
            connection.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), _FLUSH_S)
        if self.reader is not None:
            self.reader.close()

    def opened(self, connection: Connection) -> None:
        self._accepted.pop(connection, None)
        self._open[connection] = None
        self._none_open.clear()
        self.make_evictable(connection)

    def closed(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        self._evictable.pop(connection, None)
        if not self._open:
            self._none_open.set()

    def shut_down(self, transport: asyncio.BaseTransport) -> None:
        """Let the peer see the end of the connection even if a forked process has its socket, too."""
        # A TLS connection may still have to send its close_notify.
        if not self._tls:
            with contextlib.suppress(OSError):
                transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def make_evictable(self, connection: Connection) -> None:
        """A new peer may replace this connection: it has sent no body yet, or is closing."""
        self._evictable[connection] = None

    def keep(self, connection: Connection) -> None:
        """The connection has sent its first body and cannot be replaced from now on."""
        self._evictable.pop(connection, None)

    def queue_slice(self, run_slice: Callable[[], None]) -> None:
        """Call `run_slice` in a later round of the loop, after the slices of other connections."""
        self._slices.append(run_slice)
        if len(self._slices) == 1:
            asyncio.get_running_loop().call_soon(self._run_next_slice)

    def _run_next_slice(self) -> None:
        run_slice = self._slices.popleft()
        if self._slices:
            asyncio.get_running_loop().call_soon(self._run_next_slice)
        run_slice()

    def _prepare(self) -> None:
        """Set up what connections need; runs before the port is bound."""

    @abstractmethod
    def _connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, which is also a `Connection`."""

    @abstractmethod
    def _full_response(self) -> bytes:
        """Return the bytes for a peer that is refused because there are too many."""

    def _full_reason(self) -> str:
        most = self.limits.max_connections
        return f"too_many: {most} peers are connected, expected fewer; see Limits.max_connections"

    def _sweep(self, now: float) -> None:
        """Called at least every second."""

    def _close_port(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            # A forked process has the socket, too, and would keep the port.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(_MAX_ACCEPTS):
            try:
                arrived, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError:
                # Out of file descriptors or memory: open connections continue, new ones wait.
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._retry = loop.call_later(_ACCEPT_RETRY_S, self._listen)
                return
            self._admit(arrived)

    def _listen(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _admit(self, arrived: socket.socket) -> None:
        arrived.setblocking(False)
        if self._has_room():
            protocol = self._connection()
            task = self._connect_task(self._enter(protocol, arrived), arrived)
            self._accepted[cast(Connection, protocol)] = task
        elif self._num_rejecting < _MAX_REJECTING:
            self._num_rejecting += 1
            self._connect_task(self._reject(arrived), arrived)
        else:
            arrived.close()

    def _connect_task(
        self, entering: Coroutine[Any, Any, None], arrived: socket.socket
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(entering)
        self._connecting.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._connecting.discard(task)
            if task.cancelled():
                # Perhaps before its first statement.
                arrived.close()

        task.add_done_callback(done)
        return task

    def _has_room(self) -> bool:
        if len(self._open) + len(self._accepted) < self.limits.max_connections:
            return True
        if self._evictable:
            first = next(iter(self._evictable))
            self.closed(first)
            first.abort()
            return True
        if self._accepted:
            # In a TLS handshake, or just accepted.
            self._accepted.pop(next(iter(self._accepted))).cancel()
            return True
        return False

    async def _enter(self, protocol: asyncio.Protocol, arrived: socket.socket) -> None:
        try:
            await self._connect(protocol, arrived)
        finally:
            self._accepted.pop(cast(Connection, protocol), None)

    async def _reject(self, arrived: socket.socket) -> None:
        try:
            transport = await self._connect(rejected := _Rejected(), arrived)
            if transport is None:
                return
            transport.write(self._full_response())
            if transport.can_write_eof():
                close_half(transport)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rejected.gone.wait(), LINGER_S)
            transport.abort()
        finally:
            self._num_rejecting -= 1

    async def _connect(self, protocol: asyncio.Protocol, arrived: socket.socket) -> asyncio.Transport | None:
        """Return the transport of an accepted socket, after a TLS handshake if any; None if that fails."""
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, arrived, **self._tls)
        except OSError:
            # The TLS handshake failed, which costs this connection alone.
            arrived.close()
            return None
        return transport

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        period = min(1.0, self.limits.handshake_s / 4, self.limits.idle_s / 4)
        while True:
            await asyncio.sleep(period)
            try:
                self._check_connections(loop.time())
            except Exception as fault:
                self.faults.add(fault)

    def _check_connections(self, now: float) -> None:
        # A separate method, because variables of the task would keep the last connection in memory.
        for connection in list(self._open):
            connection.look(now)
        self._sweep(now)


def close_half(transport: asyncio.Transport) -> bool:
    """Send no more; return whether the connection can still be read."""
    try:
        transport.write_eof()
    except OSError:
        # Reset by the peer, which asyncio has not noticed yet.
        transport.abort()
        return False
    return True


class SocketReader:
    """Reads the sockets of many connections with one epoll object, where asyncio would run a callback for each.

    Connections leave only reading to it; writing, closing and TLS are asyncio's. Everything is called in the event
    loop.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._open: dict[int, tuple[asyncio.Transport, asyncio.Protocol]] = {}
        # Connections in the middle of a large message.
        self._large: set[int] = set()
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self.look)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()

    def begin(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Read from a connection, instead of asyncio."""
        transport.pause_reading()
        fd = transport.get_extra_info("socket").fileno()
        if not (transport.is_closing() or self._epoll.closed):
            self._open[fd] = transport, protocol
            self._epoll.register(fd, select.EPOLLIN)

    def end(self, transport: asyncio.Transport) -> None:
        """Pause reading; does nothing for a connection that is not read."""
        fd = transport.get_extra_info("socket").fileno()
        if self._open.get(fd, (None,))[0] is transport:
            del self._open[fd]
            self._large.discard(fd)
            if not self._epoll.closed:
                self._epoll.unregister(fd)

    def look(self) -> None:
        """Read all sockets that have data, and poll again if that was little."""
        left = _POLL_BYTES
        while left > 0 and (found := self._epoll.poll(0)):
            left -= _POLL_COST + self._read(found)

    def _read(self, found: list[tuple[int, int]]) -> int:
        """Read each socket once; return the number of bytes."""
        readers, large, read = self._open, self._large, 0
        for fd, _ in found:
            # The connections read before may have closed others.
            if (one := readers.get(fd)) is None:
                continue
            transport, protocol = one
            try:
                data = os.read(fd, _LARGE_READ if fd in large else _SMALL_READ)
                read += len(data)
                if large or len(data) >= _SMALL_READ:
                    (large.add if len(data) >= _SMALL_READ else large.discard)(fd)
                if data:
                    protocol.data_received(data)
                else:
                    self._on_eof(transport, protocol)
            except (BlockingIOError, InterruptedError):
                continue
            except Exception as error:
                self._on_error(transport, error)
        return read

    def _on_eof(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self.end(transport)
        if not protocol.eof_received():
            transport.close()

    def _on_error(self, transport: asyncio.Transport, error: Exception) -> None:
        self.end(transport)
        transport.abort()
        if not isinstance(error, OSError):
            context = {"message": "reading", "exception": error, "transport": transport}
            asyncio.get_running_loop().call_exception_handler(context)


class _Rejected(asyncio.Protocol):
    """A refused peer, from which nothing is read."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()


def unavailable(body: bytes) -> bytes:
    """Return a response 503 with a JSON body."""
    return _response(b"503 Service Unavailable", body)


def tcp_frame_reply(data: bytes, speaks: str, scheme: str, refused: Callable[[str], bytes]) -> bytes | None:
    """Return the answer to a peer that sends TCP frames to a port that `speaks` another protocol; else None.

    `refused` encodes a reason as an ERROR, see `Handler.refused`.
    """
    # No HTTP request begins with a digit. A client that sends a frame waits for one.
    if not data[:1].isdigit():
        return None
    why = f"bad_frame: this port speaks {speaks}, expected no frame of TCP; let the address begin with {scheme}://"
    return frame(refused(why))


def http_request_reply(data: bytes, refused: Callable[[str], bytes]) -> bytes | None:
    """Return the answer to a peer that sends another HTTP request than GET to a WebSocket port; else None."""
    if b"GET ".startswith(data[:4]):
        return None
    why = "not_allowed: this port speaks WebSocket, expected its handshake; let the address begin with ws://"
    return _response(b"426 Upgrade Required\r\nUpgrade: websocket", refused(why))


def _response(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (status, len(body), body)
    )
