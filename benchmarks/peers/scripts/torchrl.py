"""TorchRL, with which BenchMARL samples and trains: PPO with the settings of its tutorial (`coding_ppo.py`).

It publishes no settings for PPO on CartPole. Of its ways to step 64 CartPoles in one process, a wrapped
`SyncVectorEnv` is the fastest here; other environments are in a `SerialEnv`, and VMAS in its own `VmasEnv`.
"""

from functools import partial
from typing import Any

import gymnasium as gym
import torch
from tensordict.nn import TensorDictModule
from torchrl import envs, modules, objectives
from torchrl.collectors import Collector
from torchrl.objectives.value import GAE

from benchmarks.peers.scripts.shared import HIDDEN, LENGTH, TEAMS, Sample, Seen, main

TANH = {"num_cells": HIDDEN, "activation_class": torch.nn.Tanh}
CATEGORICAL = {"distribution_class": torch.distributions.Categorical, "return_log_prob": True}
NORMAL = {"distribution_class": modules.TanhNormal, "return_log_prob": True}


def collecting(env: Any, policy: Any, frames: int) -> Sample:
    collected = iter(Collector(env, policy, frames_per_batch=frames, total_frames=-1))
    return lambda: int(next(collected).numel())


def cartpoles(num_envs: int) -> Any:
    make, mode = partial(gym.make, "CartPole-v1"), gym.vector.AutoresetMode.DISABLED
    env = make() if num_envs == 1 else gym.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
    return envs.TransformedEnv(envs.GymWrapper(env, categorical_action_encoding=True), envs.RewardSum())


def actor() -> Any:
    module = TensorDictModule(modules.MLP(in_features=4, out_features=2, **TANH), ["observation"], ["logits"])
    return modules.ProbabilisticActor(module, ["logits"], **CATEGORICAL)


def cartpole(num_envs: int, length: int) -> Sample:
    return collecting(cartpoles(num_envs), actor(), num_envs * length)


def agents(env: Any, frames: int, outputs: int, continuous: bool = False) -> Sample:
    number, width = env.observation_spec["agents", "observation"].shape[-2:]
    net = modules.MultiAgentMLP(width, outputs, number, centralized=False, share_params=True, **TANH)
    layers = torch.nn.Sequential(net, modules.NormalParamExtractor()) if continuous else net
    keys = [("agents", key) for key in (("loc", "scale") if continuous else ("logits",))]
    module = TensorDictModule(layers, [("agents", "observation")], keys)
    form = NORMAL if continuous else CATEGORICAL
    return collecting(
        env, modules.ProbabilisticActor(module, keys, out_keys=[("agents", "action")], **form), frames
    )


def team(make: Any) -> Sample:
    settings = {"use_mask": True, "categorical_actions": True, "done_on_any": False}
    one = partial(envs.PettingZooWrapper, group_map=envs.MarlGroupMapType.ALL_IN_ONE_GROUP, **settings)
    outputs = make().action_space("agent_0").n
    return agents(envs.SerialEnv(TEAMS, lambda: one(make())), TEAMS * LENGTH, outputs)


def balance(num_envs: int, length: int) -> Sample:
    env = envs.VmasEnv("balance", num_envs=num_envs, max_steps=100)
    return agents(env, num_envs * length, 4, continuous=True)


def learn(seed: int, seen: Seen) -> None:
    env, policy = cartpoles(1), actor()
    env.set_seed(seed)
    critic = modules.ValueOperator(modules.MLP(in_features=4, out_features=1, **TANH), ["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = objectives.ClipPPOLoss(policy, critic, clip_epsilon=0.2, entropy_coeff=1e-4, critic_coeff=1.0)
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
    main("torchrl tensordict pettingzoo mpe2 vmas", cartpole, team, balance, learn)
