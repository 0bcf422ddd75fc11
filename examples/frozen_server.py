"""A server that answers with a trained policy and does not train it, and a client that plays ten episodes with it.

    python examples/frozen_server.py

Training, server and client are one program here. In production each is a separate program or machine: the server is
the command `menv serve RUN --frozen`, and the client needs neither torch nor the environment of the server.
"""

import subprocess
import sys
from typing import Any

import gymnasium as gym

from menv.algorithms import PPO
from menv.serving.client.policy_client import PolicyClient
from menv.tracking import next_run_dir, plot_runs


def play(client: PolicyClient, env: gym.Env[Any, Any], seed: int) -> float:
    episode = client.start_episode()
    obs, _ = env.reset(seed=seed)
    total = 0.0
    done = False
    while not done:
        action = client.get_action(episode, obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        client.log_returns(episode, float(reward))
        total += float(reward)
        done = terminated or truncated
    client.end_episode(episode, obs, truncated=truncated)
    return total


def main(seconds: float = 10.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("frozen", "PPO")
    with PPO(env="CartPole-v1", config={"num_envs_per_worker": 64, "seed": seed}) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))

    command = [sys.executable, "-m", "menv.cli", "serve", str(run_dir), "--frozen", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        # The line ends with "listening at 127.0.0.1:43210".
        address = next(line for line in server.stdout if "listening at" in line).split()[-1]
        env = gym.make("CartPole-v1")
        with PolicyClient(f"http://{address}", "remote") as client:
            returns = [play(client, env, number) for number in range(10)]
        server.terminate()
    print("returns of the client:", returns)
    return {"mean_return": sum(returns) / len(returns)}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
