"""Whether an environment can be closed, twice, and leaves nothing running.

`menv.checking.check` runs it last, on copies that it made itself.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from menv.checking.report import Report
from menv.checking.stage import Stage, describe

_PATIENCE = 2.0
"""Seconds that threads and processes have to end after close."""


_HELPERS = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
)
"""Where Python keeps the numbers of processes of its own, which outlive whoever needed them first."""
_OVER = (b"Z", b"X", b"x")
"""States of processes that have ended and that nobody has waited for yet."""


@dataclass(frozen=True)
class _Child:
    """A child process that the system knows, by whatever means it was started.

    Numbers are given again: with its start a process is told from one that had its number before.
    """

    pid: int
    started: int
    program: str = field(compare=False)

    @property
    def name(self) -> str:
        return f"{self.program} (process {self.pid})"


def running() -> set[object]:
    """Return the threads and child processes of this process; those of `subprocess` and `os.fork` on Linux alone."""
    known = multiprocessing.active_children()
    apart = {os.getpid(), *(one.pid for one in known), *_helpers()}
    return {*threading.enumerate(), *known, *(one for one in _children() if one.pid not in apart)}


def _helpers() -> Iterator[int | None]:
    for module, owner, number in _HELPERS:
        yield getattr(getattr(sys.modules.get(module), owner, None), number, None)


def _children() -> Iterator[_Child]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # One that ends meanwhile is none.
            head, _, rest = stat.read_bytes().rpartition(b")")
            pid, _, program = head.partition(b" (")
            state, parent, *more = rest.split()
            if int(parent) == os.getpid() and state not in _OVER:
                yield _Child(int(pid), int(more[17]), program.decode(errors="replace"))


def check_closing(report: Report, stages: Iterable[Stage], before: set[object]) -> None:
    """Close every stage, and the first one twice.

    Args:
        report: Takes the findings.
        stages: What was played on.
        before: What ran before there was any of them.
    """
    for number, stage in enumerate(stages):
        try:
            stage.close()
        except (Exception, SystemExit) as error:
            report.add("ME080", f"close raised {describe(error)}")
            continue
        if number == 0:
            try:
                stage.close()
            except (Exception, SystemExit) as error:
                report.add("ME081", f"the second close raised {describe(error)}")
    left = _left_after(_PATIENCE, before)
    if left:
        names = sorted(str(getattr(one, "name", one)) for one in left)[:4]
        report.add("ME082", f"still running after close: {', '.join(names)}")


def _left_after(patience: float, before: set[object]) -> set[object]:
    deadline = time.monotonic() + patience
    left = running() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = running() - before
    return left
