"""Gradients that are not finite: they are left out, and somebody is told."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO, Algorithm


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


class Larger(gym.Env[Any, Any]):
    """Pays more than a float32 holds, once in eight steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: Any) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        paid = 1e39 if self.steps == 4 else 1.0
        return np.full(2, self.steps / 10, np.float32), paid, self.steps == 8, False, {}


MEMORY = {"model": {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4]}}
BY_PRIORITY = {"replay_buffer_config": {"prioritized_replay": True}}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (PPO, {}),
        (PPO, {"normalize_values": False}),
        (PPO, MEMORY),
        (DQN, {}),
        (DQN, BY_PRIORITY),
        (DQN, {**MEMORY, **BY_PRIORITY}),
    ],
)
def test_rewards_that_no_network_can_learn_end_no_run_and_are_told_of_in_one_way(
    kind: type[Algorithm], settings: dict[str, Any]
) -> None:
    common = {"num_envs_per_worker": 2, "rollout_fragment_length": 16, "seed": 1}
    own = {
        PPO: {"train_batch_size": 32, "sgd_minibatch_size": 32},
        DQN: {
            "train_batch_size": 8,
            "num_steps_sampled_before_learning_starts": 0,
            "min_sample_timesteps_per_iteration": 32,
        },
    }
    with kind(env=Larger, config={**common, **own[kind], **settings}) as algorithm:
        with pytest.warns(RuntimeWarning, match="a gradient was NaN or infinite") as told:
            algorithm.train()
        assert len(told) == 1
        # Warnings are errors here.
        stats = algorithm.train()["info"]["default_policy"]
        assert stats["skipped_updates"] > 0
        for name, value in algorithm.get_weights()["default_policy"].items():
            assert np.isfinite(value).all(), name
