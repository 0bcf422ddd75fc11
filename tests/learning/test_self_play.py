"""Connect four learned against former selves: they never change, and the learner becomes good."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.self_play import CONFIG, against
from menv.algorithms import PPO
from menv.envs import ConnectFour
from tests.test_examples import outcome_of

ME = ["learner"]
SMALL = {"num_envs_per_worker": 16, "train_batch_size": 512, "sgd_minibatch_size": 256, "num_sgd_iter": 2}


def new_algorithm() -> PPO:
    return PPO(env="connect_four", config={**CONFIG, **SMALL, "callbacks": None, "seed": 1})


def add_snapshot(algo: PPO, count: int) -> None:
    names = [f"snapshot_{number}" for number in range(count + 1)]
    algo.add_policy(names[-1], policy_mapping_fn=against(*names), policies_to_train=ME)
    algo.set_weights({names[-1]: algo.get_weights(ME)["learner"]})


def hash_of(algo: PPO, policy_id: str) -> str:
    weights: Mapping[str, Any] = algo.get_weights([policy_id])[policy_id]
    assert weights
    return hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()


def positions(count: int) -> list[Any]:
    """Return observations of random games."""
    env, rng = ConnectFour(), np.random.default_rng(0)
    found: list[Any] = []
    while len(found) < count:
        obs, _ = env.reset()
        while env.agents:
            ((mover, seen),) = obs.items()
            found.append(seen)
            obs, *_ = env.step({mover: rng.choice(np.flatnonzero(seen["action_mask"]))})
    return found[:count]


def test_a_snapshots_weights_and_moves_never_change_while_the_learner_goes_on() -> None:
    shown = positions(200)
    with new_algorithm() as algo:
        hashes = {"snapshot_0": hash_of(algo, "snapshot_0")}
        moves = {"snapshot_0": algo.get_policy("snapshot_0").compute_actions(shown, explore=False)[0]}
        for count in (1, 2, 3):
            for _ in range(2):
                result = algo.train()
            add_snapshot(algo, count)
            name = f"snapshot_{count}"
            hashes[name] = hash_of(algo, name)
            assert hashes[name] == hash_of(algo, "learner")
            moves[name] = algo.get_policy(name).compute_actions(shown, explore=False)[0]
        for _ in range(8):
            result = algo.train()
            assert set(result["info"]["learner"]) & set(hashes) == set()
        assert {name: hash_of(algo, name) for name in hashes} == hashes
        assert len({*hashes.values(), hash_of(algo, "learner")}) == 5
        for name, before in moves.items():
            after = algo.get_policy(name).compute_actions(shown, explore=False)[0]
            assert np.array_equal(after, before)
        assert set(hashes) < set(result["policy_reward_mean"])


def test_every_game_has_one_learner_in_either_seat_and_one_opponent() -> None:
    with new_algorithm() as algo:
        add_snapshot(algo, 1)
        add_snapshot(algo, 2)
        batches = [algo.sample() for _ in range(8)]
    games: dict[int, dict[int, str]] = {}
    for batch in batches:
        for name, own in batch.policy_batches.items():
            for game, seat in zip(own["eps_id"].tolist(), own["agent_index"].tolist(), strict=True):
                assert games.setdefault(game, {}).setdefault(seat, name) == name
    whole = [tuple(seats[seat] for seat in (0, 1)) for seats in games.values() if len(seats) == 2]
    assert all(seats.count("learner") == 1 for seats in whole)
    assert {seats.index("learner") for seats in whole} == {0, 1}
    met = [name for seats in whole for name in seats if name != "learner"]
    assert set(met) == {"snapshot_0", "snapshot_1", "snapshot_2"}
    # Half of the games by rule, and a third of the others by chance.
    assert 0.5 < met.count("snapshot_0") / len(met) < 0.83


@pytest.mark.slow
@pytest.mark.alone
def test_the_learner_wins_95_of_100_games_against_a_random_player(tmp_path: Path) -> None:
    outcomes = [outcome_of("self_play", folder=tmp_path, seconds="45", seed=seed) for seed in range(3)]
    assert statistics.median(outcome["won"] for outcome in outcomes) >= 0.95
    assert all(outcome["opponents"] > 3 for outcome in outcomes)
