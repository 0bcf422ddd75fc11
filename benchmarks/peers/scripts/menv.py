"""menv: PPO with its default settings, on 64 environments as in `benchmarks.time_to_450`."""

from collections.abc import Callable
from functools import partial
from typing import Any

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
from menv.algorithms import PPO
from menv.wrappers import ParallelPettingZooEnv, VmasEnv


def collecting(env: Any, num_envs: int, length: int) -> Sample:
    sizes = {"num_envs_per_worker": num_envs, "rollout_fragment_length": length}
    algo = PPO(
        env=env, config={**sizes, "train_batch_size": num_envs * length, "model": {"fcnet_hiddens": HIDDEN}}
    )
    return lambda: algo.sample().env_steps()


def cartpoles() -> Sample:
    return counted(collecting(lambda context: ParallelPettingZooEnv(CartPoles()), TEAMS, LENGTH))


def simple_spread() -> Sample:
    return collecting(lambda context: ParallelPettingZooEnv(spread()), TEAMS, LENGTH)


def balance(num_envs: int, length: int) -> Sample:
    return collecting(lambda context: VmasEnv("balance", num_envs=num_envs, max_steps=100), num_envs, length)


def learn(seed: int, seen: Seen) -> None:
    with PPO(env="CartPole-v1", config={"num_envs_per_worker": 64, "seed": seed}) as algo:
        steps, returns = 0, list[float]()
        while not seen(steps, returns):
            result = algo.train()
            steps, new = result["timesteps_total"], result["episodes_this_iter"]
            returns = result["hist_stats"]["episode_reward"][-new:] if new else []


if __name__ == "__main__":
    tasks: dict[str, Callable[[], Sample]] = {
        "cartpole_64": partial(collecting, "CartPole-v1", 64, LENGTH),
        "cartpole_1": partial(collecting, "CartPole-v1", 1, 1024),
        "cartpoles": cartpoles,
        "simple_spread": simple_spread,
        "balance_64": partial(balance, 64, 100),
        "balance_1024": partial(balance, 1024, 20),
    }
    main(["onnxruntime", "pettingzoo", "mpe2", "vmas"], tasks, learn)
