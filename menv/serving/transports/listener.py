"""A transport that listens on a port: binds, takes connections in, watches them, and lets go of all of it.

TCP, HTTP and WebSocket are three kinds of it. It accepts by itself, so that connections are counted, bounded and
ended from their first byte on, those in the middle of a TLS handshake too. It knows no protocol.
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
from menv.serving.transports.access import Access, bind
from menv.serving.transports.transport import Handler, Limits, Transport

# SEAM menv.serving.carriers.socket_reader
# Reads the sockets of many connections in one go, where asyncio would run a callback for each.
#
# A listener has one where the system has `epoll`; its connections leave their reading to it, and to asyncio
# all else:
# writing, closing, TLS. It knows no protocol.


_MOST_BYTES = 262_144
"""Bytes of one connection before others have their turn."""
_FEW_BYTES = 65_536
"""Nearly nobody sends as many; memory for them is at hand, where more would be mapped and unmapped for each read."""
_TOGETHER = 16_384
"""Bytes of all connections that are read before the loop goes round: going round takes longer than reading a body."""
_LOOK = 1_024
"""As how many bytes a look counts."""


class SocketReader:
    """Reads for connections that are open. Everything is called in the loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._open: dict[int, tuple[asyncio.Transport, asyncio.Protocol]] = {}
        # Those that are in the middle of something large.
        self._large: set[int] = set()
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self.look)

    def close(self) -> None:
        """Read no more."""
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()

    def begin(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Read what comes over a connection, as asyncio does that reads no more of it."""
        transport.pause_reading()
        fd = transport.get_extra_info("socket").fileno()
        if not (transport.is_closing() or self._epoll.closed):
            self._open[fd] = transport, protocol
            self._epoll.register(fd, select.EPOLLIN)

    def end(self, transport: asyncio.Transport) -> None:
        """Read no more of a connection for now; it may not have been read at all."""
        fd = transport.get_extra_info("socket").fileno()
        if self._open.get(fd, (None,))[0] is transport:
            del self._open[fd]
            self._large.discard(fd)
            if not self._epoll.closed:
                self._epoll.unregister(fd)

    def look(self) -> None:
        """Read all sockets that have something, and if that is little, those that have something by then."""
        left = _TOGETHER
        while left > 0 and (found := self._epoll.poll(0)):
            left -= _LOOK + self._read(found)

    def _read(self, found: list[tuple[int, int]]) -> int:
        """Read some sockets once; return how many bytes these had."""
        readers, large, read = self._open, self._large, 0
        for fd, _ in found:
            # Whoever was read before may have ended others.
            if (one := readers.get(fd)) is None:
                continue
            transport, protocol = one
            try:
                data = os.read(fd, _MOST_BYTES if fd in large else _FEW_BYTES)
                read += len(data)
                if large or len(data) >= _FEW_BYTES:
                    (large.add if len(data) >= _FEW_BYTES else large.discard)(fd)
                if data:
                    protocol.data_received(data)
                else:
                    self._end_of(transport, protocol)
            except (BlockingIOError, InterruptedError):
                continue
            except Exception as error:
                self._break_off(transport, error)
        return read

    def _end_of(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self.end(transport)
        if not protocol.eof_received():
            transport.close()

    def _break_off(self, transport: asyncio.Transport, error: Exception) -> None:
        self.end(transport)
        transport.abort()
        if not isinstance(error, OSError):
            context = {"message": "reading", "exception": error, "transport": transport}
            asyncio.get_running_loop().call_exception_handler(context)


LINGER_S = 1.0
"""How long a peer that was told goodbye, or that has stopped sending, has left to read what is on its way."""
MOST_DISCARDED = 4
"""How many bodies of the greatest length are read and forgotten meanwhile, so that closing is no reset."""
_FLUSH_S = 0.3
_AFTER_A_FAILED_ACCEPT_S = 0.1
_ACCEPTED_AT_ONCE = 4
"""Few, so that those who have come and gone meanwhile are seen off before they take up all places."""
_MOST_TURNED_AWAY = 32


class Connection(Protocol):
    """What a listener asks of a connection, which is an `asyncio.Protocol` that calls `joined` and `left`."""

    def look(self, now: float) -> None:
        """End the connection if the peer has taken too long over something; `now` is the loop's clock."""

    def hang_up(self) -> None:
        """End it once everything written has been sent; nothing more is received."""

    def abort(self) -> None:
        """End it at once."""


class Listener(Transport):
    """A transport with a port of its own.

    Args:
        port: 0 takes one that is free.

    Attributes:
        handler: Starts the conversations.
        limits: Of each peer.
        access: Who is let in.
        finishing: Connections that are gone, while what came over them last is still being handled.
        reader: Reads for connections; None where that is left to asyncio.

    Raises:
        ConfigError: `port` is no port.
    """

    reads_together = False
    """Whether connections leave their reading to `reader`; they cannot where there is TLS."""

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
        self._giving_way: dict[Connection, None] = {}
        self.finishing: dict[Connection, None] = {}
        self._arriving: dict[Connection, asyncio.Task[None]] = {}
        self._turned_away = 0
        self._halfway: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._none_open = asyncio.Event()
        self._none_open.set()
        self.reader: SocketReader | None = None
        # Connections that have more to handle than one turn holds; one of them has its turn in a round of the loop.
        self._turns: deque[Callable[[], None]] = deque()

    @property
    def connections(self) -> int:
        """How many peers are connected now."""
        return len(self._open)

    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        """Bind and begin to accept.

        Raises:
            ConfigError: The port is taken, the address is not this machine's, or the certificate is wrong.
        """
        self.handler, self.limits, self.access = handler, limits, access
        context = access.tls()
        if context is not None:
            self._tls = {
                "ssl": context,
                "ssl_handshake_timeout": limits.handshake_s,
                "ssl_shutdown_timeout": LINGER_S,
            }
        self._prepare()
        self._socket = bind(access.address, self._port)
        if self.reads_together and context is None and hasattr(select, "epoll"):
            self.reader = SocketReader()
        self._listen()
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        host, port = self._socket.getsockname()[:2]
        return host, port

    def look(self) -> None:
        """Read what has come, where that is not left to asyncio."""
        if self.reader is not None:
            self.reader.look()

    async def stop(self) -> None:
        """Close the port, then all connections; those with something left to send get a moment for it."""
        self._close_port()
        tasks = [*self._halfway, *([] if self._watching is None else [self._watching])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._open):
            connection.hang_up()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), _FLUSH_S)
        for connection in [*self._open, *self.finishing]:
            connection.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), _FLUSH_S)
        if self.reader is not None:
            self.reader.close()

    def joined(self, connection: Connection) -> None:
        """Note that a connection stands."""
        self._arriving.pop(connection, None)
        self._open[connection] = None
        self._none_open.clear()
        self.gives_way(connection)

    def left(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        self._open.pop(connection, None)
        self._giving_way.pop(connection, None)
        if not self._open:
            self._none_open.set()

    def let_go(self, transport: asyncio.BaseTransport) -> None:
        """Let the peer see the end of a connection that is gone, also where a forked process has its socket too."""
        # What is encrypted may still have its farewell to send.
        if not self._tls:
            with contextlib.suppress(OSError):
                transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def gives_way(self, connection: Connection) -> None:
        """Note that a connection need not be kept when somebody else wants in: silent so far, or at its end."""
        self._giving_way[connection] = None

    def stays(self, connection: Connection) -> None:
        """Note that a connection has sent its first body, and keeps its place from now on."""
        self._giving_way.pop(connection, None)

    def wait_for_turn(self, take_turn: Callable[[], None]) -> None:
        """Call `take_turn` once the loop has gone round, after those of other connections that wait."""
        self._turns.append(take_turn)
        if len(self._turns) == 1:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        take_turn = self._turns.popleft()
        if self._turns:
            asyncio.get_running_loop().call_soon(self._next_turn)
        take_turn()

    def _prepare(self) -> None:
        """Import what is needed and set it up; runs before the port is bound."""

    @abstractmethod
    def _connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, which is also a `Connection`."""

    @abstractmethod
    def _full(self) -> bytes:
        """Return what a peer is told, in the transport's own form, for whom there is no room."""

    def _why_full(self) -> str:
        most = self.limits.max_connections
        return f"too_many: {most} peers are connected, expected fewer; see Limits.max_connections"

    def _swept(self, now: float) -> None:
        """Do what has to be done every second at the latest."""

    def _close_port(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            # A process that was forked meanwhile has the socket too, and would keep the port.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                arrived, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError:
                # Out of file descriptors or memory: whoever is connected already goes on, the others wait.
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._retry = loop.call_later(_AFTER_A_FAILED_ACCEPT_S, self._listen)
                return
            self._admit(arrived)

    def _listen(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _admit(self, arrived: socket.socket) -> None:
        arrived.setblocking(False)
        if self._has_room():
            protocol = self._connection()
            task = self._halfway_in(self._enter(protocol, arrived), arrived)
            self._arriving[cast(Connection, protocol)] = task
        elif self._turned_away < _MOST_TURNED_AWAY:
            self._turned_away += 1
            self._halfway_in(self._turn_away(arrived), arrived)
        else:
            arrived.close()

    def _halfway_in(self, entering: Coroutine[Any, Any, None], arrived: socket.socket) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(entering)
        self._halfway.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._halfway.discard(task)
            if task.cancelled():
                # Perhaps before its first line.
                arrived.close()

        task.add_done_callback(done)
        return task

    def _has_room(self) -> bool:
        if len(self._open) + len(self._arriving) < self.limits.max_connections:
            return True
        if self._giving_way:
            first = next(iter(self._giving_way))
            self.left(first)
            first.abort()
            return True
        if self._arriving:
            # In the middle of a TLS handshake, or in this very moment.
            self._arriving.pop(next(iter(self._arriving))).cancel()
            return True
        return False

    async def _enter(self, protocol: asyncio.Protocol, arrived: socket.socket) -> None:
        try:
            await self._connect(protocol, arrived)
        finally:
            self._arriving.pop(cast(Connection, protocol), None)

    async def _turn_away(self, arrived: socket.socket) -> None:
        try:
            transport = await self._connect(goodbye := _Goodbye(), arrived)
            if transport is None:
                return
            transport.write(self._full())
            if transport.can_write_eof():
                close_half(transport)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(goodbye.gone.wait(), LINGER_S)
            transport.abort()
        finally:
            self._turned_away -= 1

    async def _connect(self, protocol: asyncio.Protocol, arrived: socket.socket) -> asyncio.Transport | None:
        """Make a connection of a socket, after the TLS handshake where there is one; None if that fails."""
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, arrived, **self._tls)
        except OSError:
            # No TLS, or gone in the middle of it: whoever that was has lost its own connection.
            arrived.close()
            return None
        return transport

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        period = min(1.0, self.limits.handshake_s / 4, self.limits.idle_s / 4)
        while True:
            await asyncio.sleep(period)
            try:
                self._look_around(loop.time())
            except Exception as fault:
                self.faults.add(fault)

    def _look_around(self, now: float) -> None:
        # Not a part of the task above, whose variables would keep the last connection in memory.
        for connection in list(self._open):
            connection.look(now)
        self._swept(now)


def close_half(transport: asyncio.Transport) -> bool:
    """Send no more; return whether the other half still stands."""
    try:
        transport.write_eof()
    except OSError:
        # Reset by the peer, which asyncio has not seen yet.
        transport.abort()
        return False
    return True


class _Goodbye(asyncio.Protocol):
    """Somebody who is told that there is no room: what it sends is not looked at."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()
