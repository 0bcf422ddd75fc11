"""RLlib: PPO with the settings of its CartPole example (`rllib/examples/algorithms/ppo/cartpole_ppo.py`).

All in this process (`num_env_runners=0`), as every library here. The example's network has one linear layer of 32;
here it has the layers of the others. Four CartPoles and `simple_spread` share one policy.
"""

import logging
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from benchmarks.peers.scripts.shared import HIDDEN, LENGTH, TEAMS, Sample, Seen, main


def config(env: str, num_envs: int, **model: Any) -> Any:
    networks = DefaultModelConfig(fcnet_hiddens=HIDDEN, **model)
    settings: Any = PPOConfig().environment(env).rl_module(model_config=networks)
    return settings.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)


def collecting(settings: Any, num_envs: int, length: int) -> Sample:
    runner = settings.build_algo().env_runner

    return lambda: sum(map(len, runner.sample(num_timesteps=num_envs * length, random_actions=False)))


def cartpole(num_envs: int, length: int) -> Sample:
    return collecting(config("CartPole-v1", num_envs), num_envs, length)


def team(make: Any) -> Sample:
    register_env("team", lambda context: ParallelPettingZooEnv(make()))
    shared = {"policies": {"shared"}, "policy_mapping_fn": lambda agent, episode, **kwargs: "shared"}
    return collecting(config("team", TEAMS).multi_agent(**shared), TEAMS, LENGTH)


def learn(seed: int, seen: Seen) -> None:
    returns: list[float] = []
    settings = config("CartPole-v1", 64, vf_share_layers=True).debugging(seed=seed)
    settings.training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01)
    settings.callbacks(on_episode_end=lambda episode, **kwargs: returns.append(episode.get_return()))
    algo = settings.build_algo()
    steps = 0
    while not seen(steps, returns):
        returns.clear()
        steps = algo.train()["env_runners"]["num_env_steps_sampled_lifetime"]


if __name__ == "__main__":
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    main("ray pettingzoo mpe2", cartpole, team, learn=learn)
