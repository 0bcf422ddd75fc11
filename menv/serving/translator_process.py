"""One translator process, as the server sees it: started, asked, killed, and never left behind.

`Translation` has one at a time. The process ends by itself when its input does, so also when the server is killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from threading import Timer

import menv
from menv.serving.pipe_frames import Kind, read_frame, write_frame

_MODULE = "menv.serving.translator"
_START_S = 60.0
_END_S = 2.0
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Nothing here computes; threads of numerical libraries would only take memory."""


class TranslatorProcess:
    """A process. All but `kill` wait, and are called in one thread.

    Raises:
        OSError: No process can be started.
    """

    def __init__(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise OSError("no interpreter that could be started, only a program that has one inside")
        self._process = subprocess.Popen(
            # -P leaves the working directory out, where anybody may have left modules.
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )

    def start(self, setup: bytes) -> bool:
        """Tell it what clients play; return whether it is ready then."""
        late = Timer(_START_S, self.kill)
        late.start()
        try:
            answer = self._exchange(Kind.SETUP, setup)
        finally:
            late.cancel()
        return answer is not None and answer[0] is Kind.READY

    def ask(self, body: bytes) -> tuple[Kind, bytes] | None:
        """Have it read a body; return its answer, None if it ended instead."""
        return self._exchange(Kind.BODY, body)

    def kill(self) -> None:
        """Have it end at once; from any thread."""
        self._process.kill()

    def end(self) -> None:
        """Wait for its end, and free what it took."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        for pipe in (process.stdin, process.stdout):
            # What was not written yet cannot be any more.
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _exchange(self, kind: Kind, data: bytes) -> tuple[Kind, bytes] | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            write_frame(self._process.stdin, kind, data)
            return read_frame(self._process.stdout)
        return None


def _environment() -> dict[str, str]:
    """Return the environment of the process: it finds this very package, wherever that came from."""
    root = str(Path(menv.__file__).resolve().parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": os.pathsep.join(paths)}
