"""PPO balances the pole of CartPole-v1 until the mean return is 450.

    python examples/cartpole.py --seed 0

The command line does the same: `menv train CartPole-v1 --stop episode_reward_mean=450`.
"""

from typing import Any

from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs

CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 16,
    "train_batch_size": 2048,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 4,
    "lr": 3e-3,
    "clip_param": 0.3,
    "grad_clip": 1.0,
    "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
}


def main(seconds: float = 60.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("cartpole", "PPO")
    stop = {"episode_reward_mean": 450.0, "time_total_s": seconds}
    with PPO(env="CartPole-v1", config={**CONFIG, "seed": seed}) as algo:
        result = algo.learn(stop=stop, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    mean = result["episode_reward_mean"]
    return {"solved": mean is not None and mean >= 450.0, "mean_return": mean}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
