"""A policy trained on CartPole acts in another one: two more features are seen, a second action is wanted.

    python examples/adapt_policy.py --seconds 5

It comes back from a folder without code. Two connectors take away what it has not seen and add what it lacks.
"""

import argparse
import json
import tempfile
import time
from typing import Any

import gymnasium as gym
import numpy as np

from menv import Policy, SampleBatch, local_policy_inference
from menv.algorithms import PPO
from menv.connectors import ConnectorContext, register_lambda_action_connector
from menv.connectors import register_lambda_agent_connector as register_lambda

NEW = SampleBatch.NEXT_OBS
Seen = register_lambda("Seen", lambda data: {**data, NEW: data[NEW][:4]})
Horn = register_lambda_action_connector("Horn", lambda actions, states, told: ((actions, 0), states, told))


def play(policy: Policy, seed: int) -> float:
    env, total, over = gym.make("CartPole-v1"), 0.0, False
    obs, _ = env.reset(seed=seed)
    while not over:
        wider = np.append(obs, [8.0, 6.0]).astype(np.float32)
        [((push, _horn), _, _)] = local_policy_inference(policy, "other", "driver", wider, explore=False)
        obs, reward, terminated, truncated, _ = env.step(push)
        total, over = total + float(reward), terminated or truncated
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="time to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    start, folder = time.perf_counter(), tempfile.mkdtemp()
    with PPO(env="CartPole-v1", config={"num_envs_per_worker": 64, "seed": args.seed}) as algo:
        while not algo.iteration or time.perf_counter() - start < args.seconds:
            algo.train()
        algo.export_policy_checkpoint(f"{folder}/policy")
    policy: Any = Policy.from_checkpoint(f"{folder}/policy")
    policy.agent_connectors.prepend(Seen(ConnectorContext.from_policy(policy)))
    policy.action_connectors.append(Horn(ConnectorContext.from_policy(policy)))
    returns = [play(policy, seed) for seed in range(5)]
    print(policy.agent_connectors, f"returns in the other CartPole: {returns}", sep="\n")
    seconds = time.perf_counter() - start
    if args.json:
        print(json.dumps({"mean_return": float(np.mean(returns)), "seconds": seconds, "seed": args.seed}))


if __name__ == "__main__":
    main()
