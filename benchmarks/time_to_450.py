"""PPO with its default settings on 64 CartPoles, until the mean return of 100 episodes is 450.

    python -m benchmarks.time_to_450 --seed 0

`benchmarks` starts this as a process and measures it from outside; with `--iterations 1` it is the time to a
first result. The last line is one JSON object.
"""

import argparse
import itertools
import json
import time

from menv.algorithms import DQN, PPO


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="give up after so long")
    parser.add_argument(
        "--iterations", type=int, default=None, help="stop after so many, whatever the return"
    )
    parser.add_argument("--algorithm", choices=("PPO", "DQN"), default="PPO")
    parser.add_argument("--workers", type=int, default=0, help="processes that share the environments")
    parser.add_argument("--overlap", action="store_true", help="let them sample while this process learns")
    args = parser.parse_args()
    start = time.perf_counter()
    workers = (
        {"num_workers": args.workers, "engine": "process", "overlap": args.overlap} if args.workers else {}
    )
    envs = 64 // max(1, args.workers)
    algo = (
        PPO(env="CartPole-v1", config={"num_envs_per_worker": envs, "seed": args.seed, **workers})
        if args.algorithm == "PPO"
        else DQN(env="CartPole-v1", config={"num_envs_per_worker": 16, "seed": args.seed})
    )
    for iteration in itertools.count(1):
        result = algo.train()
        mean = result["episode_reward_mean"] or 0.0
        solved = mean >= 450.0 and result["episodes_in_window"] >= 100
        if solved or iteration == args.iterations or time.perf_counter() - start > args.seconds:
            break
    print(
        json.dumps({"solved": solved, "mean_return": mean, "env_steps": result["timesteps_total"]}),
        flush=True,
    )
    algo.stop()


if __name__ == "__main__":
    main()
