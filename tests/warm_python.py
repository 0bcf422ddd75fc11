"""Python programs in processes of their own that find torch and menv imported already.

Each is a fork of one process that has imported it and done nothing else, so that nothing of one program reaches
another. Importing takes longer than most programs of the tests run. What is tested about imports, or about how a
process starts, has no use for it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from tests.house.sources import ROOT


class Later(ModuleType):
    """Stands for a module that is imported when it is first used.

    onnxruntime begins a thread when it is imported: a fork of it waits for ever for what that held.
    """

    @classmethod
    def stand_for(cls, name: str) -> None:
        stand_in = cls(name)
        # Whoever asks whether it is installed is told so.
        stand_in.__spec__ = importlib.util.find_spec(name)
        sys.modules[name] = stand_in

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules[self.__name__] is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class Parent:
    """The process that the others come from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm_python"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip
        atexit.register(self.end)

    def end(self) -> None:
        # And what it has started, if that runs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        atexit.unregister(self.end)

    def run(self, job: dict[str, Any], timeout: float) -> int:
        """Return the exit status of a program."""
        asks, answers = self._process.stdin, self._process.stdout
        assert asks is not None
        assert answers is not None
        asks.write(json.dumps(job) + "\n")
        asks.flush()
        if not select.select([answers], [], [], timeout)[0]:
            self.end()
            the_parent.cache_clear()
            raise TimeoutError(f"{job['argv']} has not ended after {timeout:g} s")
        return int(answers.readline())


@lru_cache(maxsize=1)
def the_parent() -> Parent:
    """Return the parent of all programs of this test run."""
    return Parent()


def run_warm(
    arguments: Sequence[str], folder: Path = ROOT, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a program as `python` would.

    Args:
        arguments: A script, or -m and a module, and what it is told.
        folder: Where it runs.
        timeout: Seconds that it may take.
    """
    command = [sys.executable, *arguments]
    if not hasattr(os, "fork"):
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
        )
    with tempfile.TemporaryDirectory() as told:
        files = [str(Path(told, name)) for name in ("out", "err")]
        job = {"argv": list(arguments), "folder": str(folder), "files": files}
        status = the_parent().run(job, timeout)
        out, err = (Path(name).read_text("utf-8") for name in files)
    return subprocess.CompletedProcess(command, status, out, err)


def _next_job(answers: IO[str]) -> dict[str, Any] | None:
    """Start a process for each job, and return the job in it; None at the end."""
    for line in sys.stdin:
        with warnings.catch_warnings():
            # Later Pythons warn of threads of native libraries, which sleep here.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            job: dict[str, Any] = json.loads(line)
            return job
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        answers.flush()
    return None


def _become(job: dict[str, Any]) -> None:
    """Do what a job says, as a program of its own."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    for number, name in enumerate(job["files"], 1):
        with open(name, "wb") as file:
            os.dup2(file.fileno(), number)
    os.chdir(job["folder"])
    script, *more = job["argv"]
    if script == "-m":
        sys.argv, sys.path[0] = [more[0], *more[1:]], job["folder"]
        runpy.run_module(more[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [script, *more], str(Path(script).resolve().parent)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    import torch  # noqa: F401

    Later.stand_for("onnxruntime")
    from menv.algorithms import DQN, PPO  # noqa: F401

    gc.collect()
    gc.freeze()

    with contextlib.suppress(KeyboardInterrupt):
        found = _next_job(sys.stdout)
        if found is not None:
            _become(found)
