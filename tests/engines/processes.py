"""Processes as /proc shows them, and programs that drive engines."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.house.sources import ROOT

PATIENCE_S = 30.0


def eventually(true: Callable[[], object]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Return whether there is such a process, and it is not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def descriptors() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """Return how many bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children(of: int | str = "self") -> set[int]:
    """Return the processes that this one, or another, has started and that still are there, zombies too."""
    found: set[int] = set()
    for task in Path(f"/proc/{of}/task").iterdir():
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def driver(folder: Path, text: str, *args: str, **settings: Any) -> subprocess.Popen[str]:
    """Start a program of a user, a file in a folder of its own.

    Args:
        folder: Where it is written to, and its working directory.
        text: Its code.
        args: Of its command line.
        settings: For `subprocess.Popen`.
    """
    script = folder / "driver.py"
    script.write_text(textwrap.dedent(text))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **settings.pop("env", {})}
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, str(script), *args]
    return subprocess.Popen(command, cwd=folder, env=env, text=True, **{**piped, **settings})


def ran(program: subprocess.Popen[str]) -> str:
    """Wait for a program, which must end well, and return what it printed."""
    out, err = program.communicate(timeout=4 * PATIENCE_S)
    assert program.returncode == 0, err
    return out


def open_files() -> list[int]:
    """Return the numbers of the files that this process has open."""
    return sorted(map(int, os.listdir("/proc/self/fd")))


@contextmanager
def files_left(free: int) -> Iterator[None]:
    """Let this process open so many more files and no others."""
    before, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files()[-1] + 10, before[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for number in taken:
            os.close(number)
