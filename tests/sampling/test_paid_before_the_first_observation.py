"""What an agent is paid before its first observation is part of its own return."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import MultiAgentEnv
from menv.algorithms import PPO
from menv.external_env import ExternalMultiAgentEnv

OBS = gym.spaces.Box(0.0, 100.0, (1,), np.float32)
ACT = gym.spaces.Discrete(2)


class Late(MultiAgentEnv):
    """ "bob" is paid 5 and flagged before he is observed, comes in the third step, and is paid 1 in each step then.

    "cyd" is paid 7 and never comes, which is its return.
    """

    def __init__(self, context: Any = None) -> None:
        super().__init__()
        self.possible_agents = ["ann", "bob", "cyd"]
        self.observation_space, self.action_space = OBS, ACT
        self.at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return {"ann": np.zeros(1, np.float32)}, {}

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        agents = ["ann", "bob"] if self.at >= 3 else ["ann"]
        rewards: dict[str, float] = {"ann": 1.0}
        if self.at == 1:
            rewards |= {"bob": 5.0, "cyd": 7.0}
        elif self.at > 3:
            rewards["bob"] = 1.0
        flags = {"__all__": self.at == 6} | ({"bob": True} if self.at == 1 else {})
        obs = {agent: np.full(1, self.at, np.float32) for agent in agents}
        return obs, rewards, flags, {"__all__": False}, {}


@pytest.mark.parametrize("where", [{}, {"num_workers": 1}], ids=["here", "worker"])
def test_it_counts_for_an_agent_that_is_flagged_first_and_observed_later(where: Any) -> None:
    config = {"rollout_fragment_length": 12, "train_batch_size": 12, "engine": "process", **where}
    with PPO(env=Late, config=config) as algo:
        result = algo.train()
    # Paid in all: 6 to ann, 5 + 3 to bob, 7 to cyd.
    assert result["agent_reward_mean"] == {"ann": 6.0, "bob": 8.0, "cyd": 7.0}
    assert result["policy_reward_mean"] == {"default_policy": 7.0}
    assert result["hist_stats"]["episode_reward"] == [21.0, 21.0]
    # No action can own what came before the first observation; it is reported so, too.
    assert result["unclaimed_rewards"] == 24.0


class LateCaller(ExternalMultiAgentEnv):
    def __init__(self) -> None:
        super().__init__(ACT, OBS)

    def run(self) -> None:
        while True:
            episode, game = self.start_episode(), Late()
            obs, over = game.reset()[0], False
            while not over:
                self.get_action(episode, obs)
                obs, rewards, flags, _, _ = game.step({})
                over = flags["__all__"]
                self.log_returns(episode, rewards, multiagent_done_dict=flags)
            self.end_episode(episode, obs)


def test_it_counts_in_external_environments() -> None:
    env = LateCaller()
    with PPO(env=lambda context: env, config={"rollout_fragment_length": 12, "train_batch_size": 12}) as algo:
        result = algo.train()
    assert result["agent_reward_mean"]["bob"] == 8.0
