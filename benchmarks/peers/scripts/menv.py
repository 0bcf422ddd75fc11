"""menv: PPO with its default settings, on 64 environments as in `benchmarks.time_to_450`."""

from typing import Any

from benchmarks.peers.scripts.shared import HIDDEN, LENGTH, TEAMS, Sample, Seen, Told, main
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


def train(seed: int, env_steps: int, told: Told) -> None:
    # The settings of JaxMARL's script: batches of 2,048 env steps, 4 epochs of 4 minibatches. They come from more
    # worlds, so that Python acts less often, and from a process beside the one that learns.
    config = {
        "env_config": {"num_envs": 128},
        "num_workers": 1,
        "overlap": True,
        "rollout_fragment_length": 16,
        "train_batch_size": 128 * 16,
        "sgd_minibatch_size": 3 * 128 * 16 // 4,
        "num_sgd_iter": 4,
        "lr_schedule": [[0, 2.5e-4], [env_steps, 0.0]],
        "gamma": 0.99,
        "lambda": 0.95,
        "clip_param": 0.2,
        "entropy_coeff": 0.01,
        "vf_loss_coeff": 0.5,
        "grad_clip": 0.5,
        "normalize_values": False,
        "model": {"fcnet_hiddens": HIDDEN, "fcnet_activation": "tanh"},
    }
    with PPO(env="jaxmarl:MPE_simple_spread_v3", config={**config, "seed": seed}) as algo:
        steps = 0
        while steps < env_steps:
            result = algo.train()
            steps = result["timesteps_total"]
            told(steps, result["episode_reward_mean"])


if __name__ == "__main__":
    main("onnxruntime pettingzoo mpe2 vmas jaxmarl", cartpole, team, balance, learn, train)
