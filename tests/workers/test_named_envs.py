"""Environments that are named by a file or by another library, in worker processes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from menv.algorithms import PPO
from tests.checkpoints.runs import SMALL

FILE = """
import os
import gymnasium as gym

class Corridor(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def __init__(self, length=9):
        self.length, self.at = length, 0

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self.at += 1
        return self.observation_space.sample() * 0, 1.0, self.at == self.length, False, {}
"""


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with `games/menv_corridor.py`."""
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "menv_corridor.py").write_text(FILE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("menv_corridor", None)


@pytest.mark.usefixtures("games")
@pytest.mark.parametrize("where", ["workers", "remote environments"])
def test_workers_find_the_environment_of_a_file_from_any_folder(where: str) -> None:
    remote = {"num_workers": 1} if where == "workers" else {"remote_worker_envs": True}
    config = {**SMALL, **remote, "engine": "process", "env_config": {"length": 4}}
    with PPO(env="games/menv_corridor.py:Corridor", config=config) as algo:
        assert algo.train()["episode_len_mean"] == 4


def test_workers_find_the_environment_of_another_library() -> None:
    config = {**SMALL, "num_workers": 1, "engine": "process"}
    with PPO(env="openspiel:kuhn_poker", config=config) as algo:
        assert algo.train()["episode_reward_mean"] == pytest.approx(0)
