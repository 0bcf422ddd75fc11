"""A critic that sees the global state learns what one that sees all observations cannot tell from the weather."""

from __future__ import annotations

import pytest

from examples.global_state import CONFIG, Orchard
from menv.algorithms import PPO

pytestmark = pytest.mark.slow
PLAIN = {"env_config": {"weather": 0.0}, "common_reward": None}


def fruit(critic_obs: str, seed: int) -> float:
    more = {"evaluation_duration": 200, "evaluation_config": PLAIN, "seed": seed}
    with PPO(env=Orchard, config={**CONFIG, "critic_obs": critic_obs, **more}) as algo:
        algo.learn(45_000)
        return float(algo.evaluate()["evaluation"]["episode_reward_mean"])


def test_the_state_beats_the_observations_in_the_orchard() -> None:
    # Fruit after 40,000 env steps with seeds 0, 1 and 2: 6.0, 5.4 and 5.2 with the state, 4.5, 5.1 and 4.5 without.
    found = {how: sum(fruit(how, seed) for seed in (0, 1)) / 2 for how in ("state", "all_agents")}
    assert found["state"] > found["all_agents"] + 0.4
