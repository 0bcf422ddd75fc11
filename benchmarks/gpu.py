"""How long learning takes on the CPU and on a GPU, for convolutions, wide layers and small networks.

    python -m benchmarks.gpu [--iterations N]

The two algorithms of a line train by turns, with the same settings and seed. The time is `learn_time_s`, the median
after one warm-up iteration each. Observations are random numbers, because only their shape matters here.
"""

from __future__ import annotations

import argparse
import os
import statistics
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from menv.algorithms import DQN, PPO

IMAGES = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
NUMBERS = gym.spaces.Box(-1.0, 1.0, (64,), np.float32)
_PPO: dict[str, Any] = {"num_envs_per_worker": 16, "num_sgd_iter": 4, "seed": 0}
_DQN: dict[str, Any] = {
    "num_envs_per_worker": 16,
    "seed": 0,
    "min_sample_timesteps_per_iteration": 256,
    "num_steps_sampled_before_learning_starts": 256,
}
LINES: dict[str, tuple[Any, gym.spaces.Box, dict[str, Any]]] = {
    "PPO, 84 x 84 x 4 images, minibatch 256": (
        PPO, IMAGES, {**_PPO, "train_batch_size": 1024, "sgd_minibatch_size": 256},
    ),
    "DQN, 84 x 84 x 4 images, batch 256": (
        DQN, IMAGES, {**_DQN, "train_batch_size": 256, "training_intensity": 32},
    ),
    "PPO, layers of 2,048, minibatch 1,024": (
        PPO, NUMBERS,
        {**_PPO, "train_batch_size": 4096, "sgd_minibatch_size": 1024, "model": {"fcnet_hiddens": [2048, 2048]}},
    ),
    "PPO, layers of 512, minibatch 1,024": (
        PPO, NUMBERS,
        {**_PPO, "train_batch_size": 4096, "sgd_minibatch_size": 1024, "model": {"fcnet_hiddens": [512, 512]}},
    ),
    "PPO, layers of 64, minibatch 128": (
        PPO, NUMBERS,
        {**_PPO, "train_batch_size": 2048, "sgd_minibatch_size": 128, "model": {"fcnet_hiddens": [64, 64]}},
    ),
}  # fmt: skip


class Noise(gym.Env[Any, Any]):
    """Episodes of 64 steps with random observations and rewards."""

    def __init__(self, obs_space: gym.spaces.Box) -> None:
        self.observation_space = obs_space
        self.action_space = gym.spaces.Discrete(6)
        rng = np.random.default_rng(0)
        self._frames = (rng.uniform(size=(64, *obs_space.shape)) * obs_space.high).astype(obs_space.dtype)
        self._rewards = rng.normal(size=64).tolist()
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._frames[self._step % 64], self._rewards[self._step % 64], self._step == 64, False, {}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--iterations", type=int, default=5, metavar="N", help="of each (%(default)s)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no GPU; run this where `menv doctor` lists one")
    print(f"{torch.cuda.get_device_name()}, {len(os.sched_getaffinity(0))} CPUs, torch {torch.__version__}")
    for name, (algorithm_class, obs_space, config) in LINES.items():
        seconds = _learning_seconds(algorithm_class, obs_space, config, args.iterations)
        print(
            f"{name}: CPU {seconds[0]:.3f} s, GPU {seconds[1]:.3f} s, {seconds[0] / seconds[1]:.2f} times as fast"
        )


def _learning_seconds(
    algorithm_class: Any, obs_space: gym.spaces.Box, config: dict[str, Any], iterations: int
) -> list[float]:
    with ExitStack() as stack:
        algorithms = [
            stack.enter_context(
                algorithm_class(env=lambda _: Noise(obs_space), config={**config, "num_gpus": num_gpus})
            )
            for num_gpus in (0, 1)
        ]
        taken: list[list[float]] = [[], []]
        for _ in range(iterations + 1):
            for times, algorithm in zip(taken, algorithms, strict=True):
                times.append(algorithm.train()["sampler_perf"]["learn_time_s"])
    return [statistics.median(times[1:]) for times in taken]


if __name__ == "__main__":
    main()
