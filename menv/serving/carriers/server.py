"""The serving thread: one asyncio loop in which all transports of a server and all conversations run.

Whoever owns an input starts one and posts callbacks into it. It knows neither messages nor sockets.
"""

from __future__ import annotations

import asyncio
import errno
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from menv.errors import CallOrderError, ConfigError, ContractError
from menv.serving.carriers.access import Access
from menv.serving.carriers.faults import Faults
from menv.serving.carriers.limits import Limits
from menv.serving.carriers.lingering import Lingering
from menv.serving.carriers.transport import Handler, Transport

_STOP_S = 0.8
"""The most that transports may take together to end; sockets are then closed with the loop."""
_JOIN_S = 10.0
_SWITCH_S = 0.001
"""Seconds after which a thread that computes lets another one have its turn, while a server runs; Python's are five."""
_RESETS = (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE)


class _ShortTurns:
    """Has threads take shorter turns while servers run, so that peers are answered while another thread learns.

    When the last server has ended, turns are as long as before the first one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._usual = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _SWITCH_S))
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                sys.setswitchinterval(self._usual)


_SHORT_TURNS = _ShortTurns()


class Server:
    """Transports in a thread of their own. A context manager that starts and stops it.

    A thread that has nothing to do but wait for peers may borrow the loop and run it by itself.

    Args:
        handler: Starts a conversation for each peer.
        transports: One for each port, of any kinds.
        limits: Of each peer.
        access: Who is let in.

    Attributes:
        addresses: Host and port of each transport, in their order, once started.
        faults: Exceptions that conversations, posted callbacks or transports have raised.

    Raises:
        ConfigError: A transport is another server's, or is there twice.
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
        # Who runs the loop: the serving thread while it is at home, or the thread that has borrowed it.
        self._turns = threading.Condition()
        self._at_home = False
        self._lent_to: int | None = None
        self._over = False
        self._lingering: Lingering | None = None
        self.addresses: list[tuple[str, int]] = []
        self.faults = Faults()
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
        """Have the loop call `callback` soon. From any thread; before `start` and after `stop` it is dropped.

        What it raises is noted in `faults`.
        """
        loop = self._loop
        if loop is None:
            return
        try:
            if self._lent_to == threading.get_ident():
                loop.call_soon(self._call, callback)
            else:
                loop.call_soon_threadsafe(self._call, callback)
        except RuntimeError:
            # The loop has ended, between two lines or long ago: there is nobody left to reply to.
            if not loop.is_closed():
                raise

    def rouse(self, callback: Callable[[], object]) -> None:
        """Have the loop call `callback` soon even if it sleeps in this very thread; for handlers of signals."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call, callback)

    def borrow(self) -> bool:
        """Have this thread run the loop itself, by `run`, until `give_back`; nothing waits for another thread then.

        Returns:
            False where that cannot be: the server has not been started or has ended, or this thread runs a loop of its
            own.
        """
        me = threading.get_ident()
        if self._lent_to == me:
            return True
        if self._loop is None or asyncio._get_running_loop() is not None:
            return False
        with self._turns:
            if self._over or self._lent_to is not None:
                return False
            self._lent_to = me
            self._loop.call_soon_threadsafe(self._loop.stop)
            while self._at_home:
                self._turns.wait()
        return True

    def run(
        self, seconds: float | None, linger: float, done: Callable[[], bool], last: Callable[[], object]
    ) -> None:
        """Run the borrowed loop until `pause`, or for so many seconds, and then a little longer.

        Args:
            seconds: None for any time.
            linger: Most seconds from then on.
            done: See `Lingering`, as `last`.
            last: Called in the loop at the end.
        """
        loop = self._loop
        assert loop is not None
        if self._over:
            return
        self._lingering = lingering = Lingering(loop, self._look, linger, done, last)
        # Before the loop goes round: mostly peers have had to say something meanwhile.
        first, alarm = loop.call_soon(lingering.look), None
        if seconds is not None:
            begin = lingering.begin
            alarm = loop.call_later(seconds, begin) if seconds > 0.0 else loop.call_soon(begin)
        try:
            loop.run_forever()
        finally:
            self._lingering = None
            lingering.cancel()
            first.cancel()
            if alarm is not None:
                alarm.cancel()

    def pause(self) -> None:
        """Let `run` return soon, once everything that came with the last look at the sockets has been handled.

        Called by what the loop runs; nothing happens unless the loop is borrowed and runs.
        """
        if self._lingering is not None:
            self._lingering.begin()

    def _look(self) -> None:
        for transport in self._transports:
            transport.look()

    def give_back(self) -> None:
        """Let the serving thread run the loop again; nothing happens unless this thread has borrowed it."""
        if self._lent_to == threading.get_ident():
            with self._turns:
                self._lent_to = None
                self._turns.notify_all()

    def stop(self) -> None:
        """End all connections and the thread; ports are free when this returns. Again and from any thread.

        In the loop itself it returns at once, and the end comes when the caller has returned.

        Raises:
            ContractError: A conversation or a callback blocks the serving thread.
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
        # The selector's loop on every system: transports read from sockets and pipes with `add_reader`.
        loop = self._loop = asyncio.SelectorEventLoop()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(self._note)
        with _SHORT_TURNS:
            main = loop.create_task(self._serve(started))
            main.add_done_callback(self._leave)
            while True:
                with self._turns:
                    while self._lent_to is not None:
                        self._turns.wait()
                    if self._over:
                        break
                    self._at_home = True
                loop.run_forever()
                with self._turns:
                    self._at_home = False
                    self._turns.notify_all()
            self._clear(loop)

    def _leave(self, _: object) -> None:
        assert self._loop is not None
        self._over = True
        self._loop.stop()

    @staticmethod
    def _clear(loop: asyncio.AbstractEventLoop) -> None:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

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

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncio would write it to a log; a warning without an exception is not worth a count.
        error = context.get("exception")
        # asyncio closes half of a connection later, where bytes were waiting, and the peer may have reset it.
        resets = isinstance(error, OSError) and error.errno in _RESETS
        if error is not None and not resets:
            self.faults.add(error)
