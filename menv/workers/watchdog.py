"""A watchdog ends this process when an environment in it does not return, or when the process is frozen.

`menv.algorithms.rollouts` uses one with an `env_timeout`, and limits the creation of environments. Python cannot
interrupt an environment that hangs and may keep every thread waiting, so a second small process counts the seconds
without a sign of life. It writes why, lets `faulthandler` write the stack of every thread to stderr, and ends the
process; the driver shows that. Where all processes are paused, as with the lid of a laptop or `docker pause`, it does
not count.
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

CREATION_S = 60.0
"""Smallest time limit of the creation of environments, imports included."""
FATAL = "Fatal Python error"
"""How the line begins that says why a process ends; stacks follow it."""
_STDERR = 2
_DUMP = signal.SIGUSR2


class Watchdog:
    """Ends the process if `progress()` does not change for `seconds` while it is entered; None disables it.

    It ends a frozen process in any case. `words` say why.
    """

    def __init__(self, seconds: float | None, progress: Callable[[], int], words: str = "") -> None:
        self._progress = progress
        self._watches = False
        if seconds is None:
            return
        # Progress is counted in env steps; callbacks and policies run between them.
        late = f"an environment, or its callback or policy, did not return for env_timeout={seconds:g} s"
        # A pause of both processes is one tick, however long it lasts.
        ticks = max(3, math.ceil(seconds))
        tick = seconds / ticks
        faulthandler.register(_DUMP, file=_STDERR)
        # One tick more: a sign of life may come a tick after the progress that it is for.
        args = [os.getpid(), ticks + 1, tick, int(_DUMP), f"{FATAL}: {words or late}"]
        watcher = subprocess.Popen(
            [sys.executable, "-ISc", _WATCH, *map(str, args)], stdin=subprocess.PIPE, stderr=_STDERR, bufsize=0,
            # Outside of the group of this process, which may be frozen or ended as a whole.
            process_group=0,
        )  # fmt: skip
        shows = (weakref.ref(self), watcher, tick)
        threading.Thread(target=_show_life, args=shows, name="menv watchdog", daemon=True).start()

    def __enter__(self) -> None:
        self._watches = True

    def __exit__(self, *_: object) -> None:
        self._watches = False


def creation(env_timeout: float | None) -> Watchdog:
    """Return what limits the time in which environments are created; None is unlimited."""
    seconds = max(CREATION_S, env_timeout or 0.0)
    words = f"an environment was not created within {seconds:g} s; fix it, or raise env_timeout"
    return Watchdog(None if env_timeout is None else seconds, lambda: 0, words)


def _show_life(watchdog: weakref.ref[Watchdog], watcher: subprocess.Popen[bytes], tick: float) -> None:
    """Write to the watcher with each progress; without its watchdog the watcher ends."""
    before = None
    with watcher:
        assert watcher.stdin is not None
        while (one := watchdog()) is not None:
            # None while nothing has to progress.
            now = one._progress() if one._watches else None
            del one
            if now is None or now != before:
                # Without the watcher the process continues unwatched.
                with suppress(OSError):
                    watcher.stdin.write(b".")
            before = now
            time.sleep(tick)


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
