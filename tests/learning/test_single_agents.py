"""What PPO, DQN and SAC learn of gymnasium's classics: the median of three seeds passes each bar."""

from __future__ import annotations

import statistics
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO, SAC
from tests.learning.runs import SEEDS, median_of_best

pytestmark = pytest.mark.slow


class WithoutVelocities(gym.ObservationWrapper[Any, Any, Any]):
    """Position and angle alone: how fast they change has to be remembered."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        whole = env.observation_space
        assert isinstance(whole, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(whole.low[[0, 2]], whole.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


def without_velocities(context: Any) -> gym.Env[Any, Any]:
    return WithoutVelocities(gym.make("CartPole-v1"))


def test_ppo_balances_the_pole() -> None:
    config = {"num_envs_per_worker": 64}
    assert median_of_best(PPO, "CartPole-v1", config, bar=450.0, env_steps=400_000) >= 450.0


def test_dqn_balances_the_pole() -> None:
    config = {"num_envs_per_worker": 16}
    assert median_of_best(DQN, "CartPole-v1", config, bar=450.0, env_steps=200_000) >= 450.0


def test_ppo_swings_the_pendulum_up() -> None:
    config = {
        "num_envs_per_worker": 16, "train_batch_size": 2048, "num_sgd_iter": 10, "gamma": 0.95, "lambda_": 0.9,
        "lr": 1e-3, "model": {"fcnet_activation": "tanh"},
    }  # fmt: skip
    assert median_of_best(PPO, "Pendulum-v1", config, bar=-300.0, env_steps=400_000) >= -300.0


@pytest.mark.parametrize("seed", range(3))
def test_ppo_with_its_defaults_does_not_forget_the_pendulum_again(seed: int) -> None:
    config = {"num_envs_per_worker": 8, "seed": seed, "evaluation_duration": 20}
    with PPO(env="Pendulum-v1", config={**config, "evaluation_config": {"explore": False}}) as algo:
        while algo.counts()["num_env_steps_sampled"] < 200_000:
            result = algo.train()
            # Without the term it was 0.6 to 107 in the worst update of each of eight seeds.
            assert result["info"]["default_policy"]["kl"] < 0.5
        assert algo.evaluate()["evaluation"]["episode_reward_mean"] > -300.0


def test_sac_with_its_defaults_swings_the_pendulum_up_within_20_000_env_steps() -> None:
    found = []
    for seed in SEEDS:
        config = {"seed": seed, "evaluation_duration": 100, "evaluation_config": {"explore": False}}
        with SAC(env="Pendulum-v1", config=config) as algo:
            # An iteration has 1,024 steps.
            while algo.counts()["num_env_steps_sampled"] < 18_500:
                algo.train()
            assert algo.counts()["num_env_steps_sampled"] <= 20_000
            found.append(algo.evaluate()["evaluation"]["episode_reward_mean"])
    # With the seeds 0 and 1 it was above, with 2 -155.
    assert statistics.median(found) >= -150.0


MEMORY = {
    "num_envs_per_worker": 32, "train_batch_size": 4096, "sgd_minibatch_size": 512,
    "model": {"fcnet_hiddens": [64], "fcnet_activation": "tanh"},
}  # fmt: skip


@pytest.mark.parametrize("cell", ["use_lstm", "use_gru"])
def test_a_memory_balances_the_pole_without_seeing_velocities(cell: str) -> None:
    config = {**MEMORY, "model": {**MEMORY["model"], cell: True}}  # type: ignore[dict-item]
    assert median_of_best(PPO, without_velocities, config, bar=350.0, env_steps=400_000) >= 350.0


def test_no_feed_forward_policy_does() -> None:
    """The bar above says something only if this holds."""
    assert median_of_best(PPO, without_velocities, MEMORY, bar=150.0, env_steps=400_000) < 80.0
