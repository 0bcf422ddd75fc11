"""An algorithm written outside menv, as examples/own_algorithm.py does."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.own_algorithm import A2C
from menv.algorithms import PPOConfig


def config(num_workers: int = 0) -> PPOConfig:
    """Return settings of short batches."""
    return PPOConfig(env="CartPole-v1", num_envs_per_worker=2, train_batch_size=40, rollout_fragment_length=10,
                     num_workers=num_workers, seed=3)  # fmt: skip


def test_an_own_algorithm_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    with A2C(config()) as algo:
        for _ in range(3):
            algo.train()
        folder = algo.save(tmp_path)
        algo.restore(folder)
        expected = [algo.train() for _ in range(3)][-1]
    with A2C.from_checkpoint(folder) as resumed:
        result = [resumed.train() for _ in range(3)][-1]
    assert result["digest"] == expected["digest"]
    assert result["info"] == expected["info"]


@pytest.mark.slow
def test_an_own_algorithm_samples_in_workers() -> None:
    with A2C(config(num_workers=2)) as algo:
        assert algo.train()["num_env_steps_trained"] >= 40
