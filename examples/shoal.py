"""Many worlds of many agents in arrays, without an object for each: python examples/shoal.py

A `BaseEnv` of your own that returns tables; a slot is a fish's row. 16 shoals of 100 fish learn to gather.
"""

import argparse
import json
from typing import Any

import gymnasium as gym
import numpy as np

from menv import BaseEnv, End, EnvContext, EpisodeEnd, Join, Ready
from menv.algorithms import PPO

LENGTH, MOVES = 50, np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32) / 10


class Shoal(BaseEnv):
    returns_table = lockstep = True  # all worlds step at once
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)  # the way to the middle
    action_space = gym.spaces.Discrete(5)

    def __init__(self, context: EnvContext) -> None:
        self.num_envs, self.t, self.rng = 16, LENGTH, np.random.default_rng(context.worker_index)
        self.slots, self.seats = np.arange(1600), [divmod(slot, 100) for slot in range(1600)]
        self.at, self.paid, self.env_steps = np.zeros((16, 100, 2)), np.zeros(1600), np.zeros(16, np.int64)

    def poll(self, timeout: float | None = None) -> Ready:
        if self.t < LENGTH:
            return Ready(self.slots, self.see(), self.paid, self.env_steps)
        over, last = self.env_steps[0] > 0, self.see()
        ended = [End(s, *a, self.paid[s], False, True, last[s], {}) for s, a in enumerate(self.seats) if over]
        episodes = [EpisodeEnd(shoal, False, True, LENGTH, shoal) for shoal in range(16) if over]
        joined = [Join(s, *a, a[0]) for s, a in enumerate(self.seats)]
        self.at, self.t = self.rng.normal(size=(16, 100, 2)), 0
        return Ready(self.slots, self.see(), np.zeros(1600), self.env_steps, joined, ended, episodes)

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.at, self.t = self.at + MOVES[actions].reshape(16, 100, 2), self.t + 1
        self.paid, self.env_steps = -np.linalg.norm(self.see(), axis=1), self.env_steps + 1

    def see(self) -> Any:
        return (self.at.mean(1, keepdims=True) - self.at).reshape(1600, 2).astype(np.float32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args, seconds = parser.parse_args(), 0.0
    config = {"rollout_fragment_length": 50, "train_batch_size": 800, "sgd_minibatch_size": 4096, "lr": 2e-3}
    with PPO(env=Shoal, config={**config, "num_sgd_iter": 4, "seed": args.seed}) as algo:
        while seconds < args.seconds:
            result = algo.train()
            mean, seconds = result["episode_reward_mean"] / 100, result["time_total_s"]
            print(f"{seconds:5.1f} s  {result['num_agent_steps_sampled']:,} steps  {-mean / LENGTH:.3f} off")
    if args.json:
        print(json.dumps({"mean": mean, "seconds": seconds, "seed": args.seed}))
