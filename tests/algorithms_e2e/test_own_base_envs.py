"""A `BaseEnv` of a user's own in training and evaluation: its sub-environments may come and go, uncounted."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import BaseEnv
from menv.algorithms import PPO
from menv.base_env import ALL

LENGTH = 4
TOGETHER = 12


class Matches(BaseEnv):
    """Three matches of one agent; with `leave` match 2 ends for good after its first episode."""

    observation_space = gym.spaces.Box(0, LENGTH, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: Any) -> None:
        self.at = dict.fromkeys(range(3), 0)
        self.leave, self.out = context.get("leave", False), [(env_id, 0.0) for env_id in self.at]

    def poll(self, timeout: float | None = None) -> Any:
        out, self.out = self.out, []
        obs = {env_id: {"a": np.array([self.at[env_id]], np.float32)} for env_id, _ in out}
        over = {env_id: {ALL: self.at[env_id] == LENGTH} for env_id in obs}
        rewards = {env_id: {"a": paid} for env_id, paid in out}
        return obs, rewards, over, {env_id: {ALL: False} for env_id in obs}, {}, {}

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        for env_id in slots:
            self.at[env_id] += 1
            self.out.append((env_id, 1.0))

    def try_reset(self, env_id: Any = None, **_: Any) -> Any:
        if self.leave and env_id == 2:
            return None, None
        self.at[env_id] = 0
        return {env_id: {"a": np.zeros(1, np.float32)}}, {}


class Counted(Matches):
    num_envs = 3


def built(env: type[Matches], **config: Any) -> PPO:
    return PPO(env=env, config={"train_batch_size": TOGETHER, "seed": 1, **config})


@pytest.mark.parametrize("env", [Matches, Counted])
def test_a_train_batch_is_of_all_sub_environments_together(env: type[Matches]) -> None:
    with built(env) as algo:
        assert [algo.train()["num_env_steps_sampled"] for _ in range(3)] == [12, 24, 36]


@pytest.mark.parametrize("env", [Matches, Counted])
def test_a_fragment_has_the_given_number_of_steps_of_each_sub_environment(env: type[Matches]) -> None:
    with built(env, rollout_fragment_length=6) as algo:
        assert np.bincount(algo.sample()["default_policy"]["env_id"]).tolist() == [6, 6, 6]


@pytest.mark.parametrize("env", [Matches, Counted])
@pytest.mark.parametrize(("unit", "duration"), [("episodes", 6), ("timesteps", 24)])
def test_evaluations_are_shared_out_to_all_sub_environments(
    env: type[Matches], unit: str, duration: int
) -> None:
    with built(env, evaluation_duration=duration, evaluation_duration_unit=unit) as algo:
        for _ in range(2):
            found = algo.evaluate()["evaluation"]
            assert found["hist_stats"]["episode_lengths"] == [LENGTH] * 6


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_no_fragment_waits_for_a_sub_environment_that_is_gone(batch_mode: str) -> None:
    with built(Matches, env_config={"leave": True}, batch_mode=batch_mode, evaluation_duration=7) as algo:
        for _ in range(4):
            algo.train()
        assert algo.evaluate()["evaluation"]["episode_len_mean"] == LENGTH


@pytest.mark.slow_unless("Matches")
@pytest.mark.parametrize("env", [Matches, Counted])
def test_workers_have_different_episodes(env: type[Matches]) -> None:
    config = {"num_workers": 2, "engine": "process", "train_batch_size": 6 * LENGTH}
    with built(env, **config) as algo:
        batch = algo.sample()["default_policy"]
    # Two workers with three matches each.
    assert len(np.unique(batch["eps_id"])) == 6
