"""Objects that live elsewhere in tests."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np


def leave(status: int = 0) -> NoReturn:
    """End this process at once, as a fault in C does."""
    os._exit(status)


class Counter:
    """Counts what it is asked.

    Args:
        start: What it begins with.
        folder: Where it notes that it was stopped.
    """

    def __init__(self, start: int = 0, folder: str = "") -> None:
        self.count = start
        self._folder = folder

    def add(self, number: int, parcel: Any = 0) -> int:
        self.count += number + int(np.sum(parcel))
        return self.count

    def echo(self, *values: Any) -> Any:
        return values if len(values) != 1 else values[0]

    def changed(self, values: dict[str, Any]) -> list[str]:
        """Write into what came, where that is possible, and return which arrays could not be written to."""
        fixed = [name for name, value in values.items() if not value.flags.writeable]
        for name in set(values) - set(fixed):
            values[name][...] = 0
        return fixed

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def lock(self) -> Any:
        return [threading.Lock()]

    def raises(self, error: Exception) -> None:
        raise error

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def says(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")

    def prints(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")

    def closes_stderr(self) -> None:
        os.close(2)

    def reads_stdin(self) -> str:
        return sys.stdin.read()

    def forks(self) -> int:
        """Leave a child behind that does nothing for a while."""
        child = os.fork()
        if not child:
            time.sleep(60)
            leave()
        return child

    def runs(self) -> int:
        """Start another program."""
        nothing = subprocess.DEVNULL
        return subprocess.Popen(["sleep", "600"], stdin=nothing, stdout=nothing, stderr=nothing).pid

    def dies(self, how: str, words: str = "") -> None:
        sys.stderr.write(words)
        match how:
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                leave(3)
            case "sys.exit":
                sys.exit(4)
            case "crash":
                ctypes.string_at(0)

    def stop(self) -> None:
        if self._folder:
            (Path(self._folder) / str(os.getpid())).write_text("stopped")


class Stubborn(Counter):
    """Does not want to end."""

    def stop(self) -> None:
        time.sleep(60)


class Unclosable(Counter):
    """Raises when it is stopped."""

    def stop(self) -> None:
        raise RuntimeError("the door\nis stuck")


class Unmakeable:
    """Cannot be made."""

    def __init__(self, why: str) -> None:
        raise ValueError(why)


class SecretError(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, text: str, more: int) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def raise_secret() -> None:
    raise SecretError("nobody can read this", 5)
