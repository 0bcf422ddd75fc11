"""The two rules of rock-paper-scissors: what they show, and that nothing but the episode decides it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from menv import PolicySpec
from menv.algorithms import PPO
from menv.envs import AlwaysSame, BeatLastMove, RockPaperScissors
from menv.envs.rock_paper_scissors import NOTHING, PAPER, ROCK, SCISSORS
from menv.episode import Episode
from menv.errors import ConfigError
from menv.policy import Policy, RowDraws
from menv.rng import key

SPACES: tuple[gym.Space[Any], gym.Space[Any]] = (gym.spaces.Discrete(4), gym.spaces.Discrete(3))
SMALL = {"num_sgd_iter": 1, "sgd_minibatch_size": 100, "train_batch_size": 600}


def row_draws(rows: int, steps: int = 0) -> RowDraws:
    keys = np.array([key(1, row) for row in range(rows)], np.uint64)
    return RowDraws(keys, np.full(rows, steps, np.int64))


def rounds_of(
    policy_class: type[Policy], seed: int = 3, num_envs: int = 1, **config: Any
) -> npt.NDArray[Any]:
    """Return [B, 10, 2], the hands of `policy_class` and of the learner in whole episodes."""
    policies = {"rule": PolicySpec(policy_class=policy_class, config=config), "learner": None}
    multiagent = {
        "policies": policies,
        "policy_mapping_fn": lambda agent_id: "rule" if agent_id == "player2" else "learner",
    }
    settings = {**SMALL, "num_envs_per_worker": num_envs, "batch_mode": "complete_episodes"}
    with PPO(env=RockPaperScissors, config={**settings, "multiagent": multiagent, "seed": seed}) as algo:
        batch = algo.sample()
        hands = []
        for policy_id in ("rule", "learner"):
            own = batch[policy_id]
            assert (np.diff(own["eps_id"].reshape(-1, 10), axis=1) == 0).all()
            hands.append(own["actions"].reshape(-1, 10))
        assert np.array_equal(batch["rule"]["eps_id"], batch["learner"]["eps_id"])
        return np.stack(hands, axis=2)


def test_always_same_shows_one_hand_in_all_rounds_of_an_episode_and_not_in_all_episodes() -> None:
    hands = rounds_of(AlwaysSame)[:, :, 0]
    assert (hands == hands[:, :1]).all()
    assert len(hands) >= 60
    assert np.bincount(hands[:, 0], minlength=3).min() >= 10


def test_beat_last_move_shows_the_hand_that_beats_the_last_one() -> None:
    hands = rounds_of(BeatLastMove)
    rule, learner = hands[:, :, 0], hands[:, :, 1]
    assert np.array_equal(rule[:, 1:], (learner[:, :-1] + 1) % 3)
    assert np.bincount(rule[:, 0], minlength=3).min() >= 10
    assert not np.array_equal(rule[:, 0], learner[:, 0])


@pytest.mark.parametrize("policy_class", [AlwaysSame, BeatLastMove])
def test_the_seed_decides_the_hands(policy_class: type[Policy]) -> None:
    first = rounds_of(policy_class, num_envs=4)
    assert np.array_equal(first, rounds_of(policy_class, num_envs=4))
    assert not np.array_equal(first, rounds_of(policy_class, seed=4, num_envs=4))


@pytest.mark.parametrize("hand", [ROCK, PAPER, SCISSORS])
def test_always_same_plays_a_given_hand(hand: int) -> None:
    assert (rounds_of(AlwaysSame, hand=hand)[:, :, 0] == hand).all()


def test_a_hand_that_does_not_exist_is_refused() -> None:
    policy = AlwaysSame(*SPACES, {"hand": 3})
    with pytest.raises(ConfigError, match="AlwaysSame"):
        policy.compute_actions([NOTHING])


def test_an_episodes_hand_depends_on_the_episode_and_the_player_alone() -> None:
    policy = AlwaysSame(*SPACES)
    episodes = [Episode(number, 0) for number in range(50) for _ in range(2)]
    first = policy.answer([NOTHING] * 100, row_draws(100, steps=0), True, episodes)
    later = policy.answer([ROCK] * 100, row_draws(100, steps=7), None, episodes)
    assert list(first) == list(later)
    alone = policy.answer([PAPER], RowDraws(row_draws(100).keys[40:41], np.array([9])), True, episodes[40:41])
    assert alone[0] == first[40]
    assert any(first[row] != first[row + 1] for row in range(0, 100, 2))
