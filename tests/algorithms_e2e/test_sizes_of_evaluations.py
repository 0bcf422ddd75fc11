"""Vectorised environments of evaluations, whose size and that of the settings do not agree."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from menv.algorithms import PPO
from menv.errors import ConfigError

SMALL: dict[str, Any] = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1}


def poles(context: Any) -> Any:
    return gym.make_vec("CartPole-v1", num_envs=context.get("poles", 4), vectorization_mode="sync")


@pytest.mark.parametrize(
    ("settings", "own", "message"),
    [
        ({"num_envs_per_worker": 4}, {"env_config": {"poles": 3}}, "num_envs"),
        ({}, {"env_config": {"poles": 3}, "num_envs_per_worker": 5}, "num_envs"),
        ({"num_envs_per_worker": 4}, {"num_envs_per_worker": 3}, "num_envs"),
        ({}, {"num_envs_per_worker": 3}, "num_envs"),
    ],
)
def test_another_size_is_refused_before_anything_is_trained(
    settings: dict[str, Any], own: dict[str, Any], message: str
) -> None:
    config = {**SMALL, **settings, "evaluation_interval": 1000, "evaluation_config": own}
    with pytest.raises(ConfigError, match=message):
        PPO(env=poles, config=config)


@pytest.mark.parametrize(
    "own", [{"env_config": {"poles": 3}}, {"env": "CartPole-v1", "num_envs_per_worker": 3}]
)
def test_evaluations_may_have_another_number_than_training(own: dict[str, Any]) -> None:
    config = {**SMALL, "evaluation_interval": 1, "evaluation_duration": 3, "evaluation_config": own}
    with PPO(env=poles, config=config) as algo:
        assert algo.train()["evaluation"]["episodes_this_iter"] == 3
