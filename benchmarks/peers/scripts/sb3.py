"""Stable-Baselines3: PPO with the settings of RL Baselines3 Zoo (`hyperparams/ppo.yml`, CartPole-v1).

`DummyVecEnv` is what its guide on vectorized environments recommends for simple environments such as CartPole.
Multi-agent environments come through SuperSuit, as in PettingZoo's tutorial for Stable-Baselines3; an agent that
has left keeps a row of zeros.
"""

from typing import Any

import supersuit as ss
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.peers.scripts.shared import HIDDEN, LENGTH, TEAMS, Sample, Seen, main


def collecting(envs: Any, num_envs: int, length: int) -> Sample:
    model = PPO("MlpPolicy", envs, n_steps=length, policy_kwargs={"net_arch": HIDDEN}, device="cpu")
    _, callback = model._setup_learn(10**9)

    def sample() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, length)
        return length * num_envs

    return sample


def cartpole(num_envs: int, length: int) -> Sample:
    return collecting(make_vec_env("CartPole-v1", num_envs), num_envs, length)


def team(make: Any) -> Sample:
    agents = ss.pettingzoo_env_to_vec_env_v1(ss.black_death_v3(make()))
    envs = ss.concat_vec_envs_v1(agents, TEAMS, num_cpus=1, base_class="stable_baselines3")
    return collecting(envs, TEAMS, LENGTH)


class Watch(BaseCallback):  # type: ignore[misc]
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def _on_step(self) -> bool:
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return not self.seen(self.num_timesteps, ended)


def learn(seed: int, seen: Seen) -> None:
    settings = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98}
    falling = {"learning_rate": lambda left: 0.001 * left, "clip_range": lambda left: 0.2 * left}
    envs, model = make_vec_env("CartPole-v1", 8, seed=seed), {"net_arch": HIDDEN}
    ppo = PPO("MlpPolicy", envs, **settings, **falling, policy_kwargs=model, seed=seed, device="cpu")
    ppo.learn(100_000, callback=Watch(seen))


if __name__ == "__main__":
    main("stable-baselines3 supersuit pettingzoo mpe2", cartpole, team, learn=learn)
