"""A watchdog ends this process when an environment in it does not return.

`menv.algorithms.rollout_worker` uses one with an `env_timeout`, and limits the creation of environments. Python cannot
interrupt an environment that hangs, so a timer of `faulthandler` writes the stack of every thread to stderr and ends
the process; the driver shows that.
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
"""Smallest time limit of the creation of environments, imports included."""
_STDERR = 2
_FIRST = "Timeout ("
FATAL = "Fatal Python error"
_NO_TIMER = (FATAL, "Current thread ", "Stack (")
"""First words of `faulthandler` reports that no timer caused."""
_THREAD = "(most recent call first)"
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')


def where_it_hung(stderr: str) -> str | None:
    """Return where a watchdog ended a process, such as "step (world.py:41)"; None if its stderr shows no watchdog."""
    # With faulthandler.enable() or PYTHONFAULTHANDLER, a crash writes stacks, too.
    no_timer = any(line.startswith(_NO_TIMER) for line in stderr.splitlines())
    if _FIRST not in stderr and (no_timer or _THREAD not in stderr):
        return None
    # The main thread comes last; its first frame is the innermost.
    frame = _FRAME.search(stderr.rpartition(_THREAD)[2])
    if frame is not None:
        return f"{frame[3]} ({PurePath(frame[1]).name}:{frame[2]})"
    # Stacks are written while threads run, which may crash Python.
    return "a place that could not be written down" if _FIRST in stderr else None


def _pause(seconds: float) -> float:
    """Return the pause between two checks, about a second; the timer expires in the middle of a pause.

    The timer reads the stacks of running threads and would crash if this one woke up meanwhile.
    """
    return seconds / (max(3, math.ceil(seconds)) + 0.5)


def last_of(lines: Sequence[str], most: int) -> Sequence[str]:
    """Return at most `most` of the last lines of a stderr, beginning at the last stack if it is cut.

    The line above the stacks, which gives the reason, is kept.
    """
    start = max(0, len(lines) - most)
    stacks = [place for place, line in enumerate(lines) if _THREAD in line]
    if stacks and stacks[-1] < start:
        start = stacks[-1]
    why = [line for line in lines[:start] if stacks and line.startswith((_FIRST, FATAL))][-1:]
    return [*why, *lines[start : start + most - len(why)]]


def creation_limit(env_timeout: float | None) -> float | None:
    """Return how long the creation of environments may take; None is unlimited."""
    return None if env_timeout is None else max(CREATION_S, env_timeout)


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Limit the time of a block; None is unlimited."""
    if seconds is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        if seconds is not None:
            faulthandler.cancel_dump_traceback_later()


class Watchdog:
    """Ends the process if `progress()` does not change for `seconds` while it is entered; None disables it."""

    def __init__(self, seconds: float | None, progress: Callable[[], int]) -> None:
        self._seconds = seconds
        self._progress = progress
        self._watches = threading.Event()
        self._lock = threading.Lock()
        if seconds is not None:
            threading.Thread(target=self._watch, args=(seconds,), name="menv watchdog", daemon=True).start()

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

    def _watch(self, seconds: float) -> None:
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
