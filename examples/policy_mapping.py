"""Several CartPoles in one environment, shared out among several policies.

    python examples/policy_mapping.py --num-agents 4 --num-policies 2

Agent 0 is answered by policy_0, agent 1 by policy_1, and so on in turn. Every policy learns from its own agents
only, and each has a discount of its own.
"""

import argparse
import json
import time
from typing import Any

from menv import Episode, PolicySpec, make_multi_agent, register_env
from menv.algorithms import PPO

register_env("many_cartpoles", make_multi_agent("CartPole-v1"))


def main() -> None:
    """Read the command line, train, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-agents", type=int, default=4)
    parser.add_argument("--num-policies", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15.0, help="longest time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()

    def policy_for(agent_id: int, episode: Episode, **kwargs: Any) -> str:
        return f"policy_{agent_id % args.num_policies}"

    policies = {
        f"policy_{number}": PolicySpec(config={"gamma": 0.99 - 0.005 * number})
        for number in range(args.num_policies)
    }
    config = {
        "env": "many_cartpoles",
        "env_config": {"num_agents": args.num_agents},
        "num_envs_per_worker": 16,
        "train_batch_size": 16 * 64,
        "multiagent": {"policies": policies, "policy_mapping_fn": policy_for},
        "seed": args.seed,
    }
    means: dict[str, float] = {}
    start, seconds = time.perf_counter(), 0.0
    with PPO(config=config) as algo:
        while seconds < args.seconds and min(means.values(), default=0.0) < 400.0:
            result = algo.train()
            means, seconds = result["policy_reward_mean"], time.perf_counter() - start
            shown = "  ".join(f"{policy_id} {mean:6.1f}" for policy_id, mean in sorted(means.items()))
            print(f"{seconds:5.1f} s {result['num_env_steps_sampled']:>9,} env steps  {shown}")
    if args.json:
        outcome = {"policy_reward_mean": means, "env_steps": result["num_env_steps_sampled"]}
        print(json.dumps({**outcome, "seconds": seconds, "seed": args.seed}))


if __name__ == "__main__":
    main()
