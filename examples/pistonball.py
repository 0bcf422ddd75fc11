"""Ten pistons push a ball to the left: each sees a picture of its neighbourhood, and one policy with a CNN moves all.

    python examples/pistonball.py --seconds 60

A piston's return is the percentage of its way that the ball has moved, less 0.1 for each of at most 125 steps.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import pygame
from pettingzoo.butterfly.pistonball import pistonball
from pettingzoo.utils import aec_to_parallel

from menv import register_env
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs
from menv.wrappers import ParallelPettingZooEnv

EVERY = 10
"""Every tenth pixel is seen: 46 x 12 of 457 x 120."""


class SmallPistonball(pistonball.raw_env):  # type: ignore[misc]
    """Shrinks the pictures before the game copies them, which is many times faster than a wrapper."""

    def __init__(self) -> None:
        # Without a render mode the game draws no ball.
        super().__init__(n_pistons=10, continuous=False, render_mode="rgb_array")
        space = gym.spaces.Box(0, 255, (46, 12, 3), np.uint8)
        self.observation_spaces = dict.fromkeys(self.agents, space)

    def observe(self, agent: str) -> Any:
        screen = pygame.surfarray.pixels3d(self.screen).transpose(1, 0, 2)
        left = self.piston_width * self.agent_name_mapping[agent]
        return screen[40:497:EVERY, left : left + 120][:, ::EVERY].copy()


register_env("small_pistonball", lambda context: ParallelPettingZooEnv(aec_to_parallel(SmallPistonball())))

CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 8,
    "train_batch_size": 512,
    "sgd_minibatch_size": 128,
    "num_sgd_iter": 3,
    "lr": 5e-4,
    "vf_loss_coeff": 0.1,
    "grad_clip": 10.0,
    "entropy_coeff": 0.01,
    "model": {"conv_filters": [[16, 4, 4], [32, 3, [2, 1]], [32, 3, 1]]},
}


def main(seconds: float = 60.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("pistonball", "PPO")
    with PPO(env="small_pistonball", config={**CONFIG, "seed": seed}) as algo:
        result = algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    if result["policy_reward_mean"]:
        print("wrote", plot_runs([run_dir]))
    return {"return": result["policy_reward_mean"].get("default_policy")}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
