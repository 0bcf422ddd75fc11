"""Training with a user's own torch module, alone and beside stock networks."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec
from menv.algorithms import PPO
from menv.errors import ConfigError
from tests.algorithms.test_conv_training import Gallery
from tests.algorithms.test_custom_model import BOX, Net


def test_onnx_is_refused_and_torch_is_chosen_automatically() -> None:
    model = {"custom_model": Net, "custom_model_config": {"width": 8}}
    with pytest.raises(ConfigError, match="onnx"):
        PPO(env="CartPole-v1", config={"model": model, "inference": "onnx"})
    with PPO(env="CartPole-v1", config={"model": model, "train_batch_size": 128, "seed": 1}) as algorithm:
        before = algorithm.get_weights()["default_policy"]
        result = algorithm.train()
        assert result["inference"] == algorithm.inference == {"default_policy": "torch"}
        after = algorithm.get_weights()["default_policy"]
        assert all(not np.array_equal(before[name], after[name]) for name in before)
        assert before["body.weight"].shape == (8, 4)


def test_policies_with_and_without_a_module_of_the_users_learn_side_by_side() -> None:
    own = PolicySpec(config={"model": {"custom_model": Net}})
    multiagent = {
        "policies": {"painter": own, "critic": own, "vector": PolicySpec()},
        "policy_mapping_fn": lambda agent, **kwargs: agent,
    }
    with PPO(env=Gallery, config={"train_batch_size": 64, "multiagent": multiagent, "seed": 3}) as algorithm:
        result = algorithm.train()
        assert result["inference"] == {"painter": "torch", "critic": "torch", "vector": "onnx"}
        painter, critic = (algorithm.get_weights()[name]["body.weight"] for name in ("painter", "critic"))
        assert painter.shape == (16, 1728)
        assert not np.array_equal(painter, critic)
        algorithm.add_policy(
            "late", PolicySpec(observation_space=BOX, action_space=gym.spaces.Discrete(3), config=own.config)
        )
        assert algorithm.inference["late"] == "torch"
