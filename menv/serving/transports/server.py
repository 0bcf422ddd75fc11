"""The serving thread: one asyncio loop in which all transports of a server and all conversations run.

Whoever owns an input starts one and posts callbacks into it. It knows neither messages nor sockets.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from time import monotonic, perf_counter
from typing import Any

from menv.errors import CallOrderError, ConfigError, ContractError
from menv.serving.transports.access import Access
from menv.serving.transports.transport import ErrorLog, Handler, Limits, Transport

# SEAM menv.serving.carriers.lingering
# Lingering: the end of a run of the server's loop, in which it waits a little for others.
#
# `Server.run` makes one and `Server.pause` begins it. It knows neither peers nor what is waited for.


_let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class BatchWindow:
    """Stops a loop once nobody is waited for any more. Everything is called in the loop.

    It never sleeps: a wait of the selector takes a whole millisecond at least.

    Args:
        loop: The loop, which runs.
        look: Looks at the sockets.
        seconds: The most that it takes.
        done: Whether nobody is waited for any more; asked at the beginning and after every look at the sockets.
        last: Called at the end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        look: Callable[[], object],
        seconds: float,
        done: Callable[[], bool],
        last: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._look_at_sockets = look
        self._seconds = seconds
        self._done = done
        self._last = last
        self._until: float | None = None
        self._next: asyncio.Handle | None = None
        self._looking = False

    def begin(self) -> None:
        """Wait from now on; nothing happens if that has begun."""
        if self._until is not None:
            return
        self._until = monotonic() + self._seconds
        # A look that goes on asks when it is over.
        if not self._looking:
            if self._done():
                self._end()
            else:
                self._next = self._loop.call_soon(self.look)

    def look(self) -> None:
        """Look at the sockets; once it has begun, see whether those are there who are waited for."""
        self._looking = True
        self._look_at_sockets()
        self._looking = False
        if self._until is None:
            return
        if self._done() or monotonic() >= self._until:
            self._end()
        else:
            # Whom it waits for may need this very processor.
            _let_others_run()
            self._next = self._loop.call_soon(self.look)

    def cancel(self) -> None:
        """Look no more."""
        if self._next is not None:
            self._next.cancel()

    def _end(self) -> None:
        self._last()
        self._loop.stop()


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
        self._lingering: BatchWindow | None = None
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
            done: See `BatchWindow`, as `last`.
            last: Called in the loop at the end.
        """
        loop = self._loop
        assert loop is not None
        if self._over:
            return
        self._lingering = lingering = BatchWindow(loop, self._look, linger, done, last)
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


# SEAM menv.serving.slices
# Slices: long work of the loop, a few milliseconds at a time, so that everybody else is heard in between.
#
# Sessions hand in work; it knows nothing of what the work is.


Work = Iterator[object]
Then = Callable[[Exception | None], None]

SLICE_S = 0.001
"""Seconds of work before others have their turn."""
_SHORT_S = 0.0005
"""Work that takes less is not counted."""


class CooperativeScheduler:
    """Works of one loop, which take turns. Everything is called in the loop's thread."""

    def __init__(self) -> None:
        self._works: deque[tuple[Work, Then]] = deque()
        # Whether this round of the loop has had its slice.
        self._tired = False

    def run(self, work: Work, then: Then) -> None:
        """Do work: at once, as far as it goes in a slice, unless this round has had its slice; the rest later.

        Args:
            work: Each step of it should be short.
            then: Called when it is done, with what it raised; perhaps before this returns.
        """
        if self._tired:
            self._works.append((work, then))
        else:
            self._go_on(work, then)

    def drop(self, work: Work) -> None:
        """Do no more of some work; nobody is told."""
        self._works = deque(one for one in self._works if one[0] is not work)

    def _turn(self) -> None:
        self._tired = False
        if self._works:
            self._go_on(*self._works.popleft())

    def _go_on(self, work: Work, then: Then) -> None:
        start = perf_counter()
        raised: Exception | None = None
        done = False
        try:
            for _ in work:
                if perf_counter() - start > SLICE_S:
                    break
            else:
                done = True
        except Exception as error:
            raised, done = error, True
        if not done:
            self._works.append((work, then))
        if self._works or perf_counter() - start > _SHORT_S:
            self._tired = True
            asyncio.get_running_loop().call_soon(self._turn)
        if done:
            then(raised)
