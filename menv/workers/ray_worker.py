"""What runs in an actor of Ray: it makes an object and calls its methods.

`menv.workers.ray_engine` starts it. What it does is `menv.workers.worker_process`; here is what is Ray's.
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
    """Where an actor lives.

    Attributes:
        pid: Of its process.
        node: The id of its node, in hex digits.
        stderr: The file that its process writes to, on its node.
    """

    pid: int
    node: str
    stderr: str


def boxed(parts: Parts) -> Parts:
    """Return parts in a form in which Ray does not copy them into its own pickle."""
    return [PickleBuffer(part) for part in parts]


class RayWorker:
    """An actor; Ray calls its methods one after the other."""

    def __init__(self) -> None:
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")
        os.register_at_fork(after_in_child=functools.partial(_leave, _sockets()))
        self._home = WorkerProcess()

    def hello(self, paths: Sequence[str]) -> RayWorkerLocation:
        """Say where this is.

        Args:
            paths: Where the driver looks for modules; those that exist here are looked at too, after Ray's own.
        """
        sys.path.extend(path for path in paths if path not in sys.path and os.path.exists(path))
        stderr = ""
        with suppress(OSError):
            stderr = os.readlink("/proc/self/fd/2")
        return RayWorkerLocation(os.getpid(), ray.get_runtime_context().get_node_id(), stderr)

    def ask(self, question: Parts, parcel: Parts | None = None) -> Parts:
        """Answer one question; see `WorkerProcess.answer`."""
        return boxed(self._home.answer(question, parcel))

    def end(self) -> None:
        """Let the object end in its own way, then the actor."""
        self._home.stop()
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


def _leave(sockets: dict[int, tuple[int, int]]) -> None:
    """Close those of Ray in a process that the object has forked: Ray takes an actor to live while one is open."""
    for fd, known in sockets.items():
        with suppress(OSError):
            seen = os.fstat(fd)
            if (seen.st_dev, seen.st_ino) == known:
                os.close(fd)
