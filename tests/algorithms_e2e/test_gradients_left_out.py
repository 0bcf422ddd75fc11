"""Gradients that are not finite: they are left out, and somebody is told."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from menv.algorithms import PPO


class Huge(gym.RewardWrapper[Any, Any]):
    """Pays what no float32 can be squared of."""

    def __init__(self, context: Any) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def reward(self, reward: Any) -> float:
        return 1e30


def test_each_policy_is_warned_of_once() -> None:
    def skipped() -> int:
        count: int = algorithm.train()["info"]["default_policy"]["skipped_updates"]
        return count

    settings = {
        "train_batch_size": 64,
        "sgd_minibatch_size": 32,
        "num_sgd_iter": 2,
        "seed": 1,
        "normalize_values": False,
    }
    with PPO(env=Huge, config=settings) as algorithm:
        with pytest.warns(RuntimeWarning, match="policy 'default_policy': a gradient was NaN or infinite"):
            first = skipped()
        # Warnings are errors here.
        assert skipped() > first > 0
