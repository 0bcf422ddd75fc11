"""A task is learned as well whatever unit its rewards are paid in."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from menv import PolicySpec
from menv.algorithms import DQN, PPO, QMIX, Algorithm
from tests.algorithms.test_reward_unit import Corridor, team
from tests.algorithms.test_value_scale import LossByHand

pytestmark = pytest.mark.slow

FACTORS = [1e-6, 0.001, 1.0, 100.0, 1e6]


def cart_pole(context: Any) -> Any:
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: context["factor"] * reward)


class ActorCritic(nn.Module):
    """Two networks of one hidden layer each."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, num_outputs))
        self.values = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return torch.as_tensor(self.policy(obs)), torch.as_tensor(self.values(obs)).squeeze(-1)


class OneLayer(nn.Module):
    """Outputs and values come from one layer, so that values have none of their own."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.all = nn.Linear(64, num_outputs + 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        found = self.all(self.body(obs))
        return found[:, :-1], found[:, -1]


CART_POLE = {"num_envs_per_worker": 8, "train_batch_size": 2048}
LEARNERS: dict[str, tuple[type[Algorithm], Any, dict[str, Any], int, float]] = {
    "ppo": (PPO, cart_pole, CART_POLE, 14, 120.0),
    "ppo custom model": (PPO, cart_pole, {**CART_POLE, "model": {"custom_model": ActorCritic}}, 14, 120.0),
    "ppo shared layers": (PPO, cart_pole, {**CART_POLE, "model": {"vf_share_layers": True}}, 14, 120.0),
    "ppo one layer": (PPO, cart_pole, {**CART_POLE, "model": {"custom_model": OneLayer}}, 14, 110.0),
    "ppo lstm": (PPO, cart_pole, {**CART_POLE, "model": {"use_lstm": True}}, 14, 90.0),
    "ppo own loss": (
        PPO,
        cart_pole,
        {**CART_POLE, "multiagent": {"policies": {"default_policy": PolicySpec(policy_class=LossByHand)}}},
        14,
        120.0,
    ),
    "dqn": (DQN, Corridor, {}, 6, 50.0),
    "dqn lstm": (DQN, Corridor, {"model": {"use_lstm": True}}, 8, 45.0),
    "qmix": (QMIX, team, {"exploration_config": {"epsilon_timesteps": 3000}}, 6, 80.0),
    "vdn": (QMIX, team, {"mixer": "vdn", "exploration_config": {"epsilon_timesteps": 3000}}, 6, 80.0),
}
"""Algorithm, environment, settings, training iterations and the return to reach, in the unit of factor 1."""


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("name", LEARNERS)
def test_a_task_is_learned_in_any_unit_of_rewards(name: str, factor: float) -> None:
    kind, env, config, iterations, bar = LEARNERS[name]
    returns = []
    for seed in range(2):
        settings = {"seed": seed, "env_config": {"factor": factor}, "evaluation_duration": 40, **config}
        with kind(env=env, config={**settings, "evaluation_config": {"explore": False}}) as algo:
            for _ in range(iterations):
                result = algo.train()
            played = algo.evaluate()["evaluation"] if kind is not PPO else result
            returns.append(played["episode_reward_mean"] / factor)
    assert np.mean(returns) >= bar, np.round(returns, 1)
