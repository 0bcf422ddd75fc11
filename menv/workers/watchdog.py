"""A watchdog: ends this process when an environment in it does not return.

`menv.algorithms.rollout_worker` has one where there is an `env_timeout`, and sets a limit to the creation of
its environments. Nobody can interrupt an environment that hangs, least of all one that never lets go of the
interpreter; so a timer outside of Python ends the process, having written where every thread stood to stderr, which
whoever started the process shows.
"""

from __future__ import annotations

import faulthandler
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from types import TracebackType

CREATION_S = 60.0
"""How long environments may take at least until they are there, which includes the import of what they need."""
_STDERR = 2
_FIRST = "Timeout ("
FATAL = "Fatal Python error"
_NO_TIMER = (FATAL, "Current thread ", "Stack (")
"""What `faulthandler` writes of a process that crashes or is asked where it stands, and not where a timer rings."""
_THREAD = "(most recent call first)"
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')


def where_it_hung(words: str) -> str | None:
    """Return where a process stood that a watchdog ended, such as "step (world.py:41)".

    Args:
        words: What it wrote to stderr last; None is returned if no watchdog wrote that.
    """
    # With faulthandler.enable() or PYTHONFAULTHANDLER, one that crashes writes down where its threads stand, too.
    no_timer = any(line.startswith(_NO_TIMER) for line in words.splitlines())
    if _FIRST not in words and (no_timer or _THREAD not in words):
        return None
    # The main thread is the last one; its first frame is the innermost.
    frame = _FRAME.search(words.rpartition(_THREAD)[2])
    if frame is not None:
        return f"{frame[3]} ({PurePath(frame[1]).name}:{frame[2]})"
    # It is written while threads run, and Python may crash over one that moves.
    return "a place that could not be written down" if _FIRST in words else None


def _pause(seconds: float) -> float:
    """Return how long to wait between two looks, about a second: the timer rings in the middle of a pause.

    It writes down where every thread stands, and would crash over one that wakes up meanwhile.
    """
    return seconds / (max(3, math.ceil(seconds)) + 0.5)


def last_of(lines: Sequence[str], most: int) -> Sequence[str]:
    """Return so many of the last lines at most: where a thread stood in the end, the innermost frames go first.

    The line above the threads, which says why they were written down, is kept.

    Args:
        lines: What a process wrote to stderr.
        most: How many.
    """
    start = max(0, len(lines) - most)
    heads = [place for place, line in enumerate(lines) if _THREAD in line]
    if heads and heads[-1] < start:
        start = heads[-1]
    why = [line for line in lines[:start] if heads and line.startswith((_FIRST, FATAL))][-1:]
    return [*why, *lines[start : start + most - len(why)]]


def creation_limit(env_timeout: float | None) -> float | None:
    """Return how long environments may take until they are there; None is for ever."""
    return None if env_timeout is None else max(CREATION_S, env_timeout)


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Let what is done within take so long at most, or for ever with None."""
    if seconds is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        if seconds is not None:
            faulthandler.cancel_dump_traceback_later()


class Watchdog:
    """Watches while it is entered.

    Args:
        seconds: How long nothing may change; None watches nothing.
        progress: Returns a number that changes when something has been done; called from a thread.
    """

    def __init__(self, seconds: float | None, progress: Callable[[], int]) -> None:
        self._seconds = seconds
        self._progress = progress
        self._watches = threading.Event()
        self._lock = threading.Lock()
        if seconds is not None:
            threading.Thread(target=self._look, args=(seconds,), name="menv watchdog", daemon=True).start()

    def __enter__(self) -> None:
        if self._seconds is not None:
            self._set(self._seconds)
            self._watches.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._watches.clear()
            if self._seconds is not None:
                faulthandler.cancel_dump_traceback_later()

    def _look(self, seconds: float) -> None:
        pause, before = threading.Event(), None
        while True:
            self._watches.wait()
            pause.wait(_pause(seconds))
            now = self._progress()
            if now != before:
                before = now
                with self._lock:
                    if self._watches.is_set():
                        self._set(seconds)

    def _set(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
