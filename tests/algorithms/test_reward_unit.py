"""The unit in which Q-values are learned: a run learns alike whatever unit its rewards are paid in."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from menv.algorithms import DQN, QMIX, Algorithm
from menv.algorithms.training.return_scaling import RewardScale
from tests.worlds import Alone, Several


def test_the_unit_is_the_power_of_two_nearest_to_the_size_of_the_returns() -> None:
    unit = RewardScale()
    unit.renew()
    assert (unit.unit, unit.span) == (1.0, 1.0)
    unit.follow(np.array([0.0, 3.0, -4.0, 0.0, np.inf, np.nan]), 100)
    unit.renew()
    # The root of (9 + 16) / 2 is 3.5.
    assert unit.unit == 4.0
    assert unit.span == 7.0 / 4.0
    unit.follow(np.full(2, 5.0), 100)
    unit.renew()
    # The root of 75 / 4 is 4.3: within half and twice the unit.
    assert (unit.unit, unit.span) == (4.0, 9.0 / 4.0)
    unit.follow(np.full(100, 100.0), 100)
    unit.renew()
    assert unit.unit == 128.0


class Corridor(Alone):
    """Ten steps; going right pays more the further one is."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space, length, place = gym.spaces.Discrete(3), 10, 0

    def see(self) -> Any:
        self.place *= self.at > 0
        return np.array([self.place / 10, (10 - self.at) / 10], np.float32)

    def pay(self, action: Any) -> float:
        self.place = max(0, self.place + int(action) - 1)
        return float(self.config["factor"]) * self.place


class Net(nn.Module):
    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, num_outputs))

    def forward(self, obs: Tensor) -> Tensor:
        return torch.as_tensor(self.layers(obs))


class Team(Several):
    """Two players choose once; both at 0 are paid 22 together, both at 2 are paid 90."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space, length = gym.spaces.Discrete(3), 1

    def see(self, agent: str) -> Any:
        return np.ones(1, np.float32)

    def pay(self, actions: Any) -> Any:
        paid = {(0, 0): 11.0, (2, 2): 45.0}.get((int(actions["a"]), int(actions["b"])), 0.0)
        return dict.fromkeys("ab", self.config["factor"] * paid)


def team(context: Any) -> Any:
    return Team(context).with_agent_groups({"team": ["a", "b"]})


QUICK: dict[str, Any] = {
    "num_envs_per_worker": 4, "seed": 1, "min_sample_timesteps_per_iteration": 256, "train_batch_size": 32,
    "num_steps_sampled_before_learning_starts": 64, "training_intensity": 2.0,
    "exploration_config": {"epsilon_timesteps": 300},
}  # fmt: skip
RUNS: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "dqn": (DQN, Corridor, {}),
    "priorities": (
        DQN,
        Corridor,
        {"replay_buffer_config": {"prioritized_replay": True}, "td_error_loss_fn": "mse"},
    ),
    "recurrent": (DQN, Corridor, {"model": {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 8}}),
    "custom model": (DQN, Corridor, {"model": {"custom_model": Net}}),
    "qmix": (QMIX, team, {}),
    "vdn": (QMIX, team, {"mixer": "vdn"}),
}


def played(name: str, factor: float) -> tuple[npt.NDArray[Any], float, dict[str, Any]]:
    """Return the actions after two iterations, their mean Q-value and the weights."""
    kind, env, config = RUNS[name]
    with kind(env=env, config={**QUICK, "env_config": {"factor": factor}, **config}) as algo:
        algo.train()
        stats = algo.train()["info"]["default_policy"]
        actions = algo.sample()["default_policy"]["actions"]
        return actions, stats["mean_q"], algo.get_weights()["default_policy"]


@pytest.mark.slow_unless("priorities", "recurrent", "qmix")
@pytest.mark.parametrize("name", RUNS)
def test_rewards_times_a_power_of_two_give_the_same_run(name: str) -> None:
    actions, mean_q, weights = played(name, 1.0)
    assert mean_q != 0.0
    for factor in (2.0**10, 2.0**-10):
        also, scaled, others = played(name, factor)
        np.testing.assert_array_equal(also, actions)
        assert scaled == pytest.approx(factor * mean_q, rel=1e-6)
        same = [key for key in weights if np.array_equal(weights[key], others[key])]
        # All but the last layers, which give Q-values in the environment's unit.
        assert 0 < len(weights) - len(same) <= 8


class Gamble(Alone):
    """One state: action 0 pays 5, action 1 pays 100 with probability 0.2."""

    length = 1

    def pay(self, action: Any) -> float:
        return float(
            self.config["factor"] * (5.0 if action == 0 else 100.0 * (self.np_random.random() < 0.2))
        )


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["huber", "mse"])
@pytest.mark.parametrize(("factor", "best"), [(1.0, 1), (-1.0, 0), (0.01, 1), (-100.0, 0)])
def test_dqn_prefers_the_action_that_pays_more_on_average(loss: str, factor: float, best: int) -> None:
    for seed in range(10):
        config = {
            "num_envs_per_worker": 8,
            "seed": seed,
            "env_config": {"factor": factor},
            "td_error_loss_fn": loss,
        }
        with DQN(env=Gamble, config=config) as algo:
            for _ in range(10):
                algo.train()
            assert algo.get_policy().act(np.ones(1, np.float32), explore=False) == best
