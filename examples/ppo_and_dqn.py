"""Cars that learn by PPO and traffic lights that learn by DQN, on one road: in one run, or by two trainers.

    python examples/ppo_and_dqn.py --seconds 20 [--two-trainers]

With two trainers each knows both policies and trains its own; after every round they swap weights.
"""

import argparse
import json
import time
from typing import Any

from menv import PolicySpec
from menv.algorithms import DQN, PPO, Algorithm

POLICIES = {"cars": PolicySpec(algorithm="PPO"), "lights": PolicySpec(algorithm="DQN")}


def config(seed: int, trained: list[str] | None, **more: Any) -> dict[str, Any]:
    """Return the settings of a run that trains some of the policies, all by default."""
    multiagent = {
        "policies": POLICIES,
        "policy_mapping_fn": lambda agent_id, **kw: "cars" if agent_id.startswith("car") else "lights",
        "policies_to_train": trained,
    }
    world = {"num_cars": 4, "num_traffic_lights": 2}
    return {"env_config": world, "num_envs_per_worker": 16, "seed": seed, "multiagent": multiagent, **more}


def trainers(seed: int, two: bool) -> list[Algorithm]:
    """Return the one that trains both policies, or one for each."""
    cars = PPO(env="traffic", config=config(seed, ["cars"] if two else None, train_batch_size=2048))
    lights = {"min_sample_timesteps_per_iteration": 2048}
    return [cars, DQN(env="traffic", config=config(seed, ["lights"], **lights))] if two else [cars]


def main() -> None:
    """Read the command line, train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--two-trainers", action="store_true", help="one algorithm for each policy")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    algos, start, seconds = trainers(args.seed, args.two_trainers), time.perf_counter(), 0.0
    while seconds < args.seconds:
        results, seconds = [algo.train() for algo in algos], time.perf_counter() - start
        if len(algos) == 2:
            algos[0].set_weights(algos[1].get_weights(["lights"]))
            algos[1].set_weights(algos[0].get_weights(["cars"]))
        means = results[0]["policy_reward_mean"]
        print(f"{seconds:5.1f} s  {means}")
    steps = sum(result["num_env_steps_sampled"] for result in results)
    outcome = {"policy_reward_mean": means, "env_steps": steps, "seconds": seconds, "seed": args.seed}
    print(json.dumps(outcome) if args.json else "")


if __name__ == "__main__":
    main()
