"""PufferLib: its trainer `PuffeRL` with the settings of its `config/default.ini`, on the CPU.

The environments are the ones that all libraries step here, through PufferLib's emulation and its `Serial` backend; its
own C environments are no part of this. It publishes no settings for gymnasium's CartPole.
"""

import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pufferlib.emulation
import pufferlib.vector
import torch
from pufferlib import pufferl
from pufferlib.pytorch import layer_init

from benchmarks.peers.scripts.shared import (
    HIDDEN,
    LENGTH,
    TEAMS,
    CartPoles,
    Sample,
    Seen,
    counted,
    main,
    spread,
)


class Policy(torch.nn.Module):
    """A policy and a value network, as PufferLib's example writes its own."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        inputs, (first, second) = int(np.prod(envs.single_observation_space.shape)), HIDDEN
        layers = [
            (layer_init(torch.nn.Linear(inputs, first)), layer_init(torch.nn.Linear(first, second)))
            for _ in "ab"
        ]
        self.bodies = torch.nn.ModuleList(
            torch.nn.Sequential(one, torch.nn.Tanh(), two, torch.nn.Tanh()) for one, two in layers
        )
        self.logits = layer_init(torch.nn.Linear(second, envs.single_action_space.n), std=0.01)
        self.value = layer_init(torch.nn.Linear(second, 1), std=1.0)

    def forward_eval(self, obs: Any, state: Any = None) -> Any:
        rows = obs.float().flatten(1)
        return self.logits(self.bodies[0](rows)), self.value(self.bodies[1](rows))

    def forward(self, obs: Any, state: Any = None) -> Any:
        return self.forward_eval(obs, state)


def trainer(emulated: Any, make: Any, num_envs: int, length: int, seed: int = 0, steps: int = 10**9) -> Any:
    creator = lambda **kwargs: emulated(env_creator=make, **kwargs)  # noqa: E731
    envs = pufferlib.vector.make(creator, num_envs=num_envs, backend=pufferlib.vector.Serial, seed=seed)
    sys.argv = sys.argv[:1]
    config = pufferl.load_config("default")["train"]
    rows = envs.num_agents * length
    config.update(env="cartpole", device="cpu", seed=seed, bptt_horizon=length, minibatch_size=rows)
    config.update(max_minibatch_size=rows, total_timesteps=steps)
    one = pufferl.PuffeRL(config, envs, Policy(envs.driver_env))
    one.utilization.stop()  # a thread that would keep this process alive
    return one


def collecting(emulated: Any, make: Any, num_envs: int, length: int, agents: int = 1) -> Sample:
    one = trainer(emulated, make, num_envs, length)

    def sample() -> int:
        before = one.global_step
        one.evaluate()
        return int(one.global_step - before) // agents

    return sample


GYM, TEAM = pufferlib.emulation.GymnasiumPufferEnv, pufferlib.emulation.PettingZooPufferEnv


def cartpole() -> Any:
    return pufferlib.EpisodeStats(gym.make("CartPole-v1"))


def learn(seed: int, seen: Seen) -> None:
    one = trainer(GYM, cartpole, 64, 64, seed, 10_000_000)
    one.print_dashboard = lambda *args, **kwargs: None
    returns: list[float] = []
    while not seen(one.global_step, returns):
        one.stats.clear()
        one.evaluate()
        returns = list(one.stats["episode_return"])
        one.train()


if __name__ == "__main__":
    tasks = {
        "cartpole_64": partial(collecting, GYM, cartpole, 64, LENGTH),
        "cartpole_1": partial(collecting, GYM, cartpole, 1, 1024),
        "cartpoles": lambda: counted(collecting(TEAM, CartPoles, TEAMS, LENGTH)),
        "simple_spread": lambda: collecting(TEAM, spread, TEAMS, LENGTH, 3),
    }
    main(["pufferlib", "pettingzoo"], tasks, learn)
