"""What several policies learn side by side: the median of three seeds passes each bar."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from menv import Policy, PolicySpec
from menv.algorithms import PPO
from menv.envs import MultiAgentTrafficEnv, make_multi_agent
from tests.envs.traffic_rules import careful_driver, fixed_cycle
from tests.learning.runs import SEEDS, median_of_best

pytestmark = pytest.mark.slow


def test_two_policies_of_four_agents_balance_their_poles() -> None:
    config = {
        "env_config": {"num_agents": 4},
        "num_envs_per_worker": 16,
        "multiagent": {
            "policies": ["even", "odd"],
            "policy_mapping_fn": lambda agent_id: ["even", "odd"][int(str(agent_id)[-1]) % 2],
        },
    }
    found = median_of_best(
        PPO, make_multi_agent("CartPole-v1"), config, bar=150.0, env_steps=100_000,
        value=lambda result: min(result["policy_reward_mean"].values()),
    )  # fmt: skip
    assert found >= 150.0


class CarefulDriver(Policy):
    """Drives by a fixed rule."""

    def answer(self, obs_batch: Any, row_draws: Any, explore: Any, episodes: Any) -> list[int]:
        return [careful_driver(obs) for obs in obs_batch]


ROADS = {"num_cars": 6, "num_traffic_lights": 2, "max_cars": 12, "entry_rate": 0.15}
MARGIN = 30.0


def mean_return(light: Callable[[Any], int]) -> float:
    """Return the mean over 60 episodes of what cars and lights earn together."""
    env = MultiAgentTrafficEnv(ROADS)
    returns = []
    for seed in range(60):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            actions = {agent: _action(agent, seen, light) for agent, seen in obs.items()}
            obs, rewards, terminateds, truncateds, _ = env.step(actions)
            total += sum(rewards.values())
            over = terminateds["__all__"] or truncateds["__all__"]
            obs = {agent: seen for agent, seen in obs.items() if not _gone(agent, terminateds, truncateds)}
        returns.append(total)
    return statistics.fmean(returns)


def _action(agent: Any, seen: Any, light: Callable[[Any], int]) -> int:
    return careful_driver(seen) if str(agent).startswith("car") else light(seen)


def _gone(agent: Any, *flags: Mapping[Any, bool]) -> bool:
    return any(each.get(agent, False) for each in flags)


def trained_lights(seed: int) -> float:
    config = {
        "env_config": ROADS, "num_envs_per_worker": 16, "train_batch_size": 2048, "entropy_coeff": 0.005, "seed": seed,
        "multiagent": {
            "policies": {"cars": PolicySpec(policy_class=CarefulDriver), "lights": None},
            "policy_mapping_fn": lambda agent_id: "cars" if agent_id.startswith("car") else "lights",
        },
    }  # fmt: skip
    with PPO(env=MultiAgentTrafficEnv, config=config) as algorithm:
        for _ in range(30):
            algorithm.train()
        policy: Any = algorithm.get_policy("lights")
        return mean_return(lambda seen: int(policy.act(seen)))


def test_lights_that_learned_beat_every_fixed_cycle() -> None:
    """Fixed cycles of 1 to 16 steps get 112 to 242 with careful drivers."""
    best_fixed = max(mean_return(partial(fixed_cycle, green_steps=green)) for green in (1, 2, 4, 8, 16))
    assert statistics.median(trained_lights(seed) for seed in SEEDS) >= best_fixed + MARGIN
