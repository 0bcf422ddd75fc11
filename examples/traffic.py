"""One policy drives all the cars, another switches all the traffic lights, and both learn.

    python examples/traffic.py --seconds 20

Cars arrive and leave early, others enter late; an agent is mapped to its policy when it first appears.
"""

import argparse
import json
import time
from typing import Any

from menv.algorithms import PPO
from menv.envs import MultiAgentTrafficEnv


def policy_for(agent_id: str, **kwargs: Any) -> str:
    """Tell cars from lights by name."""
    return "cars" if agent_id.startswith("car") else "lights"


CONFIG: dict[str, Any] = {
    "env_config": {"num_cars": 4, "num_traffic_lights": 2},
    "num_envs_per_worker": 16,
    "train_batch_size": 2048,
    "entropy_coeff": 0.01,
    "multiagent": {"policies": ["cars", "lights"], "policy_mapping_fn": policy_for},
}


def main() -> None:
    """Read the command line, train, print, and show the road after 20 steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    start, seconds = time.perf_counter(), 0.0
    with PPO(env="traffic", config={**CONFIG, "seed": args.seed}) as algo:
        while seconds < args.seconds:
            result, seconds = algo.train(), time.perf_counter() - start
            means = result["policy_reward_mean"]
            shown = "  ".join(f"{policy_id} {mean:7.2f}" for policy_id, mean in sorted(means.items()))
            print(f"{seconds:5.1f} s {result['num_env_steps_sampled']:>8,} env steps  {shown}")
        env = MultiAgentTrafficEnv(CONFIG["env_config"])
        obs, _ = env.reset(seed=args.seed)
        for _ in range(20):
            actions = {
                agent: algo.compute_single_action(obs[agent], policy_for(agent), False)
                for agent in env.agents
            }
            obs = env.step(actions)[0]
        print(env.render())
    if args.json:
        outcome = {"policy_reward_mean": means, "env_steps": result["num_env_steps_sampled"]}
        print(json.dumps({**outcome, "seconds": seconds, "seed": args.seed}))


if __name__ == "__main__":
    main()
