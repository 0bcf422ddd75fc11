"""The working tree compared with another commit: `python -m benchmarks --against COMMIT [--only PREFIX ...]`.

Each checkout has a process. They run blocks of the same work in alternation, and one waits while the other runs.
A ratio is the old time by the new one: 1 is equal, more is better.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.compared_lines import LINES
from benchmarks.processes import ROOT

BLOCK_S = 0.15
PAIRS = 20
LEAST = 0.97
"""A line with a smaller ratio of CPU seconds is slower."""
Times = dict[str, float]


class Side:
    """The process of one checkout; its folder decides which menv is imported."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.compared_lines"]
        env = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            command, cwd=root, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, name: str, calls: int) -> Times:
        """Return the times of some calls of a line; 0 sets it up."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, calls]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"benchmarks: the process of {name} ended, expected its times; see its error")
        times: Times = json.loads(answer)
        return times


@contextmanager
def _checkouts(commit: str) -> Iterator[list[Path]]:
    """Yield folders with the package of a commit and a copy of the working tree's, both with its benchmarks."""
    packed = subprocess.run(["git", "archive", commit, "menv"], cwd=ROOT, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        roots = [Path(folder, name) for name in ("old", "new")]
        files.extractall(roots[0], filter="data")
        shutil.copytree(ROOT / "menv", roots[1] / "menv", ignore=shutil.ignore_patterns("__pycache__"))
        for root in roots:
            (root / "benchmarks").symlink_to(ROOT / "benchmarks")
        yield roots


def measure(sides: Sequence[Side], name: str, pairs: int) -> list[list[Times]]:
    """Return the times of each pair of blocks, the old checkout's first."""
    for side in sides:
        side.ask(name, 0)
    calls = max(1, round(BLOCK_S / min(side.ask(name, 1)["cpu"] for side in sides)))
    found = []
    for number in range(pairs):
        order = (1, -1)[number % 2]
        found.append([side.ask(name, calls) for side in sides[::order]][::order])
    return found


def ratios(pairs: Sequence[Sequence[Times]], unit: str) -> list[float]:
    """Return the quartiles of the ratios of the pairs; a load that changes with time is in both blocks of a pair."""
    return statistics.quantiles((old[unit] / new[unit] for old, new in pairs), n=4)


def is_slower(pairs: Sequence[Sequence[Times]]) -> bool:
    """Return whether the median is below what counts as equal."""
    return ratios(pairs, "cpu")[1] < LEAST


def report(name: str, pairs: Sequence[Sequence[Times]]) -> str:
    """Return what is printed: the medians, and in brackets the quartiles."""
    text = f"{name:<22}"
    for unit in ("cpu", "wall"):
        low, median, high = ratios(pairs, unit)
        text += f"  {unit} {median:.3f} ({low:.3f} to {high:.3f})"
    return f"{text}  ({len(pairs)} pairs){'  SLOWER' if is_slower(pairs) else ''}"


def compare(commit: str, prefixes: Sequence[str], pairs: int = PAIRS) -> list[str]:
    """Compare with a commit, print each line, and return the names of those that are slower twice.

    The second time has twice the pairs and new processes.
    """
    names = [name for name in LINES if name.startswith(tuple(prefixes))]
    if not names:
        sys.exit(f"--only: no line begins with {' or '.join(prefixes)}, expected some of {', '.join(LINES)}")
    with _checkouts(commit) as roots:
        for times in (1, 2):
            slower = []
            with ExitStack() as stack:
                sides = [Side(root) for root in roots if names]
                for side in sides:
                    stack.enter_context(side.process)
                for name in names:
                    found = measure(sides, name, times * pairs)
                    print(report(name, found), flush=True)
                    if is_slower(found):
                        slower.append(name)
            names = slower
    return names
