"""Stable-Baselines3: PPO with the settings of RL Baselines3 Zoo (`hyperparams/ppo.yml`, CartPole-v1).

`DummyVecEnv` is what its guide on vectorized environments recommends for simple environments such as CartPole.
Multi-agent environments come through SuperSuit, as in PettingZoo's tutorial for Stable-Baselines3; an agent that
has left keeps a row of zeros.
"""

from functools import partial
from typing import Any

import supersuit as ss
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

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


def collecting(envs: Any, length: int) -> Sample:
    model = PPO("MlpPolicy", envs, n_steps=length, policy_kwargs={"net_arch": HIDDEN}, device="cpu")
    _, callback = model._setup_learn(10**9)

    def sample() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, length)
        return length * envs.num_envs

    return sample


def cartpole(num_envs: int, length: int) -> Sample:
    return collecting(make_vec_env("CartPole-v1", num_envs), length)


def vectorized(env: Any) -> Any:
    agents = ss.pettingzoo_env_to_vec_env_v1(ss.black_death_v3(env))
    return ss.concat_vec_envs_v1(agents, TEAMS, num_cpus=1, base_class="stable_baselines3")


def cartpoles() -> Sample:
    return counted(collecting(vectorized(CartPoles()), LENGTH))


def simple_spread() -> Sample:
    sample = collecting(vectorized(spread()), LENGTH)
    return lambda: sample() // 3


class Watch(BaseCallback):  # type: ignore[misc]
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def _on_step(self) -> bool:
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return not self.seen(self.num_timesteps, ended)


def learn(seed: int, seen: Seen) -> None:
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        learning_rate=lambda left: 0.001 * left,
        clip_range=lambda left: 0.2 * left,
        policy_kwargs={"net_arch": HIDDEN},
        seed=seed,
        device="cpu",
    )
    model.learn(100_000, callback=Watch(seen))


if __name__ == "__main__":
    tasks = {
        "cartpole_64": partial(cartpole, 64, LENGTH),
        "cartpole_1": partial(cartpole, 1, 1024),
        "cartpoles": cartpoles,
        "simple_spread": simple_spread,
    }
    main(["stable-baselines3", "supersuit", "pettingzoo", "mpe2"], tasks, learn)
