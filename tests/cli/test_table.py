"""`menv table`: the scores of runs in the formats of papers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from menv.cli.main import main
from menv.tracking import Run

CORRIDOR = """
import gymnasium as gym
import numpy as np

class Corridor(gym.Env):
    '''Ends after three steps; each pays 2.'''
    observation_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), 2.0, self.t == 3, False, {}
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two seeds of PPO and one of MAPPO in an environment whose episodes return 6."""
    monkeypatch.chdir(tmp_path)
    Path("table_env.py").write_text(CORRIDOR)
    size = [
        "--config",
        "train_batch_size=32",
        "--config",
        "sgd_minibatch_size=32",
        "--stop",
        "training_iteration=2",
    ]
    for name, more in {
        "a": ["--seed", "1"],
        "b": ["--seed", "2"],
        "c": ["--seed", "1", "--config", "critic_obs=all_agents"],
    }.items():
        assert main(["train", "table_env.py:Corridor", *size, *more, "--run-dir", name]) == 0
    return ["a", "b", "c"]


def test_a_table_has_a_row_for_each_setting_with_its_score_over_seeds(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["table", *runs, "--trust", "--episodes", "5", *arguments]) == 0
        return capsys.readouterr().out

    minutes = [f"{Run(name).progress()['time_total_s'][-1] / 60:.1f}" for name in "ac"]
    rows = list(csv.reader(io.StringIO(printed("--format", "csv"))))
    assert rows == [
        ["algorithm", "seeds", "score", "95 % interval", "env steps", "minutes"],
        ["PPO", "2", "6", "6 to 6", "64", minutes[0]],
        ["MAPPO", "1", "6", "6 to 6", "64", minutes[1]],
    ]
    markdown = printed().splitlines()
    assert markdown[1] == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert markdown[2].startswith("| PPO | 2 | 6 | 6 to 6 | 64 |")
    latex = printed("--format", "latex").splitlines()
    assert latex[0] == r"\begin{tabular}{lrrrrr}"
    assert latex[2] == r"algorithm & seeds & score & 95 \% interval & env steps & minutes \\"
    assert latex[-1] == r"\end{tabular}"
