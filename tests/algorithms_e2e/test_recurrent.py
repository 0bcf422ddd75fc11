"""Policies with a memory from the outside: what they learn, how they are asked, what is refused."""

from __future__ import annotations

import statistics
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.errors import ConfigError, ContractError
from tests.worlds import Alone

STEPS = 4


class Recall(Alone):
    """A cue is shown once; the last action should name it. Guessing gets 0.5 on average."""

    observation_space, length = gym.spaces.Discrete(3), STEPS

    def see(self) -> Any:
        if self.at:
            return 0
        self.cue = int(self.np_random.integers(2))
        return 1 + self.cue

    def pay(self, action: Any) -> float:
        return float(self.at == STEPS and action == self.cue)


def recall(context: Any) -> Recall:
    return Recall()


class Parity(Alone):
    """A bit at each of 8 steps; each action should say whether an odd number of ones was shown so far.

    Weights of a memory that do not learn name 0.6 to 0.7 of them, and none at all half of them.
    """

    observation_space, length = gym.spaces.Discrete(2), 8
    odd = 0

    def see(self) -> Any:
        bit = int(self.np_random.integers(2))
        self.odd = bit ^ (self.odd if self.at else 0)
        return bit

    def pay(self, action: Any) -> float:
        return float(action == self.odd) / 8


def parity(context: Any) -> Parity:
    return Parity()


MODEL = {"fcnet_hiddens": [16], "lstm_cell_size": 16, "max_seq_len": STEPS}
CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 32,
    "train_batch_size": 1024,
    "sgd_minibatch_size": 256,
    "lr": 5e-3,
    "seed": 0,
}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "least", "most"), [
    ({"use_lstm": True}, 0.95, 1.0),
    ({"use_gru": True}, 0.95, 1.0),
    ({"use_lstm": True, "vf_share_layers": True}, 0.95, 1.0),
    ({}, 0.0, 0.7),
], ids=["lstm", "gru", "shared", "none"])  # fmt: skip
def test_only_recurrent_policies_remember_a_cue(model: dict[str, Any], least: float, most: float) -> None:
    with PPO(env=recall, config={**CONFIG, "model": {**MODEL, **model}}) as algorithm:
        returns = [algorithm.train()["episode_reward_mean"] for _ in range(25)]
    # Where all is solved, what is left of advantages is noise: now and then an update
    # forgets, on one processor and not on another.
    assert least <= statistics.median(returns[8:]) <= most


@pytest.mark.slow
def test_q_values_of_a_memory_learn_to_count() -> None:
    config = {
        "num_envs_per_worker": 8, "seed": 0, "lr": 5e-3, "gamma": 0.0, "n_step": 1, "train_batch_size": 128,
        "training_intensity": 8, "exploration_config": {"epsilon_timesteps": 2000},
        "model": {**MODEL, "use_gru": True, "max_seq_len": 8},
    }  # fmt: skip
    with DQN(env=parity, config=config) as algorithm:
        for _ in range(11):
            result = algorithm.train()
    assert result["episode_reward_mean"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("model", "least", "most"), [
    ({"use_lstm": True}, 0.9, 1.0),
    ({"use_gru": True}, 0.9, 1.0),
    ({}, 0.0, 0.7),
], ids=["lstm", "gru", "none"])  # fmt: skip
@pytest.mark.parametrize("prioritized", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_q_values_of_a_memory_are_learned_from_replayed_sequences(
    model: dict[str, Any], least: float, most: float, prioritized: bool
) -> None:
    config = {
        "num_envs_per_worker": 8,
        "seed": 0,
        "train_batch_size": 128,
        "training_intensity": 8,
        "num_steps_sampled_before_learning_starts": 200,
        "exploration_config": {"epsilon_timesteps": 2000, "final_epsilon": 0.02},
        "replay_buffer_config": {"prioritized_replay": prioritized},
        "model": {**MODEL, **model},
    }
    with DQN(env=recall, config=config) as algorithm:
        for _ in range(6):
            result = algorithm.train()
    assert least <= result["episode_reward_mean"] <= most


def test_a_state_is_passed_in_and_returned() -> None:
    config = {**CONFIG, "explore": False, "model": {**MODEL, "use_lstm": True}}
    with PPO(env=recall, config=config) as algorithm:
        policy = algorithm.get_policy()
        state = policy.get_initial_state()
        assert [part.shape for part in state] == [(16,)] * 4
        assert not any(part.any() for part in state)
        for obs in (1, 0):
            batch = [part[None] for part in state]
            actions, states, fetches = policy.compute_actions([obs], batch, explore=False)
            action, after, single = algorithm.compute_single_action(obs, state=state)
            assert action == actions[0]
            np.testing.assert_array_equal(single["action_logp"], fetches["action_logp"][0])
            for one, other, before in zip(after, states, state, strict=True):
                np.testing.assert_array_equal(one, other[0])
                assert (one != before).any()
            state = after
        # Without states every row begins anew.
        fresh = policy.compute_actions([1, 1], explore=False)[1]
        np.testing.assert_array_equal(fresh[0][0], fresh[0][1])


def test_a_recurrent_policy_is_never_asked_without_its_state() -> None:
    with PPO(env=recall, config={**CONFIG, "model": {**MODEL, "use_gru": True}}) as algorithm:
        with pytest.raises(ContractError, match="get_initial_state"):
            algorithm.compute_single_action(0)
        state: Any = algorithm.get_policy().get_initial_state()
        with pytest.raises(ConfigError, match="policy_id"):
            algorithm.compute_single_action(0, state)
        # Nothing to remember would make every row the first of a life.
        with pytest.raises(ContractError, match="get_initial_state"):
            algorithm.compute_single_action(0, state=[])
        with pytest.raises(ContractError, match="get_initial_state"):
            algorithm.get_policy().act(0)
        with pytest.raises(ContractError, match=r"\(1, 3\).*\(1, 16\), \(1, 16\)"):
            algorithm.compute_single_action(0, state=[np.zeros(3)])
