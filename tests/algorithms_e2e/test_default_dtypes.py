"""Runs in programs whose own torch computes in double precision by default: they learn what all others do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from menv import PolicySpec
from menv.algorithms import DQN, PPO, QMIX
from menv.envs import TicTacToe, TwoStepGame
from menv.errors import ConfigError
from tests.worlds import Alone

SMALL: dict[str, Any] = {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 2, "seed": 1}
REPLAYED: dict[str, Any] = {
    "train_batch_size": 16, "training_intensity": 2, "num_steps_sampled_before_learning_starts": 0,
    "min_sample_timesteps_per_iteration": 64, "rollout_fragment_length": 16, "seed": 1,
}  # fmt: skip
PRIORITIES = {"replay_buffer_config": {"prioritized_replay": True}}
LSTM, GRU = {"use_lstm": True, "lstm_cell_size": 8}, {"use_gru": True, "lstm_cell_size": 8}
TOGETHER = PolicySpec(config={"model": {"shared_layers": "eyes"}})
SHARED = {
    "policies": {"a": TOGETHER, "b": TOGETHER},
    "policy_mapping_fn": lambda agent_id, *args, **kwargs: "ab"[agent_id == "O"],
}


class Pictures(Alone):
    """Shows noise as images of bytes and pays for one of two choices."""

    observation_space, length = gym.spaces.Box(0, 255, (24, 24, 1), np.uint8), 8

    def see(self) -> Any:
        return self.np_random.integers(0, 256, (24, 24, 1)).astype(np.uint8)

    def pay(self, action: Any) -> float:
        return float(action)


class Single(nn.Module):
    """A user's module that says what its weights are."""

    def __init__(self, obs_space: Any, num_outputs: int, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.policy = nn.Linear(obs_space.shape[0], num_outputs, dtype=dtype)
        self.value = nn.Linear(obs_space.shape[0], 1, dtype=dtype)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(obs), self.value(obs)[:, 0]


class Remembering(Single):
    """The same with a state, which it begins with in torch's default dtype."""

    def get_initial_state(self) -> list[Tensor]:
        return [torch.zeros(1)]

    def forward(self, obs: Tensor, state: list[Tensor]) -> Any:  # type: ignore[override]
        return self.policy(obs), self.value(obs)[..., 0], state


def two_steps(context: Any) -> Any:
    return TwoStepGame(context).with_agent_groups({"team": ["agent_1", "agent_2"]})


RUNS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "ppo": (PPO, "CartPole-v1", SMALL),
    "ppo, box actions": (PPO, "Pendulum-v1", {**SMALL, "kl_coeff": 0.2, "entropy_coeff": 0.01}),
    "ppo, lstm": (PPO, "CartPole-v1", {**SMALL, "model": LSTM}),
    "ppo, gru, torch acts": (PPO, "Pendulum-v1", {**SMALL, "model": GRU, "inference": "torch"}),
    "ppo, images": (PPO, Pictures, SMALL),
    "ppo, masks and shared layers": (PPO, TicTacToe, {**SMALL, "multiagent": SHARED}),
    "ppo, a module": (PPO, "CartPole-v1", {**SMALL, "model": {"custom_model": Single}}),
    "ppo, a module with a state": (PPO, "CartPole-v1", {**SMALL, "model": {"custom_model": Remembering}}),
    "dqn": (DQN, "CartPole-v1", {**REPLAYED, **PRIORITIES}),
    "dqn, gru": (DQN, "CartPole-v1", {**REPLAYED, **PRIORITIES, "model": GRU}),
    "dqn, masks, lstm, torch acts": (DQN, TicTacToe, {**REPLAYED, "model": LSTM, "inference": "torch"}),
    "qmix": (QMIX, two_steps, REPLAYED),
    "qmix, torch acts": (QMIX, two_steps, {**REPLAYED, **PRIORITIES, "inference": "torch"}),
}  # fmt: skip


@pytest.fixture
def doubles() -> Iterator[None]:
    """Has torch make doubles where nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def trained(name: str) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Return the digest of all rows of a run, and its weights."""
    kind, env, config = RUNS[name]
    with kind(env=env, config=config) as algo:
        results = [algo.train() for _ in range(2)]
        return results[-1]["digest"], algo.get_weights()


@pytest.mark.slow_unless("ppo, images", "dqn, gru", "qmix, torch acts")
@pytest.mark.parametrize("name", RUNS)
def test_a_default_of_double_precision_changes_nothing(name: str, request: pytest.FixtureRequest) -> None:
    digest, weights = trained(name)
    request.getfixturevalue("doubles")
    found, doubled = trained(name)
    assert found == digest
    for policy_id, own in weights.items():
        for part, value in own.items():
            assert doubled[policy_id][part].dtype == np.float32
            if "module" not in name or part == "epsilon":
                np.testing.assert_array_equal(doubled[policy_id][part], value)


@pytest.mark.usefixtures("doubles")
def test_a_module_of_doubles_is_refused() -> None:
    model = {"custom_model": Single, "custom_model_config": {"dtype": torch.float64}}
    with pytest.raises(ConfigError, match="custom_model"):
        PPO(env="CartPole-v1", config={**SMALL, "model": model})


# Whatever mode torch is in where an algorithm is built or trained, its policies learn, then and later.
