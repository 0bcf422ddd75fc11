"""Tuple and Dict actions: one row of a network, and the nested element that the environment is given."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.connectors.action_output import ActionOutput, flat_action_space
from menv.errors import ConfigError
from menv.spaces import OutsideSpaceError

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


SMALL = spaces.MultiDiscrete(np.array([[2, 3]]), dtype=np.int8)
CAR: Any = spaces.Dict(
    {
        "brake": spaces.Discrete(3, start=2**60),
        "gear": spaces.Tuple([spaces.Box(0, 1, (), np.float64), SMALL]),
        "steer": spaces.Box(np.array([-2.0, -np.inf], np.float32), np.array([4.0, 1.0], np.float32)),
    }
)
CAR_ROW = [2.0, 0.5, 1.0, 2.0, -1.0, 3.0]


def test_choices_and_numbers_are_one_row_in_the_order_of_the_space() -> None:
    (action,) = ActionOutput(CAR)(np.array([CAR_ROW], np.float32))
    assert CAR.contains(action)
    assert (action["brake"], action["gear"][0].tolist()) == (2**60 + 2, 0.75)
    assert action["gear"][1].tolist() == [[1, 2]]
    # Scaled between two bounds, clipped at one.
    assert action["steer"].tolist() == [-2.0, 1.0]
    assert not action["steer"].flags.writeable
    assert not action["gear"][1].flags.writeable


def test_mixed_actions_and_their_distributions_can_be_inverted() -> None:
    output = ActionOutput(CAR)
    actions = output.unclipped(np.array([CAR_ROW], np.float32))
    np.testing.assert_allclose(output.inverse(actions), [CAR_ROW])
    assert output.inverse(actions).dtype == np.float32
    # 3 + 2 + 3 logits, then 3 means and 3 log_stds.
    inputs = np.arange(14, dtype=np.float32)[None]
    outer = output.outer_inputs(inputs)
    np.testing.assert_allclose(outer[0, 8:11], [8 * 0.5 + 0.5, 9 * 3 + 1, 10])
    np.testing.assert_allclose(outer[0, 11:], [11 + np.log(0.5), 12 + np.log(3), 13], rtol=1e-6)
    np.testing.assert_allclose(output.inverse_inputs(outer), inputs, rtol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"brake": 1.5}, {"brake": 2**60 + 3}, {"brake": 0}, {"steer": [0.0, np.nan]}, {"steer": [0.0]},
        {"gear": (0.5, [[1, 3]])}, {"gear": (0.5,)},
    ],
    ids=str,
)  # fmt: skip
def test_a_mixed_action_outside_its_space_cannot_be_inverted(wrong: dict[str, Any]) -> None:
    good: Any = ActionOutput(CAR)(np.array([CAR_ROW], np.float32))[0]
    with pytest.raises(OutsideSpaceError, match="action"):
        ActionOutput(CAR).inverse([good, {**good, **wrong}])


@pytest.mark.parametrize("part", [spaces.MultiBinary(2), spaces.Box(0, 3, (2,), np.int32)], ids=str)
def test_parts_of_other_kinds_are_refused_by_name(part: Any) -> None:
    with pytest.raises(ConfigError, match=type(part).__name__):
        flat_action_space(spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, ()), part]))
