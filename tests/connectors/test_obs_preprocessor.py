"""Observations of every kind of space as flat rows and masks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError
from menv.spaces import OutsideSpaceError

spaces = gym.spaces


def rows(space: gym.Space[Any], *obs: Any) -> list[list[float]]:
    out, mask = ObsPreprocessor(space)(obs)
    assert mask is None
    assert out.dtype == np.float32
    assert out.shape[1] == ObsPreprocessor(space).size
    numbers: list[list[float]] = out.tolist()
    return numbers


def test_the_reference_example_of_nested_spaces() -> None:
    space = spaces.Dict(
        {
            "a": spaces.Box(0.0, 1.0, (1,), np.float32),
            "b": spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([2, 3])]),
        }
    )
    obs = {"a": np.array([0.5], np.float32), "b": (np.array(1), np.array([0, 2]))}
    assert rows(space, obs) == [[0.5, 0, 1, 1, 0, 0, 0, 1]]


def test_discrete_is_one_hot_from_its_start_on() -> None:
    assert rows(spaces.Discrete(3), 0, 2) == [[1, 0, 0], [0, 0, 1]]
    assert rows(spaces.Discrete(3, start=-1), -1, np.int64(1)) == [[1, 0, 0], [0, 0, 1]]


def test_multi_discrete_is_one_hot_digit_after_digit() -> None:
    assert rows(spaces.MultiDiscrete([2, 3]), np.array([1, 0])) == [[0, 1, 1, 0, 0]]
    assert rows(spaces.MultiDiscrete([2, 2], start=[1, 5]), np.array([1, 6])) == [[1, 0, 0, 1]]


def test_boxes_of_any_shape_and_dtype_are_flattened() -> None:
    matrix = np.arange(4, dtype=np.uint8).reshape(2, 2)
    assert rows(spaces.Box(0, 255, (2, 2), np.uint8), matrix) == [[0, 1, 2, 3]]
    assert rows(spaces.Box(-1.0, 1.0, (), np.float32), np.float32(0.5)) == [[0.5]]
    assert rows(spaces.Box(-9.0, 9.0, (2,), np.float64), np.array([0.5, 2])) == [[0.5, 2]]
    assert rows(spaces.MultiBinary(3), np.array([1, 0, 1], np.int8)) == [[1, 0, 1]]


@pytest.mark.parametrize("kind", [
    spaces.Box(0, 1, (3,), np.int8), spaces.MultiBinary(3), spaces.Box(0.0, 1.0, (3,), np.float32),
    spaces.MultiDiscrete([2] * 3),
])  # fmt: skip
def test_a_mask_comes_apart_from_the_rest(kind: gym.Space[Any]) -> None:
    space = spaces.Dict({"observations": spaces.Box(-1.0, 1.0, (2,), np.float32), "action_mask": kind})
    preprocess = ObsPreprocessor(space)
    obs = {"observations": np.array([0.5, 1], np.float32), "action_mask": np.array([0, 1, 1], kind.dtype)}
    out, mask = preprocess([obs, obs])
    assert (preprocess.size, preprocess.mask_width) == (2, 3)
    assert out.tolist() == [[0.5, 1]] * 2
    assert mask is not None
    assert mask.dtype == np.bool_
    assert mask.tolist() == [[False, True, True]] * 2


def test_a_final_observation_needs_no_legal_action() -> None:
    space = spaces.Dict({"observation": spaces.Discrete(2), "action_mask": spaces.MultiBinary(2)})
    obs = {"observation": 1, "action_mask": np.zeros(2, np.int8)}
    assert ObsPreprocessor(space)([obs], final=True)[0].tolist() == [[0, 1]]
    with pytest.raises(OutsideSpaceError, match="action_mask"):
        ObsPreprocessor(space)([obs])


def test_a_mask_must_leave_a_choice_for_each_component_of_an_action() -> None:
    mask = spaces.MultiBinary(5)
    space = spaces.Dict({"observation": spaces.Discrete(2), "action_mask": mask})
    pair = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])
    obs = {"observation": 1, "action_mask": np.array([1, 1, 0, 0, 0], np.int8)}
    for actions in (spaces.MultiDiscrete([2, 3]), pair):
        preprocess = ObsPreprocessor(space, actions)
        with pytest.raises(OutsideSpaceError, match="component 1"):
            preprocess([obs])
        assert preprocess([obs], final=True)[1] is not None
    group = ObsPreprocessor(spaces.Tuple([space, space]), spaces.Tuple([pair, pair]))
    with pytest.raises(OutsideSpaceError, match="action_mask"):
        group([({**obs, "action_mask": np.ones(5, np.int8)}, obs)])


def test_the_first_value_outside_a_box_is_found_in_a_block_of_rows() -> None:
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1.0, 1.0, (2,), np.float32)})
    preprocess = ObsPreprocessor(space)
    block = np.zeros((4, 4), np.float32)
    assert preprocess.why_bad_row(block) is None
    block[2, 3] = -7
    assert preprocess.why_bad_row(block) == (2, "obs['b']: -7.0 at index 1 is outside [-1.0, 1.0]")
    block[1, 2] = np.nan
    found = preprocess.why_bad_row(block)
    assert found is not None
    assert found[0] == 1


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)]
)
def test_a_space_that_cannot_be_flattened_is_named(space: gym.Space[Any]) -> None:
    with pytest.raises(ConfigError, match=type(space).__name__):
        ObsPreprocessor(spaces.Dict({"a": space}))


@pytest.mark.parametrize(
    ("low", "high", "good", "bad"),
    [
        ([0, -2], [10, 2], [[0.1, 0], [9.9, 1.9]], [[10.1, 0], [5, -2.1], [np.nan, 0], [5, np.nan]]),
        ([0, -np.inf], [10, np.inf], [[5, 1e30]], [[11, 0], [-1, 0], [5, np.nan]]),
        ([0, 1], [np.inf, 1], [], [[-1, 1], [5, 2], [5, 0]]),
    ],
)
def test_rows_within_the_bounds_are_good_and_others_are_bad(low: Any, high: Any, good: Any, bad: Any) -> None:
    box = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)
    preprocess = ObsPreprocessor(box)
    for row in good:
        assert preprocess.why_bad_row(np.array([row], np.float32)) is None
    for row in bad:
        rows = np.array([[1, 1], row], np.float32)
        assert preprocess.why_bad_row(rows) is not None


TWO_AND_THREE = spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)])
FLAT = spaces.Box(0, 1, (5,), np.int8)
PARTS = (np.array([0, 1], np.int8), np.array([1, 0, 1], np.int8))
OPEN = (None, np.array([1, 0, 1], np.int8))
NAMED_ACTIONS = spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))])


@pytest.mark.parametrize(
    ("declared", "actions", "given", "flags"),
    [
        (TWO_AND_THREE, spaces.MultiDiscrete([2, 3]), PARTS, [0, 1, 1, 0, 1]),
        (FLAT, spaces.MultiDiscrete([2, 3]), PARTS, [0, 1, 1, 0, 1]),
        (TWO_AND_THREE, spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), PARTS, [0, 1, 1, 0, 1]),
        (FLAT, spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), PARTS, [0, 1, 1, 0, 1]),
        (TWO_AND_THREE, spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), OPEN, [1, 1, 1, 0, 1]),
        (FLAT, spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), OPEN, [1, 1, 1, 0, 1]),
        (FLAT, NAMED_ACTIONS, {"a": PARTS[1], "b": PARTS[0]}, [0, 1, 1, 0, 1]),
        (
            spaces.Dict(a=spaces.MultiBinary(3), b=spaces.MultiBinary(2)),
            NAMED_ACTIONS, {"a": PARTS[1], "b": PARTS[0]}, [0, 1, 1, 0, 1],
        ),
        (FLAT, spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)]),
         (PARTS[0], None, PARTS[1]), [0, 1, 1, 0, 1]),
    ],
)  # fmt: skip
def test_masks_have_gymnasiums_own_form_too(
    declared: Any, actions: Any, given: Any, flags: list[int]
) -> None:
    space = spaces.Dict(observation=spaces.Box(-1.0, 1.0, (1,)), action_mask=declared)
    obs = {"observation": np.zeros(1, np.float32), "action_mask": given}
    out, mask = ObsPreprocessor(space, actions)([obs, obs])
    assert mask is not None
    assert out.shape == (2, 1)
    assert mask.tolist() == [[flag == 1 for flag in flags]] * 2


ACT = gym.spaces.Dict({
    "a": gym.spaces.Tuple([gym.spaces.Box(0.0, 1.0, (2,)), gym.spaces.Discrete(2)]),
    "b": gym.spaces.MultiDiscrete([2, 3]),
    "c": gym.spaces.Box(0.0, 1.0, ()),
})  # fmt: skip
TWO, THREE = np.array([0, 1], np.int8), np.array([1, 0, 1], np.int8)
SAME: list[Any] = [
    np.array([0, 1, 0, 1, 1, 0, 1], np.int8),
    {"a": (None, TWO), "b": (TWO, THREE), "c": None},
    # In another order, without the Box, and flat where a part has several components.
    {"b": np.array([0, 1, 1, 0, 1], np.int8), "a": (None, TWO)},
]


def masked(flags: gym.Space[Any]) -> gym.spaces.Dict:
    return gym.spaces.Dict({"action_mask": flags, "seen": gym.spaces.Box(0.0, 1.0, (1,))})


def showing(mask: Any) -> dict[str, Any]:
    return {"action_mask": mask, "seen": np.zeros(1, np.float32)}


def test_a_mask_of_mixed_actions_may_have_none_for_numbers() -> None:
    preprocess = ObsPreprocessor(masked(gym.spaces.MultiBinary(7)), ACT)
    partly = {"a": None, "b": (TWO, THREE), "c": None}
    _, mask = preprocess([showing(one) for one in (*SAME, None, partly)])
    assert mask is not None
    assert mask.astype(int).tolist() == [*[SAME[0].tolist()] * 3, [1] * 7, [1, 1, 0, 1, 1, 0, 1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": (None, TWO), "b": (TWO, THREE), "d": None},
        {"a": (None, TWO)},
        {"a": (None, THREE), "b": (TWO, THREE)},
        {"a": (None, TWO), "b": (TWO, np.zeros(3, np.int8))},
    ],
)
def test_a_mask_of_parts_that_does_not_fit_the_actions_is_refused(wrong: Any) -> None:
    preprocess = ObsPreprocessor(masked(gym.spaces.MultiBinary(7)), ACT)
    with pytest.raises(OutsideSpaceError, match="action_mask"):
        preprocess([showing(SAME[0]), showing(wrong)])


def test_a_mask_may_be_declared_in_parts() -> None:
    nothing, binary = gym.spaces.Box(0, 1, (0,), np.int8), gym.spaces.MultiBinary
    parts = gym.spaces.Dict({"a": gym.spaces.Tuple([nothing, binary(2)]), "b": binary(5), "c": nothing})
    preprocess = ObsPreprocessor(masked(parts), ACT)
    assert preprocess.mask_width == 7
    empty = np.zeros(0, np.int8)
    _, mask = preprocess([
        showing({"a": (empty, TWO), "b": SAME[0][2:], "c": empty}),
        showing({"a": (None, None), "b": None, "c": None}),
    ])  # fmt: skip
    assert mask is not None
    assert mask.astype(int).tolist() == [SAME[0].tolist(), [1] * 7]
