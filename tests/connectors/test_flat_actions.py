"""Tuple and Dict actions: one row of a network, and the nested element that the environment is given."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.connectors.action_output import ActionOutput
from menv.connectors.flat_actions import flat_action_space

spaces = gym.spaces
NESTED = spaces.Dict(
    {
        "legs": spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([3, 4])]),
        "mouth": spaces.Discrete(5, start=-1),
    }
)


def test_discrete_parts_are_one_row_of_choices() -> None:
    flat = flat_action_space(NESTED)
    assert isinstance(flat, spaces.MultiDiscrete)
    assert flat.nvec.tolist() == [2, 3, 4, 5]
    (first, second) = ActionOutput(NESTED)(np.array([[1, 2, 3, 4], [0, 0, 0, 0]]))
    assert first["legs"][0] == 1
    assert first["legs"][1].tolist() == [2, 3]
    assert first["mouth"] == 3
    assert second["mouth"] == -1
    assert NESTED.contains(first)
    assert NESTED.contains(second)


def test_box_parts_are_one_row_of_numbers_scaled_each_to_its_bounds() -> None:
    space = spaces.Tuple([spaces.Box(0, 6, (2,)), spaces.Box(-1, 1, ()), spaces.Box(10, 20, (1, 1))])
    (action,) = ActionOutput(space)(np.array([[-1.0, 0.5, 0.25, 1.0]], np.float32))
    assert [np.asarray(part).tolist() for part in action] == [[0.0, 4.5], 0.25, [[20.0]]]
    assert space.contains(action)


@pytest.mark.parametrize("space", [NESTED, spaces.Tuple([NESTED, spaces.Discrete(3)])])
def test_every_row_is_an_element(space: Any) -> None:
    flat = flat_action_space(space)
    assert isinstance(flat, spaces.MultiDiscrete)
    rows = np.random.default_rng(0).integers(0, flat.nvec, (50, len(flat.nvec)))
    actions = ActionOutput(space)(rows)
    assert len(actions) == 50
    assert all(space.contains(action) for action in actions)


def test_other_spaces_stay_as_they_are() -> None:
    space = spaces.Discrete(3)
    assert flat_action_space(space) is space
