"""A slow simulator runs in two worker processes, which sample while this process learns.

    python examples/workers.py --num-workers 2

With --engine ray the workers are Ray actors. Each step of the room takes half a millisecond.
"""

import time
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs


class Thermostat(gym.Env[Any, Any]):
    """A room that cools down is to stay near 20 degrees: heat or wait."""

    # Degrees above 20.
    observation_space = gym.spaces.Box(-20.0, 20.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.difference = self.np_random.uniform(-10.0, 10.0)
        self.steps = 0
        return np.array([self.difference], np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.0005)
        change = 1.0 if action == 1 else -1.0
        self.difference += change + self.np_random.normal(0.0, 0.2)
        self.difference = np.clip(self.difference, -20.0, 20.0)
        self.steps += 1
        reward = 1.0 if abs(self.difference) < 2.0 else 0.0
        return np.array([self.difference], np.float32), reward, False, self.steps == 50, {}


def main(
    num_workers: int = 2, engine: Literal["process", "ray"] = "process", seconds: float = 20.0, seed: int = 0
) -> dict[str, Any]:
    config = {
        "num_workers": num_workers,
        "engine": engine,
        "overlap": num_workers > 0,
        "num_envs_per_worker": 8,
        "train_batch_size": 1600,
        "sgd_minibatch_size": 200,
        "lr": 3e-3,
        "seed": seed,
    }
    run_dir = next_run_dir("thermostat", "PPO")
    stop = {"episode_reward_mean": 35.0, "time_total_s": seconds}
    with PPO(env=lambda context: Thermostat(), config=config) as algo:
        result = algo.learn(stop=stop, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    return {"mean_return": result["episode_reward_mean"], "env_steps": result["num_env_steps_sampled"]}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
