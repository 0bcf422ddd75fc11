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
from menv.offline import record
from tests.offline.worlds import Doors


def balance(obs: Any) -> int:
    position, speed, angle, rotation = obs
    return int(angle + 0.3 * rotation + 0.05 * position + 0.1 * speed > 0)


def open_doors(obs: Any) -> list[int]:
    return [int(door) for door in np.flatnonzero(obs["action_mask"])]


def test_qmix_learns_more_from_random_joint_actions_under_masks_than_they_earned(tmp_path: Path) -> None:
    def team(context: Any) -> Any:
        return Doors().with_agent_groups({"team": ["a", "b"]})

    draws, path = random.Random(0), tmp_path / "random.parquet"
    returns = record(lambda obs: tuple(draws.choice(open_doors(one)) for one in obs), team, path, episodes=60)
    assert returns["team"] < 8
    config = {
        "input": str(path), "lr": 1e-2, "training_intensity": 5, "num_steps_sampled_before_learning_starts": 100,
        "evaluation_duration": 5, "evaluation_config": {"explore": False}, "torch_threads": 1, "seed": 0,
    }  # fmt: skip
    with QMIX(env=team, config=config) as algo:
        assert not reaches(12, algo, every=0, most=1)
        assert reaches(12, algo, every=1, most=3)


def test_ppo_clones_a_player_under_masks(tmp_path: Path) -> None:
    path = tmp_path / "last.jsonl"
    returns = record(lambda obs: open_doors(obs)[-1], Doors, path, episodes=30)
    assert returns == pytest.approx({"a": 6, "b": 6})
    config = {
        "input": str(path), "bc_weight": 1.0, "train_batch_size": 200, "lr": 1e-2, "evaluation_duration": 5,
        "evaluation_config": {"explore": False}, "torch_threads": 1, "seed": 0,
    }  # fmt: skip
    with PPO(env=Doors, config=config) as algo:
        assert not reaches(12, algo, every=0, most=1)
        assert reaches(12, algo, every=1, most=3)


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
