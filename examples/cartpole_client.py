"""Plays CartPole-v1 with the policy of a server that learns from it; start `cartpole_server.py` first.

    python examples/cartpole_client.py --inference-mode local --port 9900

With --inference-mode remote the server chooses each action; with local the client has a copy of the policy. It ends
when the mean of its last 20 returns reaches --stop-reward.
"""

from collections import deque
from typing import Any, Literal

import gymnasium as gym

from menv.serving.client.policy_client import PolicyClient


def play(client: PolicyClient, env: gym.Env[Any, Any], policy: str) -> float:
    """Play an episode and return its return."""
    episode = client.start_episode()
    obs, _ = env.reset()
    total = 0.0
    done = False
    while not done:
        if policy == "random":
            # The client chooses, and the server learns off policy.
            action = env.action_space.sample()
            client.log_action(episode, obs, action)
        else:
            action = client.get_action(episode, obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        client.log_returns(episode, float(reward))
        total += float(reward)
        done = terminated or truncated
    client.end_episode(episode, obs, truncated=truncated)
    return total


def main(
    inference_mode: Literal["local", "remote"] = "local",
    scheme: Literal["http", "tcp", "ws"] = "http",
    address: str = "localhost",
    port: int = 9900,
    policy: Literal["learned", "random"] = "learned",
    stop_reward: float = 200.0,
    seed: int = 0,
) -> dict[str, Any]:
    env = gym.make("CartPole-v1")
    env.reset(seed=seed)
    env.action_space.seed(seed)
    returns: deque[float] = deque(maxlen=20)
    with PolicyClient(f"{scheme}://{address}:{port}", inference_mode, 1.0, seed=seed) as client:
        while len(returns) < 20 or sum(returns) / 20 < stop_reward:
            returns.append(play(client, env, policy))
            print(f"Total reward: {returns[-1]:.0f}", flush=True)
    return {"mean_return": sum(returns) / 20}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
