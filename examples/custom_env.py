"""An environment written from scratch: a dark corridor with a switch at one end and a locked door at the other.

    python examples/custom_env.py
    menv train examples/custom_env.py:Corridor --stop episode_reward_mean=0.88

The walker starts in the middle, walks left to the switch and then right to the door. It sees where it is and whether
the door is open. The fewest steps are 4 + 8.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from menv import register_env
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs


class Corridor(gym.Env[Any, Any]):
    def __init__(self, length: int = 8) -> None:
        self.door = length
        # The position, and whether the door is open.
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        # Left, right.
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.door // 2
        self.door_is_open = False
        self.steps = 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 0:
            self.position = max(0, self.position - 1)
        else:
            self.position = min(self.door, self.position + 1)
        if self.position == 0:
            self.door_is_open = True
        self.steps += 1
        terminated = self.door_is_open and self.position == self.door
        truncated = self.steps >= 200
        reward = 1.0 if terminated else -0.01
        return self.observe(), reward, terminated, truncated, {}

    def observe(self) -> Any:
        return np.array([self.position / self.door, self.door_is_open], np.float32)


register_env("corridor", lambda context: Corridor(**context))


def main(seconds: float = 30.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("corridor", "PPO")
    config = {"env_config": {"length": 8}, "num_envs_per_worker": 16, "seed": seed}
    # 12 steps without the reward of the door, and one more.
    stop = {"episode_reward_mean": 0.88, "time_total_s": seconds}
    with PPO(env="corridor", config=config) as algo:
        result = algo.learn(stop=stop, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir], key="episode_len_mean"))
    return {"mean_steps": result["episode_len_mean"]}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
