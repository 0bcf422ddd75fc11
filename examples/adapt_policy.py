"""A policy trained on CartPole acts in another CartPole, which shows two more numbers and wants a second action.

    python examples/adapt_policy.py

The stored policy is not trained again. A connector removes the numbers that it does not know from the observation, and
another connector adds the second action.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from menv import Policy, SampleBatch, local_policy_inference
from menv.algorithms import PPO
from menv.connectors import (
    ConnectorContext,
    register_lambda_action_connector,
    register_lambda_agent_connector,
)
from menv.tracking import next_run_dir, plot_runs


class CartWithHorn(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose observation also has the temperature and the hour, and whose driver may sound a horn."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return self.with_more(obs), info

    def step(self, action: Any) -> Any:
        push, _horn = action
        obs, reward, terminated, truncated, info = self.env.step(push)
        return self.with_more(obs), reward, terminated, truncated, info

    def with_more(self, obs: Any) -> Any:
        return np.append(obs, [8.0, 6.0]).astype(np.float32)


def first_four(data: dict[str, Any]) -> dict[str, Any]:
    obs = data[SampleBatch.NEXT_OBS]
    return {**data, SampleBatch.NEXT_OBS: obs[:4]}


def with_horn(actions: Any, states: Any, fetches: Any) -> Any:
    silent = 0
    return (actions, silent), states, fetches


FirstFour = register_lambda_agent_connector("FirstFour", first_four)
WithHorn = register_lambda_action_connector("WithHorn", with_horn)


def play(policy: Policy, seed: int) -> float:
    env = CartWithHorn(gym.make("CartPole-v1"))
    obs, _ = env.reset(seed=seed)
    total = 0.0
    done = False
    while not done:
        ((action, _, _),) = local_policy_inference(policy, "cart", "driver", obs, explore=False)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        done = terminated or truncated
    return total


def main(seconds: float = 5.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("adapt-policy", "PPO")
    with PPO(env="CartPole-v1", config={"num_envs_per_worker": 64, "seed": seed}) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
        algo.export_policy_checkpoint(run_dir / "policy")
    print("wrote", plot_runs([run_dir]))

    policy: Any = Policy.from_checkpoint(run_dir / "policy")
    policy.agent_connectors.prepend(FirstFour(ConnectorContext.from_policy(policy)))
    policy.action_connectors.append(WithHorn(ConnectorContext.from_policy(policy)))
    print(policy.agent_connectors)
    returns = [play(policy, number) for number in range(5)]
    print("returns in the other CartPole:", returns)
    return {"mean_return": float(np.mean(returns))}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
