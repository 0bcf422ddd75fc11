"""What algorithms learn from recorded episodes alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.self_play import lookahead, points
from menv.algorithms import DQN, PPO, QMIX
from menv.envs import TwoStepGame
from menv.offline import record


def balance(obs: Any) -> int:
    position, speed, angle, rotation = obs
    return int(angle + 0.3 * rotation + 0.05 * position + 0.1 * speed > 0)


def test_qmix_learns_more_from_random_joint_actions_than_they_earned(tmp_path: Path) -> None:
    def team(context: Any) -> Any:
        return TwoStepGame({"with_state": True}).with_agent_groups({"team": ["agent_1", "agent_2"]})

    draws, path = random.Random(0), tmp_path / "random.parquet"
    returns = record(lambda obs: (draws.randrange(2), draws.randrange(2)), team, path, episodes=200)
    assert returns["team"] < 6
    config = {
        "input": str(path),
        "evaluation_duration": 1,
        "evaluation_config": {"explore": False},
        "seed": 0,
    }
    with QMIX(env=team, config=config) as algo:
        for _ in range(3):
            algo.train()
        assert algo.evaluate()["evaluation"]["episode_reward_mean"] >= 7


@pytest.mark.slow
def test_dqn_reaches_450_in_cartpole_from_recorded_episodes(tmp_path: Path) -> None:
    """Twenty episodes of a good policy and a hundred of one that often acts at random."""
    draws = random.Random(0)

    def careless(obs: Any) -> int:
        return draws.randrange(2) if draws.random() < 0.6 else balance(obs)

    record(balance, "CartPole-v1", tmp_path / "good.parquet", episodes=20, seed=0)
    assert (
        record(careless, "CartPole-v1", tmp_path / "careless.parquet", episodes=100, seed=1)["agent0"] < 200
    )
    config = {
        "input": str(tmp_path / "*.parquet"), "n_step": 3, "target_network_update_freq": 4000, "seed": 0,
        "evaluation_duration": 20, "evaluation_config": {"num_envs_per_worker": 10, "explore": False},
    }  # fmt: skip
    with DQN(env="CartPole-v1", config=config) as algo:
        assert reaches(450, algo, every=10, most=20)


def reaches(wanted: float, algo: Any, every: int, most: int) -> bool:
    """Return whether the mean return of one of `most` evaluations is as high as wanted."""
    for _ in range(most):
        for _ in range(every):
            algo.train()
        if algo.evaluate()["evaluation"]["episode_reward_mean"] >= wanted:
            return True
    return False


def half_random(planes: Any, mask: Any, rng: np.random.Generator) -> int:
    """Return a move of a player that looks one move ahead, but every other time a random one."""
    return lookahead(planes, mask, rng) if rng.random() < 0.5 else int(rng.choice(np.flatnonzero(mask)))


@pytest.mark.slow
def test_ppo_that_begins_as_a_clone_of_10000_games_of_connect_four_beats_the_player_of_these(
    tmp_path: Path,
) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "games.parquet"
    player: Callable[[Any], int] = lambda obs: half_random(obs["observations"], obs["action_mask"], rng)  # noqa: E731
    record(player, "connect_four", path, episodes=10_000)
    shared: dict[str, Any] = {
        "model": {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu"}, "sgd_minibatch_size": 1024, "lr": 2e-3,
        "torch_threads": 1, "seed": 0,
    }  # fmt: skip
    cloning = {"input": str(path), "bc_weight": 1.0, "train_batch_size": 20_000, "num_sgd_iter": 4}
    with PPO(env="connect_four", config={**shared, **cloning}) as algo:
        for _ in range(16):
            algo.train()
        weights = algo.get_weights()
    playing = {
        "input": {"sampler": 0.5, str(path): 0.5}, "bc_weight_schedule": [[0, 1.0], [100_000, 0.0]], "lambda": 0.9,
        "num_envs_per_worker": 128, "train_batch_size": 8192, "entropy_coeff": 0.01,
    }  # fmt: skip
    with PPO(env="connect_four", config={**shared, **playing}) as algo:
        algo.set_weights(weights)
        for _ in range(20):
            algo.train()
        won, drawn = points(algo.get_policy(), half_random, 400, 5)
    assert won + drawn / 2 > 0.6
