"""An environment written from scratch: a dark corridor with a switch at one end and a locked door at the other.

    python examples/custom_env.py

The walker starts in the middle, has to walk left to the switch and then right to the door, and sees only where
it is and whether the door is open. The fewest steps are 4 + 8.
"""

import argparse
import json
import time
from typing import Any

import gymnasium as gym
import numpy as np

from menv import EnvContext, register_env
from menv.algorithms import PPO


class Corridor(gym.Env[Any, Any]):
    def __init__(self, context: EnvContext) -> None:
        self.door = context["length"]
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)  # place, whether the door is open
        self.action_space = gym.spaces.Discrete(2)  # left, right

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.open, self.steps = self.door // 2, False, 0
        return self._see(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.cell = min(self.door, max(0, self.cell + (1 if action else -1)))
        self.open, self.steps = self.open or self.cell == 0, self.steps + 1
        out = self.open and self.cell == self.door
        return self._see(), 1.0 if out else -0.01, out, self.steps >= 200, {}

    def _see(self) -> Any:
        return np.array([self.cell / self.door, self.open], np.float32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="longest time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    register_env("corridor", Corridor)
    config = {"env_config": {"length": 8}, "num_envs_per_worker": 16, "seed": args.seed}
    start, seconds, mean = time.perf_counter(), 0.0, None
    with PPO(env="corridor", config=config) as algo:
        while seconds < args.seconds and (mean is None or mean > 13.0):
            result, seconds = algo.train(), time.perf_counter() - start
            mean = result["episode_len_mean"]
            print(f"{seconds:5.1f} s  {mean} steps to the door")
    if args.json:
        solved = mean is not None and mean <= 13.0
        print(json.dumps({"solved": solved, "mean_steps": mean, "seconds": seconds, "seed": args.seed}))
