"""Groups with a memory: they act on what they saw before, wherever they act."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import Policy, local_policy_inference
from menv.algorithms import PPO, QMIX
from tests.worlds import Several, like


class Cue(Several):
    """Two agents see a number, 0 or 1, in the first step alone; in the third step each is paid for choosing it."""

    possible_agents, length = ("a", "b"), 3
    observation_space, action_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32), gym.spaces.Discrete(2)
    cue = 0

    def see(self, agent: str) -> Any:
        if self.at == 0 and agent == "a":
            self.cue = int(self.np_random.integers(2))
        return np.array([self.at == 0, self.at == 0 and self.cue], np.float32)

    def pay(self, actions: Any) -> Any:
        return {agent: float(self.at == 3 and action == self.cue) / 2 for agent, action in actions.items()}


# The number of the first step is what both are paid in the third one, whatever they do.
Promise = like(Cue, pay=lambda self, actions: {agent: float(self.at == 3 and self.cue) for agent in actions})


@pytest.mark.parametrize(("model", "least", "most"), [
    ({"use_gru": True}, 0.9, 1.0), pytest.param({"use_lstm": True}, 0.9, 1.0, marks=pytest.mark.slow), ({}, 0.0, 0.6),
], ids=["gru", "lstm", "none"])  # fmt: skip
def test_only_a_central_critic_with_a_memory_predicts_what_was_promised(
    model: dict[str, Any], least: float, most: float
) -> None:
    config = {
        "critic_obs": "all_agents", "num_envs_per_worker": 16, "train_batch_size": 1024, "lr": 1e-2, "seed": 0,
        "model": {"fcnet_hiddens": [16], "lstm_cell_size": 8, "max_seq_len": 3, **model},
    }  # fmt: skip
    with PPO(env=Promise, config=config) as algo:
        for _ in range(12):
            found = algo.train()["info"]["default_policy"]["vf_explained_var"]
    assert least <= found <= most


@pytest.mark.slow
def test_a_team_with_a_recurrent_central_critic_remembers_a_cue() -> None:
    config = {
        "critic_obs": "all_agents", "num_envs_per_worker": 32, "train_batch_size": 1024, "lr": 5e-3, "seed": 0,
        "model": CONFIG["model"], "evaluation_duration": 40, "evaluation_config": {"explore": False},
    }  # fmt: skip
    with PPO(env=Cue, config=config) as algo:
        for _ in range(20):
            algo.train()
        assert algo.evaluate()["evaluation"]["episode_reward_mean"] >= 0.95


def team(context: Any) -> Any:
    return Cue(context).with_agent_groups({"team": ["a", "b"]})


CONFIG: dict[str, Any] = {
    "seed": 0, "num_envs_per_worker": 8, "gamma": 0.9, "lr": 3e-3, "num_steps_sampled_before_learning_starts": 200,
    "target_network_update_freq": 200, "evaluation_duration": 40, "evaluation_config": {"explore": False},
    "exploration_config": {"epsilon_timesteps": 2_000},
    "model": {"fcnet_hiddens": [16], "use_gru": True, "lstm_cell_size": 16, "max_seq_len": 6},
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"mixer": "vdn"},
        {"mixer": "qmix"},
        {"mixer": "vdn", "td_lambda": 0.8, "batch_mode": "complete_episodes"},
    ],
    ids=str,
)
@pytest.mark.slow_unless("*qmix*")
def test_a_group_with_a_memory_remembers_a_cue(settings: dict[str, Any], tmp_path: Path) -> None:
    with QMIX(env=team, config={**CONFIG, **settings}) as algo:
        while algo.train()["num_env_steps_sampled"] < 4_000:
            pass
        assert algo.evaluate()["evaluation"]["episode_reward_mean"] == 1.0
        trained: Any = algo.get_policy()
        trained.export_checkpoint(tmp_path / "bundle")
    policy: Any = Policy.from_checkpoint(tmp_path / "bundle")
    for cue in (0, 1):
        for step in range(3):
            own = np.array([step == 0, step == 0 and cue], np.float32)
            ((actions, _, _),) = local_policy_inference(policy, cue, "team", (own, own), explore=False)
        assert [int(action) for action in actions] == [cue, cue]


def test_a_feed_forward_policy_cannot() -> None:
    flat = {**CONFIG, "mixer": "vdn", "model": {"fcnet_hiddens": [16]}}
    with QMIX(env=team, config=flat) as algo:
        while algo.train()["num_env_steps_sampled"] < 2_000:
            pass
        assert algo.evaluate()["evaluation"]["episode_reward_mean"] < 0.8
