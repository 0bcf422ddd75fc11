"""A run on disk: what `learn` writes, what is left after a kill or on a full disk, and what `Run` reads."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from menv import Policy
from menv.algorithms import PPO
from menv.errors import ConfigError
from menv.tracking import Run, RunFolder, Tracker, next_run_dir
from tests.house.sources import ROOT
from tests.worlds import like, raising

SMALL = {"train_batch_size": 64, "sgd_minibatch_size": 64, "seed": 3}


def result(iteration: int, **more: Any) -> dict[str, Any]:
    return {"training_iteration": iteration, "digest": f"d{iteration}", **more}


def test_learn_trains_until_the_number_of_env_steps_and_leaves_everything(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with PPO(env="tictactoe", config=SMALL) as algo:
        last = algo.learn(150, run_dir=path)
    assert last["num_env_steps_sampled"] == 192
    run = Run(path)
    assert run.progress()["num_env_steps_sampled"].tolist() == [64, 128, 192]
    assert [one["training_iteration"] for one in run.results()] == [1, 2, 3]
    assert run.digest == last["digest"]
    assert (run.config["algorithm"], run.config["env"], run.config["config"]["seed"]) == (
        "PPO",
        "tictactoe",
        3,
    )
    assert not run.is_running
    assert isinstance(Policy.from_checkpoint(path), dict)
    assert list(path.glob("events.out.tfevents.*"))


def test_learn_stops_at_a_bound_on_any_result_key(tmp_path: Path) -> None:
    with PPO(env="tictactoe", config=SMALL) as algo:
        assert algo.learn(stop={"info/default_policy/entropy": 0.0})["training_iteration"] == 1
        assert algo.learn(64)["training_iteration"] == 1
        with pytest.raises(ConfigError, match="training_iteration"):
            algo.learn(stop={"training_iterations": 5})
        with pytest.raises(ConfigError):
            algo.learn()
        with pytest.raises(ConfigError, match="run_dir"):
            algo.learn(100, save_every=2)


def test_a_resumed_run_replaces_the_lines_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with PPO(env="tictactoe", config=SMALL) as algo:
        algo.learn(stop={"training_iteration": 4}, run_dir=path, save_every=2)
    whole = [one["digest"] for one in Run(path).results()]
    (path / "checkpoints" / "LATEST").write_text("000002")
    with PPO.from_checkpoint(path) as algo:
        algo.learn(stop={"training_iteration": 5}, run_dir=path)
    run = Run(path)
    assert run.progress()["training_iteration"].tolist() == [1, 2, 3, 4, 5]
    digests = [one["digest"] for one in run.results()]
    assert digests[:2] == whole[:2]
    assert len({*digests}) == 5
    assert len(run.command.splitlines()) == 2


def test_trackers_follow_a_run_and_their_errors_do_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    reasons: list[str] = []
    broken = like(Tracker, result=raising(ValueError("no room")))
    seen = like(Tracker, end=lambda self, reason: reasons.append(reason))
    with caplog.at_level(logging.WARNING, "menv"), PPO(env="tictactoe", config=SMALL) as algo:
        algo.learn(stop={"training_iteration": 3}, trackers=[broken(), seen()])
    assert (
        len([one for one in caplog.records if re.search("Tracker.result .*ValueError: no room", one.message)])
        == 1
    )
    assert reasons == ["training_iteration is 3"]


def test_a_killed_run_keeps_every_complete_iteration(tmp_path: Path) -> None:
    path = tmp_path / "run"
    code = (
        "from menv.algorithms import PPO\n"
        f"PPO(env='tictactoe', config={SMALL!r}).learn(10**9, run_dir={str(path)!r}, save_every=1)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        lines = path / "results.jsonl"
        deadline = time.monotonic() + 100
        while not (lines.is_file() and lines.read_bytes().count(b"\n") >= 3):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert Run(path).is_running
        with pytest.raises(ConfigError):
            RunFolder(path, {}, iteration=1)
        process.send_signal(signal.SIGKILL)
    run = Run(path)
    iterations = [one["training_iteration"] for one in run.results()]
    assert iterations == list(range(1, len(iterations) + 1))
    assert len(run.progress()["training_iteration"]) in (len(iterations) - 1, len(iterations))
    with PPO.from_checkpoint(path) as algo:
        assert algo.iteration >= len(iterations) - 1


def test_reading_a_run_neither_blocks_its_start_nor_leaves_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", {"env": "x"})
    run = Run(folder.path)
    assert run.is_running
    folder.close()
    with (folder.path / ".lock").open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        # Someone else looks at the same time.
        assert not run.is_running
        timer = threading.Timer(0.1, look.close)
        timer.start()
        again = RunFolder(folder.path, {"env": "x"})
    assert run.is_running
    again.close()
    (folder.path / ".lock").unlink()
    assert not run.is_running
    assert not (folder.path / ".lock").exists()


def test_training_continues_on_a_full_disk_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for module in ("run_folder", "tensorboard"):
        monkeypatch.setattr(f"menv.tracking.{module}.append", full)
    with caplog.at_level(logging.WARNING, "menv"), PPO(env="tictactoe", config=SMALL) as algo:
        assert algo.learn(256, run_dir=tmp_path / "run")["training_iteration"] == 4
    assert len([one for one in caplog.records if "No space left" in one.message]) == 1


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError):
        RunFolder(tmp_path, {})
    with pytest.raises(ConfigError, match=r"config\.json"):
        Run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError):
        Run(tmp_path)


def test_runs_are_numbered(tmp_path: Path) -> None:
    assert next_run_dir("CartPole-v1", "PPO", tmp_path).name == "CartPole-v1-PPO-001"
    (tmp_path / "CartPole-v1-PPO-041").mkdir()
    assert next_run_dir("CartPole-v1", "PPO", tmp_path).name == "CartPole-v1-PPO-042"
    assert next_run_dir("games/mine.py:env", "DQN", tmp_path).name == "games-mine-env-DQN-001"
    for long in ("x" * 400, "é" * 400):
        # A file system allows 255 bytes.
        assert next_run_dir(long, "PPO", tmp_path).name.endswith("-PPO-001")
        assert next_run_dir(long, "PPO", tmp_path).name.endswith("-PPO-002")
    assert json.dumps(str(next_run_dir("../..", "DQN", tmp_path).parent)) == json.dumps(str(tmp_path))
