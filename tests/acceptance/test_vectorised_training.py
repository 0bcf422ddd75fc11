"""Vectorised gymnasium environments, trained from end to end through public names only."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode

from menv.algorithms import PPO

SETTINGS: dict[str, Any] = {
    "lr": 3e-3,
    "train_batch_size": 1024,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 4,
    "seed": 0,
}


def cartpoles(kind: str) -> Any:
    """Return a creator of eight CartPoles; a number stands for a mode of SyncVectorEnv."""
    if kind == "vector_entry_point":
        return lambda context: gym.make_vec("CartPole-v1", num_envs=8, vectorization_mode=kind)
    return lambda context: gym.make_vec(
        "CartPole-v1",
        num_envs=8,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode(kind)},
    )


KINDS = ["vector_entry_point", *[mode.value for mode in AutoresetMode]]


@pytest.mark.slow_unless("SameStep")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "Disabled" else kind for kind in KINDS]
)
def test_a_trained_cartpole_balances_far_longer_than_a_random_one(kind: str) -> None:
    with PPO(env=cartpoles(kind), config=SETTINGS) as algo:
        first = algo.train()["episode_reward_mean"]
        for _ in range(14):
            result = algo.train()
    assert first < 40
    assert result["episode_reward_mean"] > 80
    # With NEXT_STEP those that are being reset lag a step behind, and the others go on until all have their share.
    assert 0 <= result["num_env_steps_sampled"] - 15 * 1024 < 15 * 8


class Counting(gym.vector.VectorEnv[Any, Any, Any]):
    """Two clocks that end at four and begin anew in the same step; their last observations are a batch too."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, context: Any) -> None:
        self.num_envs = 2
        self.single_observation_space = Dict({"at": Box(0.0, 4.0, (1,), np.float32)})
        self.single_action_space = Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.at = np.array([[0.0], [2.0]], np.float32)
        return {"at": self.at.copy()}, {}

    def step(self, actions: Any) -> Any:
        self.at += 1.0
        done = self.at[:, 0] == 4.0
        infos = {"final_obs": {"at": self.at.copy()}, "_final_obs": done} if done.any() else {}
        self.at[done] = 0.0
        return {"at": self.at.copy()}, np.ones(2), done, np.zeros(2, np.bool_), infos


def test_last_observations_may_be_a_batch_of_dicts() -> None:
    with PPO(env=Counting, config={**SETTINGS, "train_batch_size": 64, "sgd_minibatch_size": 32}) as algo:
        batch = algo.sample()["default_policy"]
    assert batch["terminateds"].any()
    np.testing.assert_array_equal(batch["new_obs"], batch["obs"] + 1.0)
