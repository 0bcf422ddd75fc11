"""VMAS: three robots balance a package on a line and carry it to its goal, in 64 worlds that step as tensors.

    pip install "menv-rl[train,plot]" vmas
    python examples/vmas_balance.py --seconds 120

The robots share one policy (IPPO). VMAS steps all worlds together, so the worlds are `num_envs` of the simulator, not
`num_envs_per_worker`.
"""

from typing import Any

from menv import register_env
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs
from menv.wrappers import VmasEnv

register_env("vmas_balance", lambda context: VmasEnv("balance", num_envs=64, max_steps=100))

CONFIG: dict[str, Any] = {
    "train_batch_size": 6400,
    "rollout_fragment_length": 100,
    "sgd_minibatch_size": 1600,
    "num_sgd_iter": 8,
    "lr": 1e-3,
    "gamma": 0.99,
    "lambda": 0.9,
}


def main(seconds: float = 120.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("vmas-balance", "PPO")
    with PPO(env="vmas_balance", config={**CONFIG, "seed": seed}) as algo:
        result = algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    return {"mean_return": result["episode_reward_mean"]}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
