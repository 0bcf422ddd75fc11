"""Names that menv picks: each belongs to one run, one process and one thread."""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from menv.algorithms import PPO
from menv.algorithms.training.crash_capsules import write_capsule
from menv.offline import RecordCallbacks, read_episodes
from menv.tracking import next_run_dir
from tests.offline.worlds import SPACES, Comings

RECORDING = """
import sys
from tests.offline.test_names_of_files import recorder

with recorder(sys.argv[1], 1) as algo:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(20):
        algo.sample()
"""


def recorder(path: str, seed: int) -> PPO:
    """Return an algorithm that records its episodes."""
    agents = {"policies": list(SPACES), "policy_mapping_fn": lambda agent: agent}
    config = {
        "rollout_fragment_length": 30,
        "seed": seed,
        "callbacks": RecordCallbacks(path),
        "multiagent": agents,
    }
    return PPO(env=Comings, config=config)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns within a call."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_runs_that_record_into_one_path_keep_all_their_episodes(tmp_path: Path) -> None:
    path = str(tmp_path / "run.parquet")
    command = [sys.executable, "-c", RECORDING, path]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with recorder(path, 0) as algo:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("\n")
        other.stdin.flush()
        for _ in range(20):
            algo.sample()
        assert (other.communicate()[0], other.returncode) == ("", 0)
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
