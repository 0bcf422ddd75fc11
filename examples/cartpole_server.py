"""A server that learns CartPole-v1 from clients which play it in processes of their own.

    python examples/cartpole_server.py --run=PPO --port=9900
    python examples/cartpole_client.py --inference-mode=local --port=9900

It ends when the mean return is high enough, or when nobody has played for a while after somebody has.
"""

import argparse
from typing import Any

import gymnasium as gym

from menv.algorithms import DQN, PPO
from menv.serving.policy_server import PolicyServerInput

SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {"train_batch_size": 1024, "sgd_minibatch_size": 256, "num_sgd_iter": 4, "lr": 3e-3},
    "DQN": {"exploration_config": {"epsilon_timesteps": 5_000}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", choices=sorted(SETTINGS), default="PPO")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9900, help="0 takes one that is free")
    parser.add_argument("--transport", choices=("http", "tcp", "websocket"), default="http")
    parser.add_argument("--stop-reward", type=float, default=1e9)
    parser.add_argument("--stop-iters", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--idle", type=float, default=5.0, help="seconds without steps to end after")
    args = parser.parse_args()
    env = gym.make("CartPole-v1")
    config = {
        "input": lambda ioctx: PolicyServerInput(
            ioctx,
            args.address,
            args.port,
            transport=args.transport,
            idle_timeout=args.idle,
            force_on_policy=True,
        ),
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "seed": args.seed,
        **SETTINGS[args.run],
    }
    with (PPO if args.run == "PPO" else DQN)(config=config) as algo:
        print("Listening at {}:{}".format(*algo.input_address), flush=True)
        for _ in range(args.stop_iters):
            result = algo.train()
            steps, mean = result["num_env_steps_sampled"], result["episode_reward_mean"]
            print(f"{steps:>9,} env steps  mean return {mean}", flush=True)
            if mean is not None and (mean >= args.stop_reward or "idle" in result["external"]):
                break


if __name__ == "__main__":
    main()
