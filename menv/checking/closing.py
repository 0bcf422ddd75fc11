"""Whether an environment can be closed, twice, and leaves nothing running.

`menv.checking.check` runs it last, on copies that it made itself.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterable

from menv.checking.report import Report
from menv.checking.stage import Stage, describe

_PATIENCE = 2.0
"""Seconds that threads and processes have to end after close."""


def running() -> set[object]:
    """Return the threads and child processes of this process."""
    return {*threading.enumerate(), *multiprocessing.active_children()}


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
    """Return what still runs, after having waited for it."""
    deadline = time.monotonic() + patience
    left = running() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = running() - before
    return left
