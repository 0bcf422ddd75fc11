"""What algorithms learn from recorded episodes alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN, PPO, QMIX
from menv.offline import record
from tests.offline.worlds import Doors, Tolls


def balance(obs: Any) -> int:
    position, speed, angle, rotation = obs
    return int(angle + 0.3 * rotation + 0.05 * position + 0.1 * speed > 0)


def open_doors(obs: Any) -> list[int]:
    return [int(door) for door in np.flatnonzero(obs["action_mask"])]


@pytest.mark.slow
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
    path = tmp_path / "last.parquet"
    returns = record(lambda obs: open_doors(obs)[-1], Doors, path, episodes=30)
    assert returns == pytest.approx({"a": 6, "b": 6})
    config = {
        "input": str(path), "train_batch_size": 200, "lr": 1e-2, "evaluation_duration": 5,
        "evaluation_config": {"explore": False}, "torch_threads": 1, "seed": 0,
    }  # fmt: skip
    with PPO(env=Doors, config=config) as algo:
        assert not reaches(12, algo, every=0, most=1)
        assert reaches(12, algo, every=1, most=3)


def of_two(make: Any) -> Any:
    return make().with_agent_groups({"team": ["a", "b"]})


ROADS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "DQN": (DQN, Tolls, {}),
    "DQN with priorities": (DQN, Tolls, {"replay_buffer_config": {"prioritized_replay": True}}),
    "DQN with an LSTM": (DQN, Tolls, {"model": {"use_lstm": True}}),
    "QMIX": (QMIX, lambda context: of_two(Tolls), {}),
    "VDN": (QMIX, lambda context: of_two(Tolls), {"mixer": "vdn"}),
    "independent members": (QMIX, lambda context: of_two(Tolls), {"mixer": None}),
}


@pytest.mark.slow_unless("DQN")
@pytest.mark.parametrize("case", ROADS)
def test_q_values_of_roads_that_no_recording_shows_stay_below_those_that_it_shows(
    case: str, tmp_path: Path
) -> None:
    """Without the conservative term, roads that nobody took are worth 0, more than the -1 and -2 of the others."""
    kind, env, own = ROADS[case]
    draws, path = random.Random(0), tmp_path / "roads.parquet"
    team = kind is QMIX
    record(
        lambda obs: tuple(draws.randrange(2) for _ in "ab") if team else draws.randrange(2), env, path, episodes=300
    )  # fmt: skip
    config = {
        "input": str(path), "lr": 1e-2, "num_steps_sampled_before_learning_starts": 100, "evaluation_duration": 1,
        "training_intensity": 8, "train_batch_size": 64, "evaluation_config": {"explore": False}, "torch_threads": 1,
        "seed": 0, "dueling": False, **own,
    }  # fmt: skip
    found = {}
    for alpha in (None, 0.0):
        with kind(env=env, config={**config, "cql_alpha": alpha}) as algo:
            for _ in range(2):
                result = algo.train()
            found[alpha] = algo.evaluate()["evaluation"]["episode_reward_mean"]
    assert found[None] == -2.0
    # The mixing network's own bias takes up the costs, and members prefer the cheaper road anyway.
    assert found[0.0] < -2.0 or case == "QMIX"
    assert result["episode_reward_mean"] is None
    assert result["policy_reward_mean"] == {}
    assert result["episodes_total"] == result["episodes_in_window"] == 0
    assert result["recording"]["episode_reward_mean"] == pytest.approx(-3, abs=0.3)
    assert result["num_env_steps_sampled"] >= 2000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_dqn_ends_above_300_in_cartpole_from_episodes_of_mean_63(seed: int, tmp_path: Path) -> None:
    draws, path = random.Random(0), tmp_path / "careless.parquet"

    def careless(obs: Any) -> int:
        return draws.randrange(2) if draws.random() < 0.69 else balance(obs)

    returns = record(careless, "CartPole-v1", path, episodes=200, seed=1)
    assert returns["agent0"] == pytest.approx(63, abs=4)
    config = {
        "input": str(path), "seed": seed, "torch_threads": 1, "evaluation_duration": 20,
        "evaluation_config": {"num_envs_per_worker": 10, "explore": False},
    }  # fmt: skip
    with DQN(env="CartPole-v1", config=config) as algo:
        for _ in range(20):
            algo.train()
        assert algo.evaluate()["evaluation"]["episode_reward_mean"] > 300


def reaches(wanted: float, algo: Any, every: int, most: int) -> bool:
    """Return whether the mean return of one of `most` evaluations is as high as wanted."""
    for _ in range(most):
        for _ in range(every):
            algo.train()
        if algo.evaluate()["evaluation"]["episode_reward_mean"] >= wanted:
            return True
    return False
