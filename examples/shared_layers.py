"""Two policies that balance poles on one set of hidden layers, each with heads of its own.

    python examples/shared_layers.py --seconds 10

Four agents balance a pole each; two are answered by "careful", two by "hasty", which discounts more. Each policy
makes its own gradient steps, and what a step changes in the shared layers holds for both.
"""

import argparse
import json
import time
from typing import Any

from menv import DefaultCallbacks, PolicySpec, make_multi_agent
from menv.algorithms import PPO

SHARED = {"shared_layers": "balance", "fcnet_hiddens": [64, 64]}
POLICIES = {
    "careful": PolicySpec(config={"model": SHARED, "gamma": 0.99}),
    "hasty": PolicySpec(config={"model": SHARED, "gamma": 0.95}),
}


class BeforeLearning(DefaultCallbacks):
    """Keeps the weights that each policy had when it was about to learn for the first time."""

    weights: dict[str, dict[str, Any]]

    def on_learn_on_batch(self, *, policy: Any, **kwargs: Any) -> None:
        self.weights.setdefault(policy.policy_id, policy.get_weights())


def main() -> None:
    """Read the command line, train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    watch, start, seconds = BeforeLearning(), time.perf_counter(), 0.0
    watch.weights = {}
    players = {"policies": POLICIES, "policy_mapping_fn": lambda agent_id, **kw: list(POLICIES)[agent_id % 2]}
    sizes = {"env_config": {"num_agents": 4}, "num_envs_per_worker": 8, "train_batch_size": 1024}
    config = {**sizes, "multiagent": players, "callbacks": watch, "seed": args.seed}
    with PPO(env=make_multi_agent("CartPole-v1"), config=config) as algo:
        first = algo.get_weights(["hasty"])["hasty"]
        while seconds < args.seconds or not seconds:
            result, seconds = algo.train(), time.perf_counter() - start
            shown = "  ".join(f"{name} {mean:6.1f}" for name, mean in result["policy_reward_mean"].items())
            print(f"{seconds:5.1f} s  mean return  {shown}")
    # "careful" learned first; this is what its steps changed before "hasty" made one.
    changed = [name for name, value in watch.weights["hasty"].items() if (value != first[name]).any()]
    print(f"the first steps of 'careful' changed, of {len(first)} weights of 'hasty', {', '.join(changed)}")
    if args.json:
        told = {"changed": changed, "env_steps": result["num_env_steps_sampled"], "seconds": seconds}
        print(json.dumps({"policy_reward_mean": result["policy_reward_mean"], **told, "seed": args.seed}))


if __name__ == "__main__":
    main()
