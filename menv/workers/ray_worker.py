"""The Ray actor that holds an object; `ray_engine` starts it.

`WorkerProcess` does the work, this module adds what Ray needs.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pickle import PickleBuffer
from typing import Any, NamedTuple

import ray

from menv.workers.pipe_channel import Parts
from menv.workers.worker_process import ONE_THREAD, WorkerProcess


class RayWorkerLocation(NamedTuple):
    """Process id, node id in hex digits, and the stderr file of an actor on its node."""

    pid: int
    node: str
    stderr: str


def boxed(parts: Parts) -> Parts:
    """Wrap parts so that Ray does not copy them into its pickle."""
    return [PickleBuffer(part) for part in parts]


class RayWorker:
    """The actor; Ray calls its methods one after the other."""

    def __init__(self) -> None:
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")
        os.register_at_fork(after_in_child=functools.partial(_close_sockets, _sockets()))
        self._worker = WorkerProcess()

    def hello(self, paths: Sequence[str]) -> RayWorkerLocation:
        """Append the driver's module paths that exist here, and return the location."""
        sys.path.extend(path for path in paths if path not in sys.path and os.path.exists(path))
        stderr = ""
        with suppress(OSError):
            stderr = os.readlink("/proc/self/fd/2")
        return RayWorkerLocation(os.getpid(), ray.get_runtime_context().get_node_id(), stderr)

    def ask(self, request: Parts, parcel: Parts | None = None) -> Parts:
        """Answer a request; see `WorkerProcess.answer`."""
        return boxed(self._worker.answer(request, parcel))

    def end(self) -> None:
        """Stop the object, then the actor."""
        self._worker.stop()
        leave: Any = ray.actor.exit_actor
        leave()


def _sockets() -> dict[int, tuple[int, int]]:
    found = {}
    with suppress(FileNotFoundError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                seen = os.fstat(fd)
                if stat.S_ISSOCK(seen.st_mode):
                    found[fd] = (seen.st_dev, seen.st_ino)
    return found


def _close_sockets(sockets: dict[int, tuple[int, int]]) -> None:
    """Close Ray's sockets in a fork of the actor: Ray considers the actor alive while one is open."""
    for fd, known in sockets.items():
        with suppress(OSError):
            seen = os.fstat(fd)
            if (seen.st_dev, seen.st_ino) == known:
                os.close(fd)
