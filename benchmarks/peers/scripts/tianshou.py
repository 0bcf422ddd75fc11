"""Tianshou: PPO with the settings of its own CartPole script (`test/discrete/test_ppo_discrete.py`).

`DummyVectorEnv` as there. PettingZoo environments come turn by turn (AEC), a policy for each agent, as in its tutorial
on multi-agent training. An agent that leaves would end the episode, so four CartPoles are not in the table.
"""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.multiagent.marl import MultiAgentOnPolicyAlgorithm
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

from benchmarks.peers.scripts.shared import HIDDEN, LENGTH, TEAMS, Sample, Seen, main, spread


class ObsNet(Net):  # type: ignore[misc]
    """Takes the observation out of the batch that `PettingZooEnv` returns, which has a mask too."""

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        return super().forward(getattr(obs, "obs", obs), state, info)


def ppo(obs_space: Any, action_space: Any) -> PPO:
    net = ObsNet(state_shape=obs_space.shape, hidden_sizes=HIDDEN)
    actor = DiscreteActor(preprocess_net=net, action_shape=action_space.n)
    critic = DiscreteCritic(preprocess_net=net)
    for layer in ActorCritic(actor, critic).modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.orthogonal_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
    categorical = torch.distributions.Categorical
    policy = DiscreteActorPolicy(actor=actor, dist_fn=categorical, action_space=action_space)
    settings = {"gamma": 0.99, "max_grad_norm": 0.5, "eps_clip": 0.2, "vf_coef": 0.5, "ent_coef": 0.0}
    flags = {"gae_lambda": 0.95, "advantage_normalization": False, "return_scaling": False}
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-4), **settings, **flags)


def collector(algorithm: Any, make: Any, num_envs: int, size: int) -> Collector:
    envs = DummyVectorEnv([make] * num_envs)
    return Collector(algorithm, envs, VectorReplayBuffer(size, num_envs))


def collecting(collector: Collector, env_steps: int) -> Sample:
    collector.reset()

    def sample() -> int:
        with policy_within_training_step(collector.policy):
            steps = collector.collect(n_step=env_steps).n_collected_steps
        collector.reset_buffer(keep_statistics=True)
        return int(steps)

    return sample


def cartpole(num_envs: int, length: int) -> Sample:
    make = partial(gym.make, "CartPole-v1")
    algorithm = ppo(make().observation_space, make().action_space)
    return collecting(collector(algorithm, make, num_envs, num_envs * length), num_envs * length)


def simple_spread() -> Sample:
    env = PettingZooEnv(spread(parallel=False))
    algorithms = [ppo(env.observation_space, env.action_space) for _ in env.agents]
    algorithm = MultiAgentOnPolicyAlgorithm(algorithms=algorithms, env=env)
    turns = 3 * TEAMS * LENGTH
    sample = collecting(
        collector(algorithm, lambda: PettingZooEnv(spread(parallel=False)), TEAMS, turns), turns
    )
    return lambda: sample() // 3


def learn(seed: int, seen: Seen) -> None:
    np.random.seed(seed)
    make = partial(gym.make, "CartPole-v1")
    algorithm = ppo(make().observation_space, make().action_space)
    rollouts = collector(algorithm, make, 20, 20_000)
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
    tasks = {
        "cartpole_64": partial(cartpole, 64, LENGTH),
        "cartpole_1": partial(cartpole, 1, 1024),
        "simple_spread": simple_spread,
    }
    main(["tianshou", "pettingzoo", "mpe2"], tasks, learn)
