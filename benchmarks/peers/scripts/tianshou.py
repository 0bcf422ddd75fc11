"""Tianshou: PPO with the settings of its own CartPole script (`test/discrete/test_ppo_discrete.py`).

`DummyVectorEnv` as there. PettingZoo environments come turn by turn (AEC), a policy for each agent, as in its tutorial
on multi-agent training. An agent that leaves would end the episode, so four CartPoles are not in the table.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from pettingzoo.utils import parallel_to_aec
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.multiagent.marl import MultiAgentOnPolicyAlgorithm
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

from benchmarks.peers.scripts.shared import HIDDEN, LENGTH, TEAMS, CartPoles, Sample, Seen, main


class ObsNet(Net):  # type: ignore[misc]
    """Takes the observation out of the batch that `PettingZooEnv` returns, which has a mask too."""

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        return super().forward(getattr(obs, "obs", obs), state, info)


def ppo(env: Any) -> PPO:
    net = ObsNet(state_shape=env.observation_space.shape, hidden_sizes=HIDDEN)
    actor = DiscreteActor(preprocess_net=net, action_shape=env.action_space.n)
    critic = DiscreteCritic(preprocess_net=net)
    for layer in ActorCritic(actor, critic).modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.orthogonal_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
    categorical = torch.distributions.Categorical
    policy = DiscreteActorPolicy(actor=actor, dist_fn=categorical, action_space=env.action_space)
    settings = {"gamma": 0.99, "max_grad_norm": 0.5, "eps_clip": 0.2, "vf_coef": 0.5, "ent_coef": 0.0}
    flags = {"gae_lambda": 0.95, "advantage_normalization": False, "return_scaling": False}
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-4), **settings, **flags)


def collector(algorithm: Any, make: Any, num_envs: int, size: int) -> Collector:
    collector = Collector(algorithm, DummyVectorEnv([make] * num_envs), VectorReplayBuffer(size, num_envs))
    collector.reset()
    return collector


def collecting(algorithm: Any, make: Any, num_envs: int, size: int, agents: int = 1) -> Sample:
    rollouts = collector(algorithm, make, num_envs, size)

    def sample() -> int:
        with policy_within_training_step(algorithm.policy):
            steps = rollouts.collect(n_step=size).n_collected_steps
        rollouts.reset_buffer(keep_statistics=True)
        return int(steps) // agents

    return sample


def one_cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


def cartpole(num_envs: int, length: int) -> Sample:
    return collecting(ppo(one_cartpole()), one_cartpole, num_envs, num_envs * length)


def team(make: Any) -> Sample | None:
    if make is CartPoles:
        return None
    env = PettingZooEnv(parallel_to_aec(make()))
    agents = len(env.agents)
    algorithm = MultiAgentOnPolicyAlgorithm(algorithms=[ppo(env) for _ in env.agents], env=env)
    turns = agents * TEAMS * LENGTH
    return collecting(algorithm, lambda: PettingZooEnv(parallel_to_aec(make())), TEAMS, turns, agents)


def learn(seed: int, seen: Seen) -> None:
    np.random.seed(seed)
    algorithm = ppo(one_cartpole())
    rollouts = collector(algorithm, one_cartpole, 20, 20_000)
    rollouts.env.seed(seed)
    rollouts.reset()
    steps, returns = 0, np.zeros(0)
    while not seen(steps, returns):
        with policy_within_training_step(algorithm.policy):
            stats = rollouts.collect(n_step=2000)
            steps, returns = steps + stats.n_collected_steps, stats.returns
            algorithm.update(rollouts.buffer, batch_size=64, repeat=10)
        rollouts.reset_buffer(keep_statistics=True)


if __name__ == "__main__":
    main("tianshou pettingzoo mpe2", cartpole, team, learn=learn)
