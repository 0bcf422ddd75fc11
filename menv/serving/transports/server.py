"""`Server`: one asyncio event loop in a thread, in which all transports and sessions of a server run.

A sampler that waits for clients borrows the loop and runs it in its own thread, which saves thread switches. Other
threads post callbacks into the loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import Any

from menv.errors import CallOrderError, ConfigError, ContractError
from menv.serving.limits import Limits
from menv.serving.transports.access import Access
from menv.serving.transports.transport import ErrorLog, Handler, Transport

_log = logging.getLogger("menv.serving")

_STOP_S = 0.8
"""Most seconds for all transports to stop; afterwards their sockets are closed with the loop."""
_JOIN_S = 10.0
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

    A thread that only waits for clients may `borrow` the loop and `run` it.

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
        # The loop runs in the serving thread, or in the thread `_borrower`.
        self._loop_free = threading.Condition()
        self._thread_runs_loop = False
        self._borrower: int | None = None
        self._ended = False
        self._window: BatchWindow | None = None
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
        """Call `callback` in the loop, from any thread. Before `start` and after `stop` it is dropped."""
        loop = self._loop
        if loop is None:
            return
        try:
            if self._borrower == threading.get_ident():
                loop.call_soon(self._call, callback)
            else:
                loop.call_soon_threadsafe(self._call, callback)
        except RuntimeError:
            # The loop is closed, perhaps just now: all peers are gone.
            if not loop.is_closed():
                raise

    def post_from_signal(self, callback: Callable[[], object]) -> None:
        """Call `callback` in the loop even if this thread sleeps in it; for signal handlers."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call, callback)

    def borrow(self) -> bool:
        """Let this thread run the loop with `run`, until `give_back`.

        Returns False if the server is not running, or if this thread runs another loop.
        """
        me = threading.get_ident()
        if self._borrower == me:
            return True
        if self._loop is None or asyncio._get_running_loop() is not None:
            return False
        with self._loop_free:
            if self._ended or self._borrower is not None:
                return False
            self._borrower = me
            self._loop.call_soon_threadsafe(self._loop.stop)
            while self._thread_runs_loop:
                self._loop_free.wait()
        return True

    def run(
        self, seconds: float | None, batch_wait: float, done: Callable[[], bool], last: Callable[[], object]
    ) -> None:
        """Run the borrowed loop until `begin_batch_window` or for `seconds`, and then for the batch window.

        Args:
            seconds: None for any time.
            batch_wait: Most seconds of the batch window.
            done: See `BatchWindow`.
            last: See `BatchWindow`.
        """
        loop = self._loop
        assert loop is not None
        if self._ended:
            return
        self._window = window = BatchWindow(loop, batch_wait, done, last)
        alarm = None
        if seconds is not None:
            begin = window.begin
            alarm = loop.call_later(seconds, begin) if seconds > 0.0 else loop.call_soon(begin)
        try:
            loop.run_forever()
        finally:
            self._window = None
            window.cancel()
            if alarm is not None:
                alarm.cancel()

    def begin_batch_window(self) -> None:
        """Make `run` return after the current batch of socket events and the batch window; called in the loop."""
        if self._window is not None:
            self._window.begin()

    def give_back(self) -> None:
        """Let the serving thread run the loop again, if this thread has borrowed it."""
        if self._borrower == threading.get_ident():
            with self._loop_free:
                self._borrower = None
                self._loop_free.notify_all()

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
        # A selector loop on every system, because transports use `add_reader`.
        loop = self._loop = asyncio.SelectorEventLoop()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(self._on_loop_error)
        with _short_turns():
            main = loop.create_task(self._serve(started))
            main.add_done_callback(self._leave)
            while True:
                with self._loop_free:
                    while self._borrower is not None:
                        self._loop_free.wait()
                    if self._ended:
                        break
                    self._thread_runs_loop = True
                loop.run_forever()
                with self._loop_free:
                    self._thread_runs_loop = False
                    self._loop_free.notify_all()
            self._clear(loop)

    def _leave(self, _: object) -> None:
        assert self._loop is not None
        self._ended = True
        _log.info("stopped")
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

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncio would log it. Warnings without an exception are ignored.
        error = context.get("exception")
        # When asyncio closes half of a connection late, the peer may have reset it.
        resets = isinstance(error, OSError) and error.errno in _RESETS
        if error is not None and not resets:
            self.faults.add(error)


_yield_cpu: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class BatchWindow:
    """Stops the loop when no more clients are expected to send something, or when `seconds` have passed.

    Within the window the loop polls the sockets without sleeping: the selector's shortest wait is a millisecond. `done`
    is asked after each poll, `last` is called at the end. Everything is called in the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        done: Callable[[], bool],
        last: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._done = done
        self._last = last
        self._until: float | None = None
        self._next: asyncio.Handle | None = None

    def begin(self) -> None:
        """Begin the window, unless it has begun."""
        if self._until is not None:
            return
        self._until = monotonic() + self._seconds
        if self._done():
            self._end()
        else:
            self._next = self._loop.call_soon(self._check)

    def _check(self) -> None:
        assert self._until is not None
        if self._done() or monotonic() >= self._until:
            self._end()
        else:
            # The clients may need this processor.
            _yield_cpu()
            self._next = self._loop.call_soon(self._check)

    def cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _end(self) -> None:
        self._last()
        self._loop.stop()


SLICE_S = 0.001
"""Seconds of work per slice."""
_SHORT_S = 0.0005
"""After work that takes less, the next work need not wait for a round of the loop."""


class CooperativeScheduler:
    """Runs long work of the event loop in slices of a millisecond, so that other peers are served in between.

    `async with` is one slice. Works take turns.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._start = 0.0

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        self._start = perf_counter()

    async def __aexit__(self, *_: object) -> None:
        try:
            if perf_counter() - self._start > _SHORT_S:
                await asyncio.sleep(0)
        finally:
            self._turn.release()

    async def run(self, work: Iterator[object]) -> None:
        """Do all of `work`, in slices."""
        done = False
        while not done:
            async with self:
                done = all(perf_counter() - self._start < SLICE_S for _ in work)
