"""The serving thread: one asyncio loop in which all transports of a server and all conversations run.

Whoever owns an input starts one and posts callbacks into it. It knows neither messages nor sockets.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from menv.errors import CallOrderError, ContractError
from menv.serving.access import Access
from menv.serving.faults import Faults
from menv.serving.limits import Limits
from menv.serving.transport import Handler, Transport

_STOP_S = 0.8
"""The most that transports may take together to end; sockets are then closed with the loop."""
_JOIN_S = 10.0
_RESETS = (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE)


class Server:
    """Transports in a thread of their own. A context manager that starts and stops it.

    Args:
        handler: Starts a conversation for each peer.
        transports: One for each port, of any kinds.
        limits: Of each peer.
        access: Who is let in.

    Attributes:
        addresses: Host and port of each transport, in their order, once started.
        faults: Exceptions that conversations, posted callbacks or transports have raised.
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
        self.addresses: list[tuple[str, int]] = []
        self.faults = Faults()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def connections(self) -> int:
        """How many peers are connected now, over all transports."""
        return sum(transport.connections for transport in self._transports)

    def start(self) -> None:
        """Start the thread; all ports are bound when this returns.

        Raises:
            CallOrderError: It was started before; a server starts once.
            ConfigError: A port is taken, or another setting cannot be; nothing is left running.
            MissingExtraError: A transport needs a package that is not installed.
        """
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

    def post(self, callback: Callable[[], object]) -> None:
        """Have the serving thread call `callback` soon. From any thread; before `start` and after `stop` it is dropped.

        What it raises is noted in `faults`.
        """
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._call, callback)
        except RuntimeError:
            # The loop has ended, between two lines or long ago: there is nobody left to reply to.
            if not loop.is_closed():
                raise

    def stop(self) -> None:
        """End all connections and the thread; ports are free when this returns. Again and from any thread.

        In the serving thread itself it returns at once, and the end comes when the caller has returned.

        Raises:
            ContractError: A conversation or a callback blocks the serving thread.
        """
        with self._lock:
            self._stopped = True
            thread = self._thread
        self.post(self._end)
        if thread is None or thread is threading.current_thread():
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
        # The selector's loop on every system: transports read from sockets and pipes with `add_reader`.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            self._loop = runner.get_loop()
            self._loop.set_exception_handler(self._note)
            runner.run(self._serve(started))

    async def _serve(self, started: Future[list[tuple[str, int]]]) -> None:
        self._ending = asyncio.Event()
        try:
            addresses = [await self._start_one(transport) for transport in self._transports]
        except BaseException as error:
            await self._stop_all()
            started.set_exception(error)
            return
        started.set_result(addresses)
        if not self._stopped:
            await self._ending.wait()
        await self._stop_all()

    async def _start_one(self, transport: Transport) -> tuple[str, int]:
        transport.faults = self.faults
        return await transport.start(self._handler, self._limits, self._access)

    async def _stop_all(self) -> None:
        stopping = [asyncio.ensure_future(transport.stop()) for transport in self._transports]
        if stopping:
            done, _ = await asyncio.wait(stopping, timeout=_STOP_S)
            for task in done:
                if error := task.exception():
                    self.faults.add(error)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncio would write it to a log; a warning without an exception is not worth a count.
        error = context.get("exception")
        # asyncio closes half of a connection later, where bytes were waiting, and the peer may have reset it.
        resets = isinstance(error, OSError) and error.errno in _RESETS
        if error is not None and not resets:
            self.faults.add(error)
