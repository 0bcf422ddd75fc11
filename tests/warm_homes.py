"""Processes of the engine that find numpy, gymnasium and menv imported already.

Each is a fork of one process that has imported them and done nothing else; it reads the same questions, writes to the
same pipes and ends as one does that began from nothing. Importing takes longer than most of them live. Tests of how a
process starts have no use for it; `tests/conftest.py` lists them.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from tests.house.sources import ROOT
from tests.warm_python import Later

_ADOPTS = 36
"""What `prctl` calls PR_SET_CHILD_SUBREAPER: to be the parent of those who lose theirs."""
_LONGEST = 1 << 20


class Forked(subprocess.Popen[bytes]):
    """A process that is a fork of the warm one and yet a child of this one.

    It is told what `menv.workers.process_engine` tells `subprocess.Popen`.
    """

    def _execute_child(self, args: Any, *settings: Any) -> None:
        # As `Popen.__init__` hands them on: the descriptors follow ten other settings.
        env, stdin, stderr = settings[5], settings[9], settings[14]
        job = {"args": args, "env": dict(env), "folder": os.getcwd()}
        try:
            self.pid = the_parent().fork(job, [stdin, 1, stderr])
        finally:
            os.close(stderr)
        self._child_created = True


class Parent:
    """The process that the others come from. It ends when its socket does."""

    def __init__(self) -> None:
        from menv.workers.worker_process import ONE_THREAD

        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_homes"], cwd=ROOT, stdin=theirs.fileno(), start_new_session=True,
                env={**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        atexit.register(self.end)

    def end(self) -> None:
        self._ours.close()
        self._process.wait()

    def fork(self, job: dict[str, Any], files: list[int]) -> int:
        """Return the id of a new child of this process, whose first descriptors are these."""
        # An answer that somebody is interrupted in waiting for is nobody else's.
        told, tell = os.pipe()
        with self._lock, open(told, "rb") as told_here:
            _adopt(True)
            try:
                socket.send_fds(self._ours, [json.dumps(job).encode()], [*files, tell])
                os.close(tell)
                return int(told_here.read())
            finally:
                _adopt(False)


@lru_cache(maxsize=1)
def the_parent() -> Parent:
    """Return the parent of all processes of this test run."""
    return Parent()


@contextmanager
def forked_homes() -> Iterator[None]:
    """Let the engine start forks for a while."""
    from menv.workers import process_engine

    known = vars(process_engine)
    known["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": Forked})
    try:
        yield
    finally:
        known["subprocess"] = subprocess


def _adopt(whether: bool) -> None:
    """Take in processes further down whose own parent ends, or do so no longer."""
    ctypes.CDLL(None).prctl(_ADOPTS, int(whether), 0, 0, 0)


def _next_job(end: socket.socket) -> dict[str, Any] | None:
    """Start a process for each job, and return the job in it; None at the end."""
    while True:
        text, files, _, _ = socket.recv_fds(end, _LONGEST, 4)
        if not text:
            return None
        job: dict[str, Any] = json.loads(text)
        between = os.fork()
        if not between:
            between = os.getpid()
            if os.fork():
                # Whoever takes in the other one is its parent from now on.
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0001)
            end.close()
            _settle(job, files)
            return job
        os.waitpid(between, 0)
        for file in files:
            os.close(file)


def _settle(job: dict[str, Any], files: list[int]) -> None:
    """Have in this process what a new one has from the beginning, and tell its parent that it is there."""
    *own, tell = files
    for number, file in enumerate(own):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["folder"])
    sys.argv = ["-c", job["args"][-1]]
    # Python's own generator is seeded anew in each fork.
    sys.modules["numpy"].random.seed()
    os.setpgid(0, 0)
    os.write(tell, str(os.getpid()).encode())
    os.close(tell)


if __name__ == "__main__":
    import menv.workers.worker_process

    Later.stand_for("onnxruntime")
    # Files of tests import it, and their classes are found there.
    import pytest  # noqa: F401

    import menv.algorithms.dqn.dqn
    import menv.algorithms.ppo.ppo
    import menv.algorithms.rollouts.rollout_worker
    import menv.verify.verify  # noqa: F401

    assert not {"torch", "ray"} & set(sys.modules)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as own:
        found = _next_job(own)
    if found is not None:
        exec(found["args"][-2])
