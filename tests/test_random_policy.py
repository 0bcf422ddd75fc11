"""RandomPolicy draws from every space, evenly, legally and repeatably."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import rng
from menv.errors import ConfigError
from menv.policy import RandomPolicy, RowDraws

spaces = gym.spaces
SPACES: list[gym.Space[Any]] = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=-1),
    spaces.Discrete(3, dtype=np.int32),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiDiscrete([2, 5], start=[3, -2]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 2]),
    spaces.Box(-2.0, 3.0, (2,), np.float32),
    spaces.Box(0, 255, (2, 2), np.uint8),
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 0], np.float32)),
    spaces.Box(-1.0, 1.0, (), np.float64),
    spaces.Tuple([spaces.Discrete(2), spaces.Box(0.0, 1.0, (2,), np.float32)]),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({"c": spaces.MultiBinary(2)})}),
]
ANY = spaces.Discrete(2)


def row_draws(rows: int, step: int = 0) -> RowDraws:
    return RowDraws(np.array([rng.key(0, row) for row in range(rows)], np.uint64), np.full(rows, step))


def policy(space: gym.Space[Any], observation_space: gym.Space[Any] = ANY) -> RandomPolicy:
    return RandomPolicy(observation_space, space)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_action_is_in_its_space(space: gym.Space[Any]) -> None:
    actions = policy(space).answer([0] * 200, row_draws(200), True, [])
    assert len(actions) == 200
    assert all(space.contains(action) for action in actions), next(
        a for a in actions if not space.contains(a)
    )


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_an_action_does_not_depend_on_the_batch(space: gym.Space[Any]) -> None:
    def text(actions: Any) -> list[str]:
        return [repr(action) for action in actions]

    many = row_draws(6, 9)
    together = text(policy(space).answer([0] * 6, many, True, []))
    alone = [
        text(policy(space).answer([0], RowDraws(many.keys[row : row + 1], many.steps[:1]), True, []))[0]
        for row in range(6)
    ]
    assert together == alone
    assert len(set(together)) > 1


def test_all_choices_are_equally_likely() -> None:
    actions = policy(spaces.Discrete(5)).answer([0] * 10_000, row_draws(10_000), True, [])
    assert np.abs(np.bincount(actions) - 2000).max() < 200
    pairs = np.array(policy(spaces.MultiDiscrete([2, 4])).answer([0] * 8000, row_draws(8000), True, []))
    assert np.abs(np.bincount(pairs[:, 0] * 4 + pairs[:, 1]) - 1000).max() < 150
    whole = np.array(policy(spaces.Box(0, 3, (1,), np.uint8)).answer([0] * 8000, row_draws(8000), True, []))
    assert np.abs(np.bincount(whole[:, 0]) - 2000).max() < 200


def masked(width: int) -> gym.Space[Any]:
    return spaces.Dict({"observation": ANY, "action_mask": spaces.MultiBinary(width)})


def test_only_legal_actions_are_drawn_each_as_likely_as_the_others() -> None:
    obs = [{"observation": 0, "action_mask": np.array([0, 1, 0, 1, 1], np.int8)}] * 6000
    actions = policy(spaces.Discrete(5, start=10), masked(5)).answer(obs, row_draws(6000), True, [])
    counts = np.bincount(np.array(actions) - 10, minlength=5)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert np.abs(counts[[1, 3, 4]] - 2000).max() < 200


def test_masks_of_nested_actions_and_of_the_members_of_a_group_hold() -> None:
    pair = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2, start=5)])
    of_two = [{"observation": 0, "action_mask": np.array([0, 1, 1, 0, 1], np.int8)}] * 200
    drawn = policy(pair, masked(5)).answer(of_two, row_draws(200), True, [])
    assert {tuple(map(int, action)) for action in drawn} == {(1, 6), (2, 6)}

    members = spaces.Tuple([masked(3), ANY, masked(2)])
    team = [
        ({"action_mask": np.array([0, 1, 1], np.int8)}, 0, {"action_mask": np.array([1, 0], np.int8)})
    ] * 200
    actions = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2), spaces.Discrete(2)])
    drawn = policy(actions, members).answer(team, row_draws(200), True, [])
    assert {tuple(map(int, action)) for action in drawn} == {(1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0)}


def test_compute_actions_repeats_itself_under_a_seed_and_continues_drawing() -> None:
    def acted(seed: int) -> list[Any]:
        one = RandomPolicy(ANY, spaces.Discrete(1000), {"seed": seed})
        return [one.compute_actions([0] * 5)[0] for _ in range(3)]

    assert acted(1) == acted(1)
    assert acted(1) != acted(2)
    first, second, _ = acted(1)
    assert first != second


def test_it_has_no_weights() -> None:
    assert policy(spaces.Discrete(2)).get_weights() == {}


def test_a_space_that_cannot_be_drawn_from_is_named() -> None:
    with pytest.raises(ConfigError, match="RandomPolicy"):
        policy(spaces.Text(3)).answer([0], row_draws(1), True, [])
