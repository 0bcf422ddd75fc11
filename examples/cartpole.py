"""PPO balances the pole of CartPole-v1 until the mean return over 100 episodes is 450.

python examples/cartpole.py --seed 0
"""

import argparse
import json
import time
from typing import Any

from menv.algorithms import PPO

GOAL = 450.0
CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 16,
    "train_batch_size": 16 * 128,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 4,
    "lr": 3e-3,
    "clip_param": 0.3,
    "grad_clip": 1.0,
    "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
}


def main() -> None:
    """Read the command line, train, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    if not args.seconds > 0:
        parser.error("--seconds: expected more than 0")
    start, solved, seconds = time.perf_counter(), False, 0.0
    with PPO(env="CartPole-v1", config={**CONFIG, "seed": args.seed}) as algo:
        while not solved and seconds < args.seconds:
            result = algo.train()
            mean, seconds = result["episode_reward_mean"], time.perf_counter() - start
            solved = mean is not None and mean >= GOAL and result["episodes_in_window"] >= 100
            shown = "no episode yet" if mean is None else f"mean return {mean:.1f}"
            print(f"{seconds:5.1f} s {result['num_env_steps_sampled']:>9,} env steps  {shown}")
    if args.json:
        outcome = {"solved": solved, "mean_return": mean, "env_steps": result["num_env_steps_sampled"]}
        print(json.dumps({**outcome, "seconds": seconds, "seed": args.seed}))


if __name__ == "__main__":
    main()
