"""A simulator whose steps take a moment, shared out to workers: examples/workers.py --workers 2 --overlap."""

import argparse
import json
import time
from typing import Any

import gymnasium as gym
import numpy as np

from menv.algorithms import PPO


class Thermostat(gym.Env[Any, Any]):
    """Heat or wait: a room that cools down shall stay near 20 degrees. Each step takes half a millisecond."""

    observation_space = gym.spaces.Box(-20.0, 20.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: Any) -> None:
        self.apart, self.at = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.apart, self.at = self.np_random.uniform(-10.0, 10.0), 0
        return np.array([self.apart], np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.0005)
        self.apart = np.clip(self.apart + 2 * action - 1 + self.np_random.normal(0.0, 0.2), -20.0, 20.0)
        self.at += 1
        return np.array([self.apart], np.float32), float(abs(self.apart) < 2.0), False, self.at == 50, {}


def main() -> None:
    """Read the command line, train, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="longest time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", choices=("process", "ray"), default="process")
    parser.add_argument("--overlap", action="store_true", help="sample while this process learns")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    config = {"num_workers": args.workers, "engine": args.engine, "overlap": args.overlap, "num_envs_per_worker": 8,
              "train_batch_size": 1600, "sgd_minibatch_size": 200, "lr": 3e-3, "seed": args.seed}  # fmt: skip
    start, seconds, mean = time.perf_counter(), 0.0, 0.0
    with PPO(env=Thermostat, config=config) as algo:
        while seconds < args.seconds and mean < 35.0:
            result = algo.train()
            seconds, steps = time.perf_counter() - start, result["num_env_steps_sampled"]
            mean = result["episode_reward_mean"] or 0.0
            print(f"{steps:>8,} env steps, {steps / seconds:,.0f} a second, mean return {mean:.1f} of 50")
    if args.json:
        print(json.dumps({"mean_return": mean, "env_steps": steps, "seconds": seconds, "seed": args.seed}))


if __name__ == "__main__":
    main()
