"""The server of a game that is played elsewhere: two teams of two, and a policy for each team.

    python examples/unity3d_server.py --port=9900
    python examples/unity3d_client.py --port=9900

Nothing of the game runs here: a stub of random agents has its agents and spaces. Several games may be played at once.
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

from menv.algorithms import PPO
from menv.envs import RandomMultiAgentEnv
from menv.serving.policy_server import PolicyServerInput

TEAMS = ("blue", "purple")
GAME: dict[str, Any] = {
    "num_agents": [f"{team}_{number}" for team in TEAMS for number in range(2)],
    # Own place, place of the ball, place of the goal.
    "observation_space": gym.spaces.Box(-10.0, 10.0, (6,), np.float32),
    # Forward or back or neither; left or right or neither.
    "action_space": gym.spaces.MultiDiscrete([3, 3]),
}


def policy_for(agent_id: str, **kwargs: Any) -> str:
    """Tell teams apart by name."""
    return agent_id.partition("_")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9900, help="0 takes one that is free")
    parser.add_argument("--stop-iters", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--idle", type=float, default=5.0, help="seconds without steps to end after")
    args = parser.parse_args()
    config = {
        "env": RandomMultiAgentEnv,
        "env_config": GAME,
        "input": lambda ioctx: PolicyServerInput(ioctx, port=args.port, idle_timeout=args.idle),
        "multiagent": {"policies": list(TEAMS), "policy_mapping_fn": policy_for},
        "train_batch_size": 512,
        "seed": args.seed,
    }
    with PPO(config=config) as algo:
        print("Listening at {}:{}".format(*algo.input_address), flush=True)
        for _ in range(args.stop_iters):
            result = algo.train()
            steps, means = result["num_env_steps_sampled"], result["policy_reward_mean"]
            print(f"{steps:>9,} env steps  {means}", flush=True)
            if means and "idle" in result["external"]:
                break


if __name__ == "__main__":
    main()
