"""Wall time of real processes, from their start to the result that they print.

A process prints one JSON object on a line of its own when it has its result; it may print anything before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Run(NamedTuple):
    """What a process printed, and when it did."""

    seconds: float
    result: dict[str, Any]


def run(*arguments: object) -> Run:
    """Run Python with `arguments` in the project's folder and wait for its last JSON line.

    Raises:
        RuntimeError: The process failed, or printed no JSON.
    """
    start = time.perf_counter()
    seconds, result = 0.0, None
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                seconds, result = time.perf_counter() - start, json.loads(line)
    if process.returncode or result is None:
        raise RuntimeError(
            f"{' '.join(command[1:])}: exit status {process.returncode}, expected 0 and a line of JSON; "
            "run it by hand to see why"
        )
    return Run(seconds, result)
