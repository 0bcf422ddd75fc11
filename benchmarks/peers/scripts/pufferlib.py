"""PufferLib: its trainer `PuffeRL` with the settings of its `config/default.ini`, on the CPU.

The environments are the ones that all libraries step here, through PufferLib's emulation and its `Serial` backend; its
own C environments are no part of this. It publishes no settings for gymnasium's CartPole.
"""

import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pufferlib.vector
import torch
from pufferlib import pufferl
from pufferlib.emulation import GymnasiumPufferEnv, PettingZooPufferEnv
from pufferlib.pytorch import layer_init

from benchmarks.peers.scripts.shared import HIDDEN, LENGTH, TEAMS, Sample, Seen, main


def network(inputs: int, outputs: int, std: float) -> torch.nn.Module:
    first, second = (
        layer_init(torch.nn.Linear(inputs, HIDDEN[0])),
        layer_init(torch.nn.Linear(HIDDEN[0], HIDDEN[1])),
    )
    last = layer_init(torch.nn.Linear(HIDDEN[1], outputs), std=std)
    return torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), last)


class Policy(torch.nn.Module):
    """A policy and a value network, as PufferLib's example writes its own."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        self.logits, self.value = network(inputs, envs.single_action_space.n, 0.01), network(inputs, 1, 1.0)

    def forward(self, obs: Any, state: Any = None) -> Any:
        rows = obs.float().flatten(1)
        return self.logits(rows), self.value(rows)

    forward_eval = forward


def trainer(emulated: Any, make: Any, num_envs: int, length: int, seed: int = 0, steps: int = 10**9) -> Any:
    creator = partial(emulated, env_creator=make)
    envs = pufferlib.vector.make(creator, num_envs=num_envs, backend=pufferlib.vector.Serial, seed=seed)
    sys.argv = sys.argv[:1]
    config = pufferl.load_config("default")["train"]
    rows = envs.num_agents * length
    sizes = {"bptt_horizon": length, "minibatch_size": rows, "max_minibatch_size": rows}
    config.update(env="cartpole", device="cpu", seed=seed, total_timesteps=steps, **sizes)
    one = pufferl.PuffeRL(config, envs, Policy(envs.driver_env))
    one.utilization.stop()  # a thread that would keep this process alive
    return one


def collecting(emulated: Any, make: Any, num_envs: int, length: int) -> Sample:
    one = trainer(emulated, make, num_envs, length)

    def sample() -> int:
        before = one.global_step
        one.evaluate()
        return int(one.global_step - before) * num_envs // int(one.vecenv.num_agents)

    return sample


def one_cartpole() -> Any:
    return pufferlib.EpisodeStats(gym.make("CartPole-v1"))


def cartpole(num_envs: int, length: int) -> Sample:
    return collecting(GymnasiumPufferEnv, one_cartpole, num_envs, length)


def team(make: Any) -> Sample:
    return collecting(PettingZooPufferEnv, make, TEAMS, LENGTH)


def learn(seed: int, seen: Seen) -> None:
    one = trainer(GymnasiumPufferEnv, one_cartpole, 64, 64, seed, 10_000_000)
    one.print_dashboard = lambda *args, **kwargs: None
    returns: list[float] = []
    while not seen(one.global_step, returns):
        one.stats.clear()
        one.evaluate()
        returns = list(one.stats["episode_return"])
        one.train()


if __name__ == "__main__":
    main("pufferlib pettingzoo", cartpole, team, learn=learn)
