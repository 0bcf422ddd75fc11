"""Names that menv picks: each belongs to one run, one process and one thread."""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from menv.algorithms.training.crash_capsules import write_capsule
from menv.offline import read_episodes
from menv.tracking import next_run_dir

RECORDING = """
import sys
from menv.algorithms import PPO
from menv.offline import RecordCallbacks
from tests.offline.worlds import SPACES, Comings

config = {
    "rollout_fragment_length": 30, "seed": int(sys.argv[2]), "callbacks": RecordCallbacks(sys.argv[1]),
    "multiagent": {"policies": list(SPACES), "policy_mapping_fn": lambda agent: agent},
}
with PPO(env=Comings, config=config) as algo:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(20):
        algo.sample()
"""


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns within a call."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_runs_that_record_into_one_path_keep_all_their_episodes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RECORDING, str(tmp_path / "run.parquet")]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    runs = [subprocess.Popen([*command, str(seed)], **pipes) for seed in range(2)]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    assert [(run.communicate()[0], run.returncode) for run in runs] == [("", 0)] * 2
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == [f"run-0-{number:05d}.parquet" for number in range(1, 41)]
    # Each fragment of 30 steps ends at least one episode of at most 12 steps.
    assert all(list(read_episodes(path)) for path in files)


def test_no_two_get_the_same_run_folder(tmp_path: Path, eager_threads: None) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: next_run_dir("CartPole-v1", "PPO", tmp_path / "runs"), range(160)))
    assert sorted(path.name for path in paths) == [
        f"CartPole-v1-PPO-{number:03d}" for number in range(1, 161)
    ]
    assert all(re.fullmatch(r"CartPole-v1-PPO-\d+", path.name) for path in (tmp_path / "runs").iterdir())


def test_no_two_faults_get_the_same_capsule(tmp_path: Path, eager_threads: None) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(
            pool.map(lambda number: write_capsule(tmp_path, {"actions": [number]}, set()), range(80))
        )
    assert len({*paths} - {None}) == 80
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{number:03d}.json" for number in range(1, 81)
    ]
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 80
