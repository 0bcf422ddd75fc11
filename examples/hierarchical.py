"""A windy maze, learned move by move and on two levels, and a windy field on three.

    python examples/hierarchical.py --seconds 60

A higher level's action opens a lower level, an agent with an id of its own that lives for some steps. What agents of
one level experience goes to one policy, found by the prefix of the id.
"""

import argparse
import json
import time
from typing import Any

from menv import PolicySpec
from menv.algorithms import PPO
from menv.envs import HierarchicalWindyMaze, ThreeLevelMaze, WindyMaze

DECIDES = PolicySpec(
    config={"entropy_coeff": 0.05}
)  # goes on trying while the level below still learns to obey
# What to train, its policies from the top down, and the return at which the top one has learned enough.
LEVELS: dict[str, tuple[Any, dict[str, Any], float]] = {
    "flat": (WindyMaze, {"default_policy": None}, 0.45),
    "two_levels": (HierarchicalWindyMaze, {"high_level": DECIDES, "low_level": None}, 0.35),
    "three_levels": (ThreeLevelMaze, {"top_level": DECIDES, "mid_level": DECIDES, "low_level": None}, 0.85),
}
SIZES = {"num_envs_per_worker": 32, "train_batch_size": 4096, "sgd_minibatch_size": 512, "num_sgd_iter": 6}


def policy_for(agent_id: str) -> str:
    return "default_policy" if agent_id == "agent0" else "_".join(agent_id.split("_")[:2])


def train(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """Train until the top level has learned enough, or the time is up."""
    env, policies, enough = LEVELS[name]
    levels = {"policies": policies, "policy_mapping_fn": policy_for}
    start, spent, mean = time.perf_counter(), 0.0, None
    with PPO(env=env, config={**SIZES, "lr": 2e-3, "multiagent": levels, "seed": seed}) as algo:
        while mean is None or (mean < enough and spent < seconds):
            result, spent = algo.train(), time.perf_counter() - start
            mean = result["policy_reward_mean"].get(next(iter(policies)))
            steps = result["num_env_steps_sampled"]
            print(f"{name:12} {spent:5.1f} s {steps:>8,} env steps, return {mean}")
    return {"return": mean, "solved": mean >= enough, "env_steps": steps, "seconds": spent}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time to train each of the three")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    outcomes = {name: train(name, args.seconds, args.seed) for name in LEVELS}
    if args.json:
        spent = sum(outcome["seconds"] for outcome in outcomes.values())
        print(json.dumps({**outcomes, "seconds": spent, "seed": args.seed}))
