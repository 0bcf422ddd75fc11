"""A process that is killed while it saves leaves a checkpoint that loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def kill(times: int, seed: int, folder: Path) -> int:
    """Kill a process that saves, so many times; return how often that interrupted the writing of a folder."""
    script = [
        sys.executable,
        "-m",
        "tests.checkpoints.saving_until_killed",
        str(folder),
        str(times),
        str(seed),
    ]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, interrupted = map(int, done.stdout.split())
    assert told == times
    return interrupted


@pytest.mark.slow
def test_a_checkpoint_loads_after_each_of_20_kills(tmp_path: Path) -> None:
    assert kill(20, 1, tmp_path) > 0


@pytest.mark.soak
def test_a_checkpoint_loads_after_each_of_200_kills(tmp_path: Path) -> None:
    assert kill(200, 2, tmp_path) > 20
