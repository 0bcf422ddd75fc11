"""A watchdog ends this process when an environment in it does not return, or when the process is frozen.

`menv.algorithms.rollouts` uses one with an `env_timeout`, and limits the creation of environments. Python cannot
interrupt an environment that hangs and may keep every thread waiting, so a second small process counts the seconds
without a sign of life. It lets `faulthandler` write the stack of every thread to stderr and ends the process; the
driver shows that. Where all processes are paused, as with the lid of a laptop or `docker pause`, it does not count.
"""

from __future__ import annotations

import faulthandler
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
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
    if seconds is None:
        yield
        return
    watcher = _Watcher(seconds)
    try:
        yield
    finally:
        watcher.close()


class Watchdog:
    """Ends the process if `progress()` does not change for `seconds` while it is entered; None disables it.

    It ends a frozen process in any case.
    """

    def __init__(self, seconds: float | None, progress: Callable[[], int]) -> None:
        self._progress = progress
        self._watches = False
        if seconds is not None:
            args = (weakref.ref(self), _Watcher(seconds))
            threading.Thread(target=_show_life, args=args, name="menv watchdog", daemon=True).start()

    def __enter__(self) -> None:
        self._watches = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watches = False

    def look(self) -> int | None:
        """Return the progress, None while nothing has to progress."""
        return self._progress() if self._watches else None


def _show_life(watchdog: weakref.ref[Watchdog], watcher: _Watcher) -> None:
    before = None
    while (one := watchdog()) is not None:
        now = one.look()
        del one
        if now is None or now != before:
            watcher.sign_of_life()
        before = now
        time.sleep(watcher.tick)
    watcher.close()


class RunningClock:
    """Counts the seconds for one who looks at least once in `longest` seconds while it waits.

    A pause of this process, or a time in which no call waits, counts as `longest`, a part of `env_timeout`.
    """

    def __init__(self, env_timeout: float | None) -> None:
        self.longest = min(1.0, (env_timeout or math.inf) / 4)
        self._seen, self._now = time.monotonic(), 0.0

    def now(self) -> float:
        """Return the seconds."""
        moment = time.monotonic()
        self._now += min(moment - self._seen, self.longest)
        self._seen = moment
        return self._now


class _Watcher:
    """The process that ends this one after `seconds` without a sign of life, counted in ticks of at most a second.

    A pause of both is one tick, however long it lasts.
    """

    def __init__(self, seconds: float) -> None:
        ticks = max(3, math.ceil(seconds))
        self.tick = seconds / ticks
        faulthandler.register(_DUMP, file=_STDERR)
        # One tick more: a sign of life may come a tick after the progress that it is for.
        words = [os.getpid(), ticks + 1, self.tick, int(_DUMP), f"{_FIRST}{timedelta(seconds=seconds)})!"]
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _WATCH, *map(str, words)], stdin=subprocess.PIPE, stderr=_STDERR, bufsize=0,
            # Outside of the group of this process, which may be frozen or ended as a whole.
            process_group=0,
        )  # fmt: skip

    def sign_of_life(self) -> None:
        assert self._process.stdin is not None
        # Without the watcher the process continues unwatched.
        with suppress(OSError):
            self._process.stdin.write(b".")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


_DUMP = signal.SIGUSR2
_WATCH = """
import os, select, signal, sys, time
pid, ticks, tick, dump, words = sys.argv[1:]
pid, left = int(pid), int(ticks)
while left and os.getppid() == pid:
    left -= 1
    if select.select([0], [], [], float(tick))[0]:
        left = int(ticks)
        if not os.read(0, 4096):
            break
else:
    if os.getppid() != pid:
        sys.exit()
    os.write(2, words.encode() + b"\\n")
    os.kill(pid, int(dump))
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
"""
