"""menv: PPO with its default settings, on 64 environments as in `benchmarks.time_to_450`."""

from typing import Any

from benchmarks.peers.scripts.shared import HIDDEN, LENGTH, TEAMS, Sample, Seen, main
from menv.algorithms import PPO
from menv.wrappers import ParallelPettingZooEnv, VmasEnv


def collecting(env: Any, num_envs: int, length: int) -> Sample:
    sizes = {"num_envs_per_worker": num_envs, "rollout_fragment_length": length}
    model = {"fcnet_hiddens": HIDDEN}
    algo = PPO(env=env, config={**sizes, "train_batch_size": num_envs * length, "model": model})
    return lambda: algo.sample().env_steps()


def cartpole(num_envs: int, length: int) -> Sample:
    return collecting("CartPole-v1", num_envs, length)


def team(make: Any) -> Sample:
    return collecting(lambda context: ParallelPettingZooEnv(make()), TEAMS, LENGTH)


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
    main("onnxruntime pettingzoo mpe2 vmas", cartpole, team, balance, learn)
