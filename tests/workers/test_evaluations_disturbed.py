"""Evaluations beside training: what happens while workers play."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from menv import DefaultCallbacks
from menv.errors import EnvFaultWarning
from tests.workers.crews import Counting, running


class Waiting(Counting):
    """In evaluations, tells its process and waits there while somebody says so."""

    def act(self) -> None:
        folder = Path(self.config["folder"])
        while self.config.worker_index and (folder / "wait").exists():
            # Whoever reads it finds it whole.
            (folder / "draft").write_text(str(os.getpid()))
            (folder / "draft").replace(folder / "pid")
            time.sleep(0.01)


class Removing(DefaultCallbacks):
    """Ends the worker that waits, and removes a policy."""

    algorithm: Any = None
    folder: Path

    def on_learn_on_batch(self, **kwargs: Any) -> None:
        wait, told = self.folder / "wait", self.folder / "pid"
        if not wait.exists():
            return
        while not told.exists():
            time.sleep(0.01)
        os.kill(int(told.read_text()), signal.SIGKILL)
        wait.unlink()
        self.algorithm.remove_policy("two", policy_mapping_fn=lambda *args, **kwargs: "one")


def test_a_policy_may_be_removed_while_a_worker_that_plays_is_lost(tmp_path: Path) -> None:
    multiagent = {
        "policies": ["one", "two"],
        "policy_mapping_fn": lambda agent_id, episode, *args, **kwargs: (
            "one" if episode.episode_id % 2 else "two"
        ),
    }
    beside = {"evaluation_num_workers": 1, "evaluation_interval": 1, "evaluation_parallel_to_training": True}
    settings = {"env": Waiting, "env_config": {"folder": str(tmp_path)}, "callbacks": Removing, **beside}
    Removing.folder = tmp_path
    with running(0, multiagent=multiagent, **settings) as algo:
        Removing.algorithm = algo
        assert set(algo.train()["evaluation"]["policy_reward_mean"]) == {"one", "two"}
        (tmp_path / "wait").touch()
        with pytest.warns(EnvFaultWarning, match="another worker was started"):
            found = algo.train()["evaluation"]
        assert found["episodes_this_iter"] == 10
        assert set(found["policy_reward_mean"]) == {"one"}
