"""A central critic by an observation function: all see all, and the policies ignore what they must not see.

`share` shows each agent of the two-step game the other one's observation beside its own. The network is a module of
our own: its policy half reads the own observation alone, its value half both. The team gets 8 instead of a sure 7.
"""

import argparse
import json
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from menv import PolicySpec
from menv.algorithms import PPO
from menv.envs import TwoStepGame

SHARED = gym.spaces.Dict(dict.fromkeys(("own", "opponent"), gym.spaces.Box(0.0, 1.0, (5,), np.float32)))
SIZES: dict[str, Any] = {"num_envs_per_worker": 32, "train_batch_size": 512, "entropy_coeff": 0.01}
GREEDY: dict[str, Any] = {"gamma": 1.0, "evaluation_duration": 1, "evaluation_config": {"explore": False}}
OTHER = {"agent_1": "agent_2", "agent_2": "agent_1"}


def share(agent_obs: dict[str, Any], **kw: Any) -> dict[str, Any]:
    return {agent: {"own": obs, "opponent": agent_obs[OTHER[agent]]} for agent, obs in agent_obs.items()}


class OwnEyes(nn.Module):
    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, num_outputs))
        self.critic = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))

    def forward(self, obs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy(obs["own"]), self.critic(torch.cat((obs["own"], obs["opponent"]), 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args, start = parser.parse_args(), time.perf_counter()
    policies = dict.fromkeys(OTHER, PolicySpec(observation_space=SHARED))
    agents = {"policies": policies, "policy_mapping_fn": lambda a, **kw: a, "observation_fn": share}
    config = {**SIZES, **GREEDY, "model": {"custom_model": OwnEyes}, "multiagent": agents, "seed": args.seed}
    with PPO(env=TwoStepGame, config=config) as algo:
        while algo.train()["time_total_s"] < args.seconds:
            pass
        mean = algo.evaluate()["evaluation"]["episode_reward_mean"]
    print(f"return {mean:.2f}")
    if args.json:
        print(json.dumps({"return": mean, "seconds": time.perf_counter() - start, "seed": args.seed}))


if __name__ == "__main__":
    main()
