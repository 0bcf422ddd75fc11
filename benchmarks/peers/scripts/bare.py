"""The environments alone: a plain loop with random actions, which shows what they leave to a library."""

from typing import Any

import torch
from vmas import make_env

from benchmarks.floors import bare_gym, bare_parallel
from benchmarks.peers.scripts.shared import TEAMS, Sample, main


def cartpole(num_envs: int, length: int) -> Sample:
    def sample() -> int:
        bare_gym("CartPole-v1", num_envs, 64_000)
        return 64_000

    return sample


def team(make: Any) -> Sample:
    def sample() -> int:
        bare_parallel(make, TEAMS, 8192)
        return 8192

    return sample


def balance(num_envs: int, length: int) -> Sample:
    env = make_env("balance", num_envs=num_envs, max_steps=100)

    def sample() -> int:
        for _ in range(length):
            *_, done, _ = env.step([2 * torch.rand(num_envs, 2) - 1 for _ in env.agents])
            for world in done.nonzero():
                env.reset_at(int(world))
        return length * num_envs

    return sample


if __name__ == "__main__":
    main("pettingzoo mpe2 vmas", cartpole, team, balance)
