"""Names that no file system takes, and ids of agents that are strings of numpy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import ConfigError, MultiAgentEnv, Policy, export_onnx, register_env
from menv.algorithms import PPO
from menv.cli.main import main
from menv.serialization import from_plain, to_plain
from menv.wrappers import RecordEpisodes
from tests.checkpoints.runs import SMALL

LONG = "x" * 300


class Pair(MultiAgentEnv):
    """Two agents, whose ids are made by a function, play 7 steps."""

    def __init__(self, make_id: Callable[[str], Any]) -> None:
        self.possible_agents = [make_id("a"), make_id("b")]
        box = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, box)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(2))
        self.at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return {agent: np.zeros(2, np.float32) for agent in self.possible_agents}, {}

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        over = self.at == 7
        obs = {agent: np.full(2, 0.1 * self.at, np.float32) for agent in action_dict}
        return (
            obs,
            {agent: float(action_dict[agent]) for agent in obs},
            {"__all__": over},
            {"__all__": False},
            {},
        )


@pytest.mark.parametrize("make_id", [str, np.str_, np.int64])
def test_ids_of_numpy_resume_as_those_of_python_do(make_id: Any, tmp_path: Path) -> None:
    register_env(
        "a pair", lambda context: Pair(make_id if make_id is not np.int64 else lambda one: np.int64(ord(one)))
    )
    with PPO(env="a pair", config=SMALL) as algo:
        algo.train()
        algo.save(tmp_path)
        expected = algo.train()
    with PPO.from_checkpoint(tmp_path) as again:
        result = again.train()
    assert result["digest"] == expected["digest"]
    assert result["num_episodes_not_resumed"] == 0


def test_a_string_of_numpy_is_plain_wherever_it_stands() -> None:
    value = {np.str_("a"): [np.str_("b"), (np.str_("c"),)]}
    found = from_plain(json.loads(json.dumps(to_plain(value, {}))), {})
    assert found == {"a": ["b", ("c",)]}
    assert type(next(iter(found))) is type(found["a"][0]) is np.str_


def test_a_name_that_no_file_system_takes_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        calls: list[Any] = [
            algo.save, algo.restore, PPO.from_checkpoint, Policy.from_checkpoint,
            algo.export_policy_checkpoint,
            lambda path: export_onnx(algo.get_policy(), path),
            lambda path: RecordEpisodes(gym.make("CartPole-v1", render_mode="rgb_array"), path),
        ]  # fmt: skip
        for call in calls:
            for path in (tmp_path / LONG, tmp_path / LONG / "run", "y/" * 3000):
                with pytest.raises(
                    ConfigError, match=r"characters \(.*\), expected a name that the system takes; ch"
                ):
                    call(path)
    assert main(["train", "CartPole-v1", "--run-dir", str(tmp_path / LONG)]) == 2
    assert main(["evaluate", str(tmp_path / LONG)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
