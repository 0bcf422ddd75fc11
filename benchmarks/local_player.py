"""CartPole played for some seconds, by a client that holds the policy or by an algorithm in this process.

    python -m benchmarks.local_player {client,here} [HOST PORT] [--seconds S]

The last line is one JSON object: env steps a second, all that a client sends included.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium as gym


def client(host: str, port: int, seconds: float) -> float:
    """Return env steps a second of a client with local inference."""
    from menv.serving import PolicyClient

    env, steps = gym.make("CartPole-v1").unwrapped, 0
    with PolicyClient(f"tcp://{host}:{port}", "local", update_interval=None) as player:
        begin = -1.0
        while begin < 0.0 or time.perf_counter() - begin < seconds:
            episode = player.start_episode()
            obs, _ = env.reset()
            length, over = 0, False
            while not over:
                obs, reward, terminated, _, _ = env.step(player.get_action(episode, obs))
                player.log_returns(episode, float(reward))
                length += 1
                over = terminated or length == 500
            player.end_episode(episode, obs, truncated=not terminated)
            if begin < 0.0:
                begin = time.perf_counter()
            else:
                steps += length
        passed = time.perf_counter() - begin
    return steps / passed


def here(seconds: float) -> float:
    """Return env steps a second of an algorithm that samples one environment."""
    from menv.algorithms import PPO

    with PPO(env="CartPole-v1", config={"train_batch_size": 1000, "callbacks": None}) as algo:
        algo.sample()
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            steps += algo.sample().env_steps()
        return steps / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("who", choices=("client", "here"))
    parser.add_argument("host", nargs="?")
    parser.add_argument("port", nargs="?", type=int)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    rate = here(args.seconds) if args.who == "here" else client(args.host, args.port, args.seconds)
    print(json.dumps({"per_second": rate}))


if __name__ == "__main__":
    main()
