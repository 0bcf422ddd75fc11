"""A server that speaks RLlink over TCP and learns CartPole-v1 from clients that act by themselves.

    python examples/rllink_server.py --port=5555
    python examples/rllink_client.py --port=5555

It ends when the mean return is high enough, or when nobody has played for a while after somebody has.
"""

import argparse
from typing import Any

import gymnasium as gym

from menv.algorithms import PPO
from menv.serving.policy_server import RLlinkInput

# Some clients read their model from a file that has to be larger than 128 KiB: two layers of 256 are.
CONFIG: dict[str, Any] = {
    "train_batch_size": 1024,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 4,
    "lr": 1e-3,
    "model": {"fcnet_hiddens": [256, 256]},
}


def main() -> None:
    """Read the command line, serve, learn, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5555, help="0 takes one that is free")
    parser.add_argument("--stop-reward", type=float, default=1e9)
    parser.add_argument("--stop-iters", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--idle", type=float, default=5.0, help="seconds without steps to end after")
    args = parser.parse_args()
    env = gym.make("CartPole-v1")
    config = {
        "input": lambda ioctx: RLlinkInput(ioctx, args.address, args.port, idle_timeout=args.idle),
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "seed": args.seed,
        **CONFIG,
    }
    with PPO(config=config) as algo:
        host, port = algo.input_address
        print(f"Listening at {host}:{port}", flush=True)
        for _ in range(args.stop_iters):
            result = algo.train()
            steps, mean = result["num_env_steps_sampled"], result["episode_reward_mean"]
            print(f"{steps:>9,} env steps  mean return {mean}", flush=True)
            if mean is not None and (mean >= args.stop_reward or "idle" in result["external"]):
                break


if __name__ == "__main__":
    main()
