"""Ten pistons push a ball to the left: each sees a picture of what is around it, and one policy with a CNN moves all.

    python examples/pistonball.py --seconds 60

A piston's return is the percentage of its way that the ball has gone, less 0.1 for each of at most 125 steps.
"""

import argparse
import json
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pygame
from pettingzoo.butterfly.pistonball import pistonball
from pettingzoo.utils import aec_to_parallel

from menv.algorithms import PPO
from menv.wrappers import ParallelPettingZooEnv


class SmallPistonball(pistonball.raw_env):  # type: ignore[misc]
    """Shows every tenth pixel, 46 x 12 of 457 x 120; taken before the game copies them, that is many times as fast."""

    def __init__(self) -> None:
        super().__init__(n_pistons=10, continuous=False, render_mode="rgb_array")  # else no ball is drawn
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Box(0, 255, (46, 12, 3), np.uint8))

    def observe(self, agent: str) -> Any:
        pixels = pygame.surfarray.pixels3d(self.screen).transpose(1, 0, 2)[40:497:10]
        return pixels[:, self.piston_width * self.agent_name_mapping[agent] :][:, :120:10].copy()


CONFIG: dict[str, Any] = {
    "env": lambda context: ParallelPettingZooEnv(aec_to_parallel(SmallPistonball())),
    "num_envs_per_worker": 8, "train_batch_size": 512, "sgd_minibatch_size": 128, "num_sgd_iter": 3, "lr": 1e-3,
    "gamma": 0.97, "vf_loss_coeff": 0.1, "grad_clip": 10.0, "entropy_coeff": 0.003,
    "model": {"conv_filters": [[16, 4, 4], [32, 3, [2, 1]], [32, 3, 1]]},
}  # fmt: skip


def main() -> None:
    """Read the command line, train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args, start, seconds = parser.parse_args(), time.perf_counter(), 0.0
    with PPO(config={**CONFIG, "seed": args.seed}) as algo:
        while seconds < args.seconds:
            result, seconds = algo.train(), time.perf_counter() - start
            outcome = {key: result[key] for key in ("policy_reward_mean", "num_env_steps_sampled")}
            print(f"{seconds:5.1f} s", outcome)
    if args.json:
        print(json.dumps({**outcome, "seconds": seconds, "seed": args.seed}))


if __name__ == "__main__":
    main()
