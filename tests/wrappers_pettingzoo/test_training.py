"""PPO on one PettingZoo game of each family, by name, and one learned to a stated return."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from menv.algorithms import PPO
from menv.policy import RandomPolicy
from menv.registry import register_env
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.wrappers_pettingzoo.games import AS_THEY_WARN, PARALLEL, Game

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

pytestmark = AS_THEY_WARN

FAMILIES = {
    "leduc": Game("pettingzoo.classic.leduc_holdem_v4"),
    "rps": Game("pettingzoo.classic.rps_v2"),
    "zombies": Game("pettingzoo.butterfly.knights_archers_zombies_v11", PARALLEL, {"max_cycles": 60}),
    "zombies-in-turn": Game("pettingzoo.butterfly.knights_archers_zombies_v11", "env", {"max_cycles": 60}),
    "multiwalker": Game("pettingzoo.sisl.multiwalker_v9", PARALLEL, {"max_cycles": 60}),
    "spread": Game("mpe2.simple_spread_v3", PARALLEL),
    "adversary": Game("mpe2.simple_adversary_v3", PARALLEL),
}


def creator(game: Game) -> Callable[[Any], Any]:
    wrapper: Any = ParallelPettingZooEnv if game.maker == PARALLEL else PettingZooEnv
    return lambda context: wrapper(game.make())


@pytest.mark.slow_unless("leduc", "rps", "zombies-in-turn", "spread")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_iterations_train_every_family(family: str) -> None:
    register_env(f"pettingzoo-{family}", creator(FAMILIES[family]))
    agents = creator(FAMILIES[family])(None).possible_agents
    # A policy for each kind of agent, whose spaces differ in some games.
    kinds = sorted({agent.rpartition("_")[0] for agent in agents})
    config: dict[str, Any] = {
        "num_envs_per_worker": 2,
        "train_batch_size": 256,
        "sgd_minibatch_size": 64,
        "num_sgd_iter": 2,
        # Agents without a reward learn from the entropy alone, because new values are 0.
        "entropy_coeff": 0.01,
        "seed": 0,
        "multiagent": {
            "policies": kinds,
            "policy_mapping_fn": lambda agent_id, episode, worker, **kwargs: agent_id.rpartition("_")[0],
        },
    }
    with PPO(env=f"pettingzoo-{family}", config=config) as algo:
        before = algo.get_weights()
        results = [algo.train() for _ in range(3)]
        after = algo.get_weights()
    assert results[-1]["num_env_steps_sampled"] == 3 * 256
    assert sum(result["episodes_this_iter"] for result in results) >= 2
    for kind in kinds:
        assert np.isfinite(results[-1]["info"][kind]["total_loss"])
        assert any((before[kind][name] != after[kind][name]).any() for name in before[kind])


@pytest.mark.slow
def test_ppo_beats_a_random_player_at_pettingzoos_tictactoe() -> None:
    """The first player earns 0.3 at first; seeds 0, 1, 2 reach 0.96, 0.96, 0.99 in about 10 s each."""
    config: dict[str, Any] = {
        "num_envs_per_worker": 32,
        "train_batch_size": 2048,
        "sgd_minibatch_size": 256,
        "num_sgd_iter": 4,
        "lr": 2e-3,
        "entropy_coeff": 0.02,
        "seed": 0,
        "multiagent": {
            "policies": {"learner": None, "random": RandomPolicy},
            "policies_to_train": ["learner"],
            "policy_mapping_fn": lambda agent_id, episode, worker, **kwargs: {"player_1": "learner"}.get(
                agent_id, "random"
            ),
        },
    }
    with PPO(env=creator(Game("pettingzoo.classic.tictactoe_v3")), config=config) as algo:
        assert algo.train()["policy_reward_mean"]["learner"] < 0.5
        rewards = [algo.train()["policy_reward_mean"]["learner"] for _ in range(60)]
    assert np.mean(rewards[-5:]) > 0.9


@pytest.mark.slow
def test_ppo_learns_to_spread_out() -> None:
    """Three agents share a policy; -72 to -86 at first; seeds 0, 1, 2 reach -56, -56, -58 in about 30 s each."""
    config: dict[str, Any] = {
        "num_envs_per_worker": 16,
        "train_batch_size": 1600,
        "sgd_minibatch_size": 400,
        "num_sgd_iter": 6,
        "lr": 1.5e-3,
        "gamma": 0.95,
        "lambda": 0.95,
        "entropy_coeff": 0.005,
        "seed": 0,
    }
    with PPO(env=creator(Game("mpe2.simple_spread_v3", PARALLEL)), config=config) as algo:
        assert algo.train()["episode_reward_mean"] < -68
        rewards = [algo.train()["episode_reward_mean"] for _ in range(40)]
    assert np.mean(rewards[-5:]) > -62
