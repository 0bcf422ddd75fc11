"""The environments alone: a plain loop with random actions, which shows what they leave to a library."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from vmas import make_env

from benchmarks.floors import bare_gym, bare_parallel
from benchmarks.peers.scripts.shared import TEAMS, CartPoles, Sample, main, spread


def looped(
    loop: Callable[[Any, int, int], float], make: Any, num_envs: int, env_steps: int
) -> Callable[[], Sample]:
    def sample() -> int:
        loop(make, num_envs, env_steps)
        return env_steps

    return lambda: sample


def balance(num_envs: int) -> Sample:
    env = make_env("balance", num_envs=num_envs, max_steps=100)

    def sample() -> int:
        for _ in range(20):
            *_, done, _ = env.step([2 * torch.rand(num_envs, 2) - 1 for _ in env.agents])
            for world in done.nonzero():
                env.reset_at(int(world))
        return 20 * num_envs

    return sample


if __name__ == "__main__":
    tasks: dict[str, Callable[[], Sample]] = {
        "cartpole_64": looped(bare_gym, "CartPole-v1", 64, 128_000),
        "cartpole_1": looped(bare_gym, "CartPole-v1", 1, 64_000),
        "cartpoles": looped(bare_parallel, CartPoles, TEAMS, 16_384),
        "simple_spread": looped(bare_parallel, spread, TEAMS, 8192),
        "balance_64": partial(balance, 64),
        "balance_1024": partial(balance, 1024),
    }
    main(["pettingzoo", "mpe2", "vmas"], tasks)
