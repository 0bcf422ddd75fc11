"""Agent ids that are objects, where environments live in other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.errors import ContractError
from menv.multi_agent_env import MultiAgentEnv


class Anybody:
    """Equals nothing but itself."""

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass(frozen=True)
class Somebody:
    """Equals its copies."""

    number: int


class Meeting(MultiAgentEnv):
    """Everybody acts for five steps, and is paid 1 for each."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: Any) -> None:
        super().__init__()
        self.possible_agents = [context["kind"](number) for number in range(2)]
        self.t = 0

    def _obs(self) -> dict[Any, Any]:
        return {agent: np.zeros(2, np.float32) for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        self.t += 1
        paid = dict.fromkeys(self.possible_agents, 1.0)
        return self._obs(), paid, {"__all__": self.t == 5}, {"__all__": False}, {}


CONFIG: dict[str, Any] = {"train_batch_size": 32, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "seed": 0}
FAR = {"remote_worker_envs": True, "engine": "process", "num_envs_per_worker": 2}


def test_ids_that_are_others_elsewhere_are_refused_at_once() -> None:
    with pytest.raises(
        ContractError, match=r"remote_envs: agent <.*Anybody.* of Meeting does not equal its copy"
    ):
        PPO(env=Meeting, config={**CONFIG, **FAR, "env_config": {"kind": Anybody}})
    # In one process they are who they are.
    with PPO(env=Meeting, config={**CONFIG, "env_config": {"kind": Anybody}}) as algo:
        assert algo.train()["episode_reward_mean"] == 10


def test_ids_that_equal_their_copies_play_elsewhere() -> None:
    with PPO(env=Meeting, config={**CONFIG, **FAR, "env_config": {"kind": Somebody}}) as algo:
        assert algo.train()["episode_reward_mean"] == 10
