"""How a worker process exits: quickly, once its work is done.

Tearing down an interpreter with numpy and ONNX Runtime takes longer than the rest of the exit, while the driver waits.
As in forked processes of `multiprocessing`, that part is skipped: non-daemon threads are joined, `atexit` functions
run, garbage is collected and open files are flushed, but finalizers of module contents do not run.

A worker process imports this module first, because `atexit` calls the functions registered first last.
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
