"""Numbers of a checkpoint that no run can reach are refused when it is loaded, by file and field."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv import register_env
from menv.algorithms import DQN, PPO, QMIX, Algorithm
from menv.envs import TwoStepGame
from menv.errors import ConfigError
from tests.checkpoints.forged import forge, forge_array
from tests.checkpoints.runs import REPLAYED, SMALL

KINDS: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "PPO": (PPO, {"env": "CartPole-v1", **SMALL, "evaluation_interval": 1, "evaluation_duration": 1}),
    "DQN": (DQN, {"env": "CartPole-v1", **REPLAYED, "replay_buffer_config": {"prioritized_replay": True}}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, (kind, config) in KINDS.items():
        with kind(config=config) as algo:
            algo.train()
            found[name] = algo.save(tmp_path_factory.mktemp(name))
    return found


def copied(saved: dict[str, Path], name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[name], tmp_path / "000001"))


COUNTS: list[tuple[list[Any], Any]] = [
    (["iteration"], -1),
    (["seed"], -1),
    (["weights_seq_no"], 2**63 - 1),
    (["env_steps_trained"], 1.5),
    (["agent_steps_trained"], ""),
    (["time_total_s"], -1.0),
    (["learners"], [[[], 1]]),
    (["metrics"], None),
    (["metrics", "episodes_total"], []),
    (["metrics", "unclaimed_rewards"], {"$tuple": ["1e999999999", 1]}),
    (["metrics", "window"], [[1.0, 9, {"o": 1.0}, [], {}, {}, {}]]),
    (["sampler"], [["\n" * 300]]),
    (["sampler", "env_steps"], 10**30),
    (["sampler", "pieces"], True),
    (["sampler", "running"], "1"),
    # With the largest of all integers, training once had no end.
    (["sampler", "steps", 0], 2**63 - 1),
    (["sampler", "begun", 0], -1),
    (["evaluation", "count"], -1),
    (["evaluation", "metrics", "episodes_total"], True),
    (["draws", "default_policy"], {"$tuple": [10**30, 0]}),
]


@pytest.mark.parametrize(("keys", "value"), COUNTS)
def test_a_state_that_no_run_can_have_is_refused_by_file_and_field(
    keys: list[Any], value: Any, saved: dict[str, Path], tmp_path: Path
) -> None:
    folder = copied(saved, "PPO", tmp_path)
    forge(folder, "state.json", keys, value)
    with pytest.raises(ConfigError, match=keys[0]) as caught:
        PPO.from_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("name", "key", "value"), [
    ("PPO", "adam_steps", -1),
    ("PPO", "adam_skipped", 2**63 - 1),
    ("PPO", "adam_mean", np.nan),
    ("PPO", "adam_square", -1.0),
    ("PPO", "batches", -1),
    ("PPO", "kl_coeff", np.inf),
    ("PPO", "value_scale", -1.0),
    ("PPO", "value_scale", 1e300),
    ("DQN", "adam_steps", 2**63 - 1),
    ("DQN", "calls", -1),
    ("DQN", "owed", 1e18),
    ("DQN", "owed", np.nan),
    ("DQN", "since_copy", np.inf),
    ("DQN", "replay.next", -1),
    ("DQN", "replay.next", 2**63 - 1),
    ("DQN", "replay.column.actions", 2),
    ("DQN", "replay.highest", np.nan),
    ("DQN", "replay.highest", 0.0),
    ("DQN", "replay.priorities", -1.0),
    ("DQN", "replay.priorities", 0.0),
    ("DQN", "replay.tickets", 2**31 - 1),
    ("DQN", "replay.raffle", 1e12),
])  # fmt: skip
def test_an_impossible_learner_state_is_refused_when_it_is_loaded(
    name: str, key: str, value: float, saved: dict[str, Path], tmp_path: Path
) -> None:
    folder = copied(saved, name, tmp_path)
    forge_array(folder, "learners.safetensors", f"default_policy/{key}", lambda old: np.full_like(old, value))
    said = f"{value}.*capacity" if key == "replay.next" else key
    with pytest.raises(ConfigError, match=said):
        KINDS[name][0].from_checkpoint(folder)


def test_qmix_refuses_what_no_learner_can_have_written(tmp_path: Path) -> None:
    config = {**REPLAYED, "env": "two steps", "train_batch_size": 8}
    register_env(
        "two steps", lambda context: TwoStepGame(context).with_agent_groups({"both": ["agent_1", "agent_2"]})
    )
    with QMIX(config=config) as algo:
        algo.train()
        folder = algo.save(tmp_path)
    forge_array(folder, "learners.safetensors", "default_policy/owed", lambda old: np.full_like(old, 1e18))
    with pytest.raises(ConfigError, match="owed"):
        QMIX.from_checkpoint(folder)
