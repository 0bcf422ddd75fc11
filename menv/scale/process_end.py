"""How a process of `menv.scale.process_engine` ends: at once, when it has done what it owed anybody.

To take an interpreter apart that has numpy and ONNX Runtime loaded takes longer than all else at its end, while the
driver waits. Processes that `multiprocessing` has forked leave that out too. What comes before it does not change:
threads are joined that are no daemons, functions registered with `atexit` are called, garbage is collected. What was
written to files that nobody closed is flushed; finalizers of what modules still hold do not run.

The first thing that such a process imports, because functions registered first are called last.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from contextlib import suppress
from typing import Any

_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_well = False


def when_well() -> None:
    """Tell that everything has gone well, so that the process ends with exit code 0."""
    global _well
    _well = True


@atexit.register
def _end() -> None:
    if not _well:
        # Whatever was raised decides about the exit code.
        return
    # The collector may close the lower half of a text file before the upper half has handed on what it holds.
    _flush_all()
    gc.collect()
    _flush_all()
    os._exit(0)


def _flush_all() -> None:
    # An object may have put something of its own in their place.
    _flush(sys.stdout)
    _flush(sys.stderr)
    for thing in gc.get_objects():
        # Not `isinstance`, which would ask things that pretend to be another class for it.
        if issubclass(type(thing), _WRITERS):
            _flush(thing)


def _flush(file: Any) -> None:
    # It may be closed, missing, or broken in ways of its own.
    with suppress(Exception):
        file.flush()
