"""Whatever mode torch is in where an algorithm is built or trained, its policies learn, then and later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from menv import PolicySpec
from menv.algorithms import DQN, PPO, PPOPolicy

ROWS: dict[str, Any] = {
    "env": "CartPole-v1",
    "rollout_fragment_length": 20,
    "train_batch_size": 20,
    "seed": 1,
}
OF_PPO = {**ROWS, "sgd_minibatch_size": 10, "num_sgd_iter": 1}


class WithCritic(PPOPolicy):
    """Has a module that learns nothing."""

    def make_modules(self) -> dict[str, nn.Module]:
        return {"critic": nn.Linear(4, 1)}


@pytest.mark.parametrize("built_within", [False, True])
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (PPO, OF_PPO),
        (PPO, {**OF_PPO, "inference": "torch", "model": {"use_lstm": True}}),
        (PPO, {**OF_PPO, "multiagent": {"policies": {"default_policy": PolicySpec(WithCritic)}}}),
        (DQN, {**ROWS, "num_steps_sampled_before_learning_starts": 0, "min_sample_timesteps_per_iteration": 40}),
    ],
)  # fmt: skip
def test_inference_mode_keeps_nobody_from_learning(kind: Any, config: Any, built_within: bool) -> None:
    with torch.inference_mode(built_within):
        algo = kind(config=config)
    with algo:
        before = algo.get_weights()["default_policy"]
        with torch.inference_mode():
            algo.train()
        between = algo.get_weights()["default_policy"]
        algo.train()
        after = algo.get_weights()["default_policy"]
        for one, other in ((before, between), (between, after)):
            assert not all(np.array_equal(one[name], other[name]) for name in one if name != "epsilon")
