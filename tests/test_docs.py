"""What the documents print runs as it stands, block after block, and does what is said beside it."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from menv.cli.main import main
from tests.doc_blocks import blocks, run_python
from tests.house.sources import ROOT

ANEW = """import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "menv"]:
    del sys.modules[name]
"""
BEFORE = {
    1: ANEW + 'sys.modules["torch"] = sys.modules["onnx"] = None\n',
    4: 'import sys; sys.modules["menv"] = None\n',
}
"""Blocks that need less than menv with all its extras, and what takes it away."""

LEVELS = """
import gymnasium as gym
from menv.algorithms import PPO


class Levels(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)
    level = 1

    def set_level(self, level):
        self.level = level

    def reset(self, *, seed=None, options=None):
        self.left = 4
        return 0, {}

    def step(self, action):
        self.left -= 1
        return 0, 50.0 * self.level, self.left == 0, False, {}


config = {"num_workers": 1, "engine": "process", "callbacks": Curriculum, "train_batch_size": 8,
          "rollout_fragment_length": 8, "metrics_num_episodes_for_smoothing": 1}
with PPO(env=lambda context: Levels(), config=config) as algo:
    print(*[algo.train()["episode_reward_mean"] for _ in range(2)])
"""


PORTS = """
from menv import EnvContext

config = {"first_port": 20_000}
print(port_of(EnvContext(config, 0, 1)), port_of(EnvContext(config, 2, 5, in_evaluation=True)))
"""


@pytest.mark.slow
def test_the_blocks_of_deploying_run_in_order_in_separate_processes(tmp_path: Path) -> None:
    found = blocks("docs/how_to/deploying.md", "python")
    assert len(found) == 5
    printed = []
    for number, block in enumerate(found):
        printed += run_python(tmp_path / f"block_{number}.py", BEFORE.get(number, "") + block)
    assert [line.split()[0] for line in printed] == ["return", "actions", "drawn"]
    assert float(printed[0].split()[1]) > 9
    for name in ("cartpole_policy", "stacked_policy"):
        assert (tmp_path / name / "policy.json").exists()


@pytest.mark.slow
def test_the_blocks_about_workers_print_what_the_page_says(tmp_path: Path) -> None:
    first, second, ports, curriculum = blocks("docs/how_to/workers.md", "python")
    printed = run_python(tmp_path / "same.py", first)
    assert printed == ["0 workers: 0 processes, True", "2 workers: 2 processes, True"]
    overlapped = run_python(tmp_path / "overlapped.py", "from menv.algorithms import PPO\n\n" + second)
    assert overlapped == ["staleness: {'mean': 1.0, 'max': 1}"]
    assert run_python(tmp_path / "curriculum.py", curriculum + LEVELS) == ["200.0 400.0"]
    assert run_python(tmp_path / "ports.py", ports + PORTS) == ["20001 30205"]


@pytest.mark.slow
def test_the_page_for_users_of_the_classic_api_names_what_exists_and_its_defaults(tmp_path: Path) -> None:
    table = (
        (ROOT / "docs" / "reference" / "classic.md")
        .read_text("utf-8")
        .partition("## Where things are")[2]
        .partition("\n## ")[0]
    )
    named = re.findall(
        r"`(menv[\w.]+)`", "".join(row.split(" | ")[1] for row in table.splitlines() if " | " in row)
    )
    assert len(named) > 25
    for name in named:
        assert pkgutil.resolve_name(name)
    chain, block = blocks("docs/reference/classic.md", "python")
    assert run_python(tmp_path / "chain.py", chain) == ["512"]
    changed = "print(PPO(config={**PPO.get_default_config(), 'env': 'CartPole-v1', 'lr': 1e-4}).config.lr)"
    assert run_python(tmp_path / "classic.py", f"{block}\n{changed}") == ["4000 5e-05", "0.0001"]


def test_the_car_of_the_page_of_environments_has_as_many_columns_as_the_page_says(tmp_path: Path) -> None:
    (block,) = [one for one in blocks("docs/how_to/environments.md", "python") if "class Car" in one]
    assert run_python(tmp_path / "car.py", block) == ["3 7"]


def test_the_block_about_recording_writes_the_episodes_that_the_page_says(tmp_path: Path) -> None:
    (block,) = [one for one in blocks("docs/how_to/environments.md", "python") if "RecordEpisodes(" in one]
    assert run_python(tmp_path / "seen.py", block) == []
    assert {"episode-000000.gif", "episode-000100.gif"} <= {
        film.name for film in (tmp_path / "films").iterdir()
    }


def test_the_walkers_of_the_page_of_environments_pass_the_check_and_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (game,) = blocks("docs/how_to/environments.md", 'python title="my_game.py"')
    *_, commands = blocks("docs/how_to/environments.md", "sh")
    (tmp_path / "my_game.py").write_text(game, "utf-8")
    monkeypatch.chdir(tmp_path)
    for line in commands.splitlines():
        assert main(line.split()[1:]) == 0
