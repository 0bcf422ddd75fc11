"""A checkpoint goes on where there is no GPU, no Ray, or other environments run beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from menv import PolicySpec
from menv.algorithms import PPO
from menv.errors import ConfigError
from tests.checkpoints.forged import forge

SMALL = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of one iteration."""
    specs = {"policies": {"a": PolicySpec(config={"gamma": 0.9})}, "policy_mapping_fn": None}
    with PPO(env="CartPole-v1", config={**SMALL, "multiagent": specs}) as algo:
        algo.train()
        return Path(algo.save(tmp_path / "run"))


def trained(folder: Path, **config: Any) -> Any:
    with PPO.from_checkpoint(folder, config=config or None) as algo:
        algo.train()
        return algo.config


@pytest.mark.parametrize(
    "keys",
    [["num_gpus"], ["evaluation_config"], ["multiagent", "policies", "a", "config", "num_gpus"]],
    ids=["run", "evaluation", "policy"],
)
def test_without_a_gpu_the_processor_learns_with_a_warning(folder: Path, keys: list[str]) -> None:
    forge(
        folder, "manifest.json", ["config", *keys], {"num_gpus": 1} if keys[-1] == "evaluation_config" else 1
    )
    with pytest.warns(UserWarning, match="the checkpoint has num_gpus and torch finds no GPU here"):
        assert trained(folder).num_gpus == 0


def test_a_missing_gpu_is_reported_when_requested_again(folder: Path) -> None:
    with pytest.raises(ConfigError, match="num_gpus"):
        trained(folder, num_gpus=1)


def test_without_ray_workers_are_processes_with_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(folder, "manifest.json", ["config", "engine"], "ray")
    forge(folder, "manifest.json", ["config", "num_workers"], 1)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "menv.workers.ray_engine", raising=False)
    with pytest.warns(UserWarning, match="engine is 'ray' in the checkpoint and Ray is not installed here"):
        assert trained(folder).engine is None
