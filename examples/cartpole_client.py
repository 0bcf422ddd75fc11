"""Plays CartPole-v1 with the policy of a server that learns from it; start `cartpole_server.py` first.

    python examples/cartpole_client.py --inference-mode=local --port=9900

It ends when the mean of its last returns is high enough.
"""

import argparse
from collections import deque

import gymnasium as gym

from menv.serving.client.policy_client import PolicyClient

EPISODES = 20
"""So many returns make a mean."""


def main() -> None:
    """Read the command line, play, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inference-mode", choices=("local", "remote"), default="local")
    parser.add_argument("--update-interval", type=float, default=1.0, help="seconds between new weights")
    parser.add_argument("--scheme", choices=("http", "tcp", "ws"), default="http")
    parser.add_argument("--address", default="localhost")
    parser.add_argument("--port", type=int, default=9900)
    parser.add_argument("--stop-reward", type=float, default=200.0)
    parser.add_argument("--off-policy", action="store_true", help="choose actions by chance, and log them")
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    env = gym.make("CartPole-v1")
    env.action_space.seed(args.seed)
    returns: deque[float] = deque(maxlen=EPISODES)
    where, mode = f"{args.scheme}://{args.address}:{args.port}", args.inference_mode
    obs, _ = env.reset(seed=args.seed)
    with PolicyClient(where, mode, args.update_interval, seed=args.seed) as client:
        while len(returns) < EPISODES or sum(returns) / EPISODES < args.stop_reward:
            episode, total, over = client.start_episode(), 0.0, False
            while not over:
                if args.off_policy:
                    action = env.action_space.sample()
                    client.log_action(episode, obs, action)
                else:
                    action = client.get_action(episode, obs)
                obs, reward, terminated, truncated, _ = env.step(action)
                total, over = total + float(reward), terminated or truncated
                client.log_returns(episode, float(reward))
            client.end_episode(episode, obs, truncated=truncated)
            returns.append(total)
            print(f"Total reward: {total:.0f}", flush=True)
            obs, _ = env.reset()


if __name__ == "__main__":
    main()
