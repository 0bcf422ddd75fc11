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
    """Let the process end quickly, with exit code 0."""
    global _well
    _well = True


@atexit.register
def _end() -> None:
    if not _well:
        # An exception decides the exit code.
        return
    # Before the collector, which may close a file's buffer before its text layer is flushed.
    _flush_all()
    gc.collect()
    _flush_all()
    os._exit(0)


def _flush_all() -> None:
    # The object may have replaced these.
    _flush(sys.stdout)
    _flush(sys.stderr)
    for thing in gc.get_objects():
        # Not `isinstance`, which reads `__class__` of proxies.
        if issubclass(type(thing), _WRITERS):
            _flush(thing)


def _flush(file: Any) -> None:
    # It may be closed, missing or broken.
    with suppress(Exception):
        file.flush()
