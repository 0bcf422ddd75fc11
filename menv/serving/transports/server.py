"""Transports, which carry bodies, and `Server`: one asyncio event loop in a thread, in which they and the sessions run.

A transport receives whole bodies from its peers and hands each to a session, which replies. It bounds how many peers
there are, and how long each may take. Other threads post callbacks into the loop; a sampler that waits runs it itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import socket
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from operator import methodcaller
from time import monotonic
from typing import Any, Protocol

from menv.errors import CallOrderError, ConfigError, ContractError
from menv.serving.limits import Limits
from menv.serving.transports.access import Access, bind

Reply = Callable[[bytes], None]
"""Sends one body to the peer. Call it in the loop's thread, at once or later, at most once for each received body.
After the end of the connection it does nothing."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, for reports; nothing about it is trusted.

    Attributes:
        transport: "tcp" or "http".
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
        admitted: Whether the peer has shown the token, or needs none.
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

    def metrics(self) -> str:
        """Return the figures of the server in the text format of Prometheus."""


class ErrorLog:
    """Exceptions of the server, each of which cost a peer its connection. Read from any thread."""

    def __init__(self) -> None:
        self.count = 0
        # The last ten, oldest first, with their tracebacks.
        self.kept: deque[BaseException] = deque(maxlen=10)

    def add(self, error: BaseException) -> None:
        # Variables of the frames hold connections and whole bodies, which must not stay in memory.
        traceback.clear_frames(error.__traceback__)
        self.count += 1
        self.kept.append(error)


FLUSH_S = 0.2
"""Seconds that connections have to send the last replies when a server stops."""
LINGER_S = 1.0
"""Seconds that a refused peer has to read the reason."""
MAX_DISCARDED = 4
"""Bodies of `max_body` bytes that are read and dropped after a refusal, so that closing does not lose the reason."""
_MAX_REFUSED = 32


class Connection:
    """An open connection.

    Attributes:
        refused: Whether it is one too many.
        farewell: Returns the last message to a peer that was too slow; None for no message.
    """

    refused = False
    farewell: Callable[[], bytes] | None = None
    _until = math.inf

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def expect(self, seconds: float) -> None:
        """End the connection in so many seconds, unless this is called again."""
        self._until = monotonic() + seconds

    def end_if_late(self, now: float) -> None:
        """Close the connection, and soon afterwards abort it, if the peer has not done what was expected."""
        if now < self._until:
            return
        if self.transport.is_closing():
            self.transport.abort()
            return
        if self.farewell is not None:
            self.transport.write(self.farewell())
        self.transport.close()
        self.expect(LINGER_S)


class Transport(ABC):
    """Carries bodies between the peers of a port and their sessions; 0 chooses a free port. For one server, once.

    It checks bodies against `limits` before it holds them in memory and tells a refused peer the reason, stops reading
    from a peer that does not read its replies, and passes exceptions of a session to `faults`, which costs that
    connection. Under a flood of connections new ones are refused, and the others stay.
    """

    faults: ErrorLog
    """Log for exceptions of sessions; the server sets it before it calls `start`."""
    handler: Handler
    limits: Limits
    access: Access

    def __init__(self, port: int = 0) -> None:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65_535:
            raise ConfigError(
                f"{type(self).__name__}: port is {port!r}, expected 0 to 65535; 0 takes one that is free"
            )
        self._port = port
        self._open: set[Connection] = set()
        self._num_refused = 0
        self._listening: socket.socket | None = None
        self._watching: asyncio.Task[None] | None = None

    @abstractmethod
    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        """Begin to accept peers; called once, in the loop's thread. Return host and port.

        Raises:
            ConfigError: It cannot start with these settings.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Close all connections and free everything within a second. Called also if `start` has failed."""

    @property
    def connections(self) -> int:
        """Number of connected peers. May be read from any thread."""
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Add a connection, which is `refused` if there are too many, and aborted if many are refused already."""
        connection.refused = len(self._open) - self._num_refused >= self.limits.max_connections
        if connection.refused and self._num_refused >= _MAX_REFUSED:
            connection.transport.abort()
        self._num_refused += connection.refused
        self._open.add(connection)
        connection.expect(self.limits.handshake_s)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        if connection in self._open:
            self._open.remove(connection)
            self._num_refused -= connection.refused

    @property
    def refusal(self) -> str:
        """Why one connection too many is refused."""
        most = self.limits.max_connections
        return f"too_many: {most} peers are connected, expected fewer; see Limits.max_connections"

    def _bind(self, handler: Handler, limits: Limits, access: Access) -> socket.socket:
        """Open the port, whose connections are watched from now on."""
        listening = self._listening = bind(access.address, self._port)
        self.handler, self.limits, self.access = handler, limits, access
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        return listening

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.limits.handshake_s / 4, self.limits.idle_s / 4))
            try:
                now = monotonic()
                for connection in list(self._open):
                    connection.end_if_late(now)
                self._end_late_sessions()
            except Exception as fault:
                self.faults.add(fault)

    def _end_late_sessions(self) -> None:  # noqa: B027 - only HTTP has them
        """End sessions whose clients are gone; called from time to time."""

    async def _end_all(self) -> None:
        """Close the port and all connections, with a moment for replies that are on their way."""
        if self._watching is not None:
            self._watching.cancel()
        if self._listening is not None:
            self._listening.close()
        # The loop has yet to add the connections that it has just accepted.
        await asyncio.sleep(0.002)
        for end in (methodcaller("close"), methodcaller("abort")):
            for connection in list(self._open):
                end(connection.transport)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    while self._open:
                        await asyncio.sleep(0.002)


_log = logging.getLogger("menv.serving")

_STOP_S = 0.8
"""Most seconds for all transports to stop; afterwards their sockets are closed with the loop."""
_JOIN_S = 10.0
_BUSY_S = 0.05
"""Seconds without a `run` of the borrower after which the server's own thread runs the loop."""
_SWITCH_S = 0.001
"""Switch interval of threads while a server runs; Python's default is 5 ms."""
_RESETS = (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE, errno.EMFILE, errno.ENFILE)


_SWITCHING = threading.Lock()
_USUAL: list[float] = []
"""The switch interval at the start of each server that runs; the first one is restored after the last server."""


@contextmanager
def _short_turns() -> Iterator[None]:
    """Make threads switch more often while any server runs: clients are answered while another thread learns."""
    with _SWITCHING:
        _USUAL.append(sys.getswitchinterval())
        if len(_USUAL) == 1:
            sys.setswitchinterval(min(_USUAL[0], _SWITCH_S))
    try:
        yield
    finally:
        with _SWITCHING:
            usual = _USUAL.pop()
            if not _USUAL:
                sys.setswitchinterval(usual)


class Server:
    """Transports in a thread. As a context manager it starts and stops them.

    Attributes:
        addresses: Host and port of each transport, once started.
        faults: Exceptions of sessions, posted callbacks and transports.
    """

    def __init__(
        self,
        handler: Handler,
        transports: Sequence[Transport],
        limits: Limits | None = None,
        access: Access | None = None,
    ) -> None:
        self._handler = handler
        self._transports = tuple(transports)
        self._limits = limits or Limits()
        self._access = access or Access()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._stopped = False
        # Held by the thread that runs the loop: the server's own, or `_borrower` while it does so often.
        self._turn = threading.Lock()
        self._borrower: int | None = None
        self._returned = threading.Event()
        self._returned.set()
        self._ran_at, self._is_paused = 0.0, False
        self.addresses: list[tuple[str, int]] = []
        self.faults = ErrorLog()
        for transport in self._transports:
            if hasattr(transport, "faults"):
                raise ConfigError(
                    f"transport: this {type(transport).__name__} has a server already, expected one for each; make "
                    "another, in the function that makes the input"
                )
            transport.faults = self.faults

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def connections(self) -> int:
        """Number of connected peers of all transports."""
        return sum(transport.connections for transport in self._transports)

    def start(self) -> None:
        """Start the thread; all ports are bound when this returns. On an error nothing is left running."""
        with self._lock:
            if self._thread is not None or self._stopped:
                raise CallOrderError("Server.start: called a second time, expected once; make another Server")
            started: Future[list[tuple[str, int]]] = Future()
            self._thread = threading.Thread(
                target=self._run, args=(started,), name="menv-serving", daemon=True
            )
            self._thread.start()
        try:
            self.addresses = started.result()
        except BaseException:
            self.stop()
            raise
        for host, port in self.addresses:
            _log.info("serving at %s:%d", host, port)

    def post(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the loop, or at once in the thread that has borrowed it; from any thread.

        Before `start` and after `stop` it is dropped.
        """
        if self._borrower == threading.get_ident() and self._turn.acquire(blocking=False):
            try:
                self._call(callback)
            finally:
                self._turn.release()
        else:
            self._call_soon(callback)

    def _call_soon(self, callback: Callable[[], object]) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._call, callback)
        except RuntimeError:
            # The loop is closed, perhaps just now: all peers are gone.
            if not loop.is_closed():
                raise

    def borrow(self) -> bool:
        """Let this thread run the loop with `run` until `give_back`, which saves two switches of threads each time.

        Returns False if the server does not run, or this thread runs another loop.
        """
        if self._loop is None or self._stopped or asyncio._get_running_loop() is not None:
            return False
        self._borrower, self._ran_at = threading.get_ident(), monotonic()
        self._returned.clear()
        return True

    def run(self, seconds: float) -> None:
        """Run the borrowed loop for so many seconds, or until `interrupt`."""
        assert self._loop is not None
        if not self._turn.acquire(blocking=False):
            self._call_soon(self.pause)
            self._turn.acquire()
        try:
            # The server's own thread may have read what `run` would wait for.
            if not (self._is_paused or self._loop.is_closed()):
                alarm = self._loop.call_later(seconds, self._loop.stop)
                self._loop.run_forever()
                alarm.cancel()
        finally:
            self._is_paused, self._ran_at = False, monotonic()
            self._turn.release()

    def pause(self) -> None:
        """End `run` after all messages that have arrived, or the next one at once; called in the loop."""
        assert self._loop is not None
        self._is_paused = True
        self._loop.stop()

    def interrupt(self) -> None:
        """End `run`; from any thread, and from handlers of signals."""
        if self._borrower is not None:
            self._call_soon(self.pause)

    def give_back(self) -> None:
        """Let the server's own thread run the loop again, if this thread has borrowed it."""
        if self._borrower == threading.get_ident():
            self._borrower = None
            self._returned.set()

    def stop(self) -> None:
        """Close all connections and end the thread; ports are free when this returns.

        Called in the loop, it returns at once.

        Raises:
            ContractError: A session or a callback blocks the serving thread.
        """
        with self._lock:
            self._stopped = True
            thread = self._thread
        inside = self._loop is not None and asyncio._get_running_loop() is self._loop
        if not inside:
            self.give_back()
        self.post(self._end)
        if thread is None or inside:
            return
        thread.join(_JOIN_S)
        if thread.is_alive():
            raise ContractError(
                f"Server.stop: the serving thread is busy for {_JOIN_S:g} s, expected conversations and callbacks "
                "that never block; look for the one that waits"
            )

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception as error:
            self.faults.add(error)

    def _end(self) -> None:
        if self._ending is not None:
            self._ending.set()

    def _run(self, started: Future[list[tuple[str, int]]]) -> None:
        with _short_turns():
            # A selector loop on every system, because transports may use `add_reader`.
            runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
            loop = self._loop = runner.get_loop()
            loop.set_exception_handler(self._on_loop_error)
            # For `asyncio.to_thread`: one thread encodes weights.
            loop.set_default_executor(ThreadPoolExecutor(1, "menv-serving-weights"))
            main = loop.create_task(self._serve(started))
            main.add_done_callback(lambda _: loop.stop())
            while not main.done():
                # A borrower may be busy for long, for example in a callback that asks this server something.
                if self._returned.wait(_BUSY_S) or monotonic() - self._ran_at > _BUSY_S:
                    with self._turn:
                        if not main.done():
                            loop.run_forever()
            with self._turn:
                runner.close()
            _log.info("stopped")

    async def _serve(self, started: Future[list[tuple[str, int]]]) -> None:
        self._ending = asyncio.Event()
        try:
            addresses = [
                await transport.start(self._handler, self._limits, self._access)
                for transport in self._transports
            ]
        except BaseException as error:
            await self._stop_all()
            started.set_exception(error)
            return
        started.set_result(addresses)
        if not self._stopped:
            await self._ending.wait()
        await self._stop_all()

    async def _stop_all(self) -> None:
        stopping = [asyncio.ensure_future(transport.stop()) for transport in self._transports]
        if stopping:
            done, _ = await asyncio.wait(stopping, timeout=_STOP_S)
            for task in done:
                if error := task.exception():
                    self.faults.add(error)

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncio would log it. Warnings without an exception are ignored.
        error = context.get("exception")
        # When asyncio closes half of a connection late, the peer may have reset it.
        resets = isinstance(error, OSError) and error.errno in _RESETS
        if error is not None and not resets:
            self.faults.add(error)
