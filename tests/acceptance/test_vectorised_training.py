"""Vectorised gymnasium environments, trained from end to end through public names only."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from menv.algorithms import PPO
from tests.worlds import Alone

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
def test_cartpole_balances_far_longer_than_by_chance(kind: str) -> None:
    with PPO(env=cartpoles(kind), config=SETTINGS) as algo:
        first = algo.train()["episode_reward_mean"]
        for _ in range(14):
            result = algo.train()
    assert first < 40
    assert result["episode_reward_mean"] > 80
    # With NEXT_STEP those that are being reset lag a step behind, and the others go on until all have their share.
    assert 0 <= result["num_env_steps_sampled"] - 15 * 1024 < 15 * 8


@pytest.mark.slow_unless("NextStep", "Disabled")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_is_the_same_run_and_another_is_another(kind: str) -> None:
    def run(seed: int) -> Any:
        with PPO(env=cartpoles(kind), config={**SETTINGS, "seed": seed, "train_batch_size": 512}) as algo:
            means = [algo.train()["episode_reward_mean"] for _ in range(2)]
            return means, algo.sample()["default_policy"]["obs"]

    means, obs = run(4)
    again, same = run(4)
    assert means == again
    assert np.array_equal(obs, same)
    assert not np.array_equal(obs, run(5)[1])


def test_two_policies_may_share_the_copies_of_a_vectorised_environment() -> None:
    multiagent = {
        "policies": ["even", "odd"],
        "policy_mapping_fn": lambda agent_id, episode, **kwargs: ["even", "odd"][episode.env_id % 2],
    }
    with PPO(env=cartpoles("vector_entry_point"), config={**SETTINGS, "multiagent": multiagent}) as algo:
        for _ in range(2):
            result = algo.train()
        batches = algo.sample()
    assert set(result["policy_reward_mean"]) == {"even", "odd"}
    assert set(result["info"]["learner"]) == {"even", "odd"}
    assert abs(batches["even"].count - batches["odd"].count) < 64


class Closing(Alone):
    """Three steps of a reward of 0; one of two actions is allowed in turn, and none at the end."""

    observation_space = Dict(
        observations=Box(-10.0, 10.0, (1,), np.float32), action_mask=gym.spaces.MultiBinary(2)
    )
    length = 3

    def see(self) -> Any:
        mask = np.array([self.at in (0, 2), self.at == 1], np.int8)
        return {"observations": np.full(1, self.at, np.float32), "action_mask": mask}

    def pay(self, action: Any) -> float:
        assert action == (self.at - 1) % 2
        return 0.0


class Costly(gym.wrappers.vector.TransformReward):
    """Each step costs 1, also one that only resets."""

    def __init__(self, mode: AutoresetMode) -> None:
        super().__init__(SyncVectorEnv([Closing] * 2, autoreset_mode=mode), lambda rewards: rewards - 1.0)


@pytest.mark.each_value
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
@pytest.mark.parametrize("use_lstm", [False, True], ids=["frames", "rows"])
def test_ends_without_a_choice_and_resets_that_cost_are_none_of_the_steps(
    mode: AutoresetMode, use_lstm: bool
) -> None:
    config = {
        "rollout_fragment_length": 12, "train_batch_size": 24, "batch_mode": "complete_episodes", "seed": 0,
        "model": {"use_lstm": use_lstm},
    }  # fmt: skip
    with PPO(env=lambda context: Costly(mode), config=config) as algo:
        batch = algo.sample()["default_policy"]
        result = algo.train()
    at = batch["obs"][:, 0]
    assert at.tolist() == [0.0, 1.0, 2.0] * (len(at) // 3)
    np.testing.assert_array_equal(batch["rewards"], -np.ones(len(at)))
    np.testing.assert_array_equal(batch["terminateds"], at == 2.0)
    assert (result["episode_reward_min"], result["episode_reward_max"]) == (-3.0, -3.0)
    assert result["episode_len_mean"] == 3.0


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
