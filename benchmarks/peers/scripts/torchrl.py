"""TorchRL, with which BenchMARL samples and trains: PPO with the settings of its tutorial (`coding_ppo.py`).

It publishes no settings for PPO on CartPole. Of its ways to step 64 CartPoles in one process, a wrapped
`SyncVectorEnv` is the fastest here; other environments are in a `SerialEnv`, and VMAS in its own `VmasEnv`.
"""

from functools import partial
from typing import Any

import gymnasium as gym
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import (
    GymWrapper,
    MarlGroupMapType,
    PettingZooWrapper,
    RewardSum,
    SerialEnv,
    TransformedEnv,
    VmasEnv,
)
from torchrl.modules import (
    MLP,
    MultiAgentMLP,
    NormalParamExtractor,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

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

TANH = {"num_cells": HIDDEN, "activation_class": torch.nn.Tanh}
CATEGORICAL = {"distribution_class": torch.distributions.Categorical, "return_log_prob": True}
NORMAL = {"distribution_class": TanhNormal, "return_log_prob": True}


def collecting(env: Any, policy: Any, frames: int) -> Sample:
    collected = iter(Collector(env, policy, frames_per_batch=frames, total_frames=-1))
    return lambda: int(next(collected).numel())


def envs(num_envs: int) -> Any:
    make, mode = partial(gym.make, "CartPole-v1"), gym.vector.AutoresetMode.DISABLED
    env = make() if num_envs == 1 else gym.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
    return TransformedEnv(GymWrapper(env, categorical_action_encoding=True), RewardSum())


def actor() -> Any:
    module = TensorDictModule(MLP(in_features=4, out_features=2, **TANH), ["observation"], ["logits"])
    return ProbabilisticActor(module, ["logits"], **CATEGORICAL)


def cartpole(num_envs: int, length: int) -> Sample:
    return collecting(envs(num_envs), actor(), num_envs * length)


def team(env: Any, group: str, frames: int, outputs: int, continuous: bool = False) -> Sample:
    agents, width = env.observation_spec[group, "observation"].shape[-2:]
    net = MultiAgentMLP(width, outputs, agents, centralized=False, share_params=True, **TANH)
    keys = [(group, key) for key in (("loc", "scale") if continuous else ("logits",))]
    module = TensorDictModule(
        torch.nn.Sequential(net, NormalParamExtractor()) if continuous else net,
        [(group, "observation")],
        keys,
    )
    form = NORMAL if continuous else CATEGORICAL
    return collecting(env, ProbabilisticActor(module, keys, out_keys=[(group, "action")], **form), frames)


def pettingzoo(make: Any, outputs: int) -> Sample:
    settings = {"use_mask": True, "categorical_actions": True, "group_map": MarlGroupMapType.ALL_IN_ONE_GROUP}
    settings["done_on_any"] = False
    env = SerialEnv(TEAMS, lambda: PettingZooWrapper(make(), **settings))
    return team(env, "agents", TEAMS * LENGTH, outputs)


def balance(num_envs: int, length: int) -> Sample:
    env = VmasEnv("balance", num_envs=num_envs, max_steps=100)
    return team(env, "agents", num_envs * length, 4, continuous=True)


def learn(seed: int, seen: Seen) -> None:
    env, policy = envs(1), actor()
    env.set_seed(seed)
    critic = ValueOperator(MLP(in_features=4, out_features=1, **TANH), ["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(policy, critic, clip_epsilon=0.2, entropy_coeff=1e-4, critic_coeff=1.0)
    optimizer, steps = torch.optim.Adam(loss.parameters(), 3e-4), 0
    for data in Collector(env, policy, frames_per_batch=1000, total_frames=-1):
        steps += data.numel()
        if seen(steps, data["next", "episode_reward"][data["next", "done"]].tolist()):
            break
        for _ in range(10):
            advantage(data)
            for rows in torch.randperm(data.numel()).split(64):
                losses = loss(data.reshape(-1)[rows])
                sum(losses[key] for key in ("loss_objective", "loss_critic", "loss_entropy")).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    tasks = {
        "cartpole_64": partial(cartpole, 64, LENGTH),
        "cartpole_1": partial(cartpole, 1, 1024),
        "cartpoles": lambda: counted(pettingzoo(CartPoles, 2)),
        "simple_spread": lambda: pettingzoo(spread, 5),
        "balance_64": partial(balance, 64, 100),
        "balance_1024": partial(balance, 1024, 20),
    }
    main(["torchrl", "tensordict", "benchmarl", "pettingzoo", "mpe2", "vmas"], tasks, learn)
