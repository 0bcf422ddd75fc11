"""Batches of space elements: stacked as they are, or refused with the reason."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.spaces import OutsideSpaceError, Stacker, alike, bounds, holds, stack, why_outside

BOX = gym.spaces.Box(-1.0, 1.0, (2, 2), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4,), np.uint8)
LEAVES: list[gym.Space[Any]] = [
    BOX,
    IMAGE,
    gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
    gym.spaces.Box(-1.0, 1.0, (), np.float32),
    gym.spaces.Discrete(5),
    gym.spaces.Discrete(5, start=-2),
    gym.spaces.MultiDiscrete([2, 3]),
    gym.spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    gym.spaces.MultiBinary(3),
    gym.spaces.MultiBinary([2, 2]),
]
NESTED: Any = gym.spaces.Dict({"a": gym.spaces.Tuple([BOX, LEAVES[4]]), "b": gym.spaces.Dict({"c": IMAGE})})


@pytest.mark.parametrize("space", LEAVES, ids=str)
def test_samples_are_stacked_unchanged(space: gym.Space[Any]) -> None:
    space.seed(0)
    values = [space.sample() for _ in range(6)]
    stacked = stack(values, space)
    assert stacked.shape == (6, *(space.shape or ()))
    np.testing.assert_array_equal(stacked, np.stack([np.asarray(value) for value in values]))


def test_lists_smaller_dtypes_and_non_contiguous_arrays_are_accepted_too() -> None:
    space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    rows: list[Any] = [
        [0.5, -0.5],
        np.array([0.5, -0.5], ">f4"),
        np.array([1, -1], np.int8),
        np.arange(4, dtype=np.float32)[::2] / 2,
        (0.0, 1.0),
    ]
    stacked = stack(rows, space)
    assert stacked.dtype == np.float32
    np.testing.assert_array_equal(stacked, [[0.5, -0.5]] * 2 + [[1, -1], [0, 1], [0, 1]])
    turned = np.asfortranarray(np.array([[0.1, 0.2], [0.3, 0.4]], np.float32))
    np.testing.assert_array_equal(stack([turned, turned], BOX), np.stack([turned, turned]))


def test_a_stack_of_frames_does_not_change_with_its_source_buffers() -> None:
    value = np.zeros((2, 2), np.float32)
    stacked = stack([value, value], BOX)
    value[:] = 1
    assert not stacked.any()


def test_an_array_of_rows_is_passed_on() -> None:
    rows = np.zeros((5, 2, 2), np.float32)
    assert stack(rows, BOX) is rows
    with pytest.raises(OutsideSpaceError, match=r"\(3,\)"):
        stack(np.zeros((5, 3), np.float32), BOX)


@pytest.mark.parametrize("row", [0, 2])
def test_the_first_bad_element_is_numbered(row: int) -> None:
    values: list[Any] = [np.zeros((2, 2), np.float32)] * 3
    values[row] = np.full((2, 2), 1e300)
    with pytest.raises(OutsideSpaceError, match="float64") as caught:
        stack(values, BOX, "obs['x']")
    assert caught.value.row == row
    assert caught.value.why.startswith("obs['x']: ")


OUTSIDE: list[tuple[gym.Space[Any], Any, str]] = [
    (BOX, np.full((2, 2), 2, np.float32), r"^obs: 2.0 .*\(0, 0\) .*\[-1.0, 1.0\]$"),
    (BOX, np.full((2, 2), 1.5), r"^obs: 1.5 .*\(0, 0\) .*\[-1.0, 1.0\]$"),
    (BOX, np.array([[0, 0], [np.nan, 0]], np.float32), r"nan .*\(1, 0\)"),
    (BOX, [[1.0], [1.0, 2.0]], r"ragged"),
    (IMAGE, np.full(4, 300, np.int64), r"^obs: .*uint8.*\(4,\).*int64"),
    (IMAGE, [0, 0.5, 1, 2], r"^obs: .*uint8.*\(4,\).*0.5"),
    (LEAVES[4], 5, r"^obs: .*0 to 4.* 5$"),
    (LEAVES[4], np.int64(-1), r" -1$"),
    (LEAVES[4], np.array([1]), r"int64.*\(1,\)"),
    (LEAVES[4], True, r"0 to 4"),
    (LEAVES[5], 3, r"-2 to 2.* 3$"),
    (LEAVES[6], np.array([1, 3]), r"3 at index 1 .*\[0, 2\]"),
    (LEAVES[8], np.array([0, 2, 0], np.int8), r"2 at index 1 .*\[0, 1\]"),
    (NESTED, {"a": (BOX.low, 9), "b": {"c": IMAGE.low}}, r"^obs\['a'\]\[1\]: .* 9$"),
    (NESTED, {"a": (BOX.low, 0), "b": {"c": None}}, r"^obs\['b'\]\['c'\]: "),
    (NESTED, {"a": (BOX.low, 0)}, r"^obs: .*\['b'\]"),
    (NESTED, [1], r"\['a', 'b'\].*list"),
    (gym.spaces.Text(3), "abcdef", r"Text.*str"),
]


@pytest.mark.parametrize("case", range(len(OUTSIDE)))
def test_a_value_outside_its_space_is_named_by_its_path_and_shortened(case: int) -> None:
    space, value, message = OUTSIDE[case]
    why = why_outside(space, value)
    assert why is not None
    assert len(why) < 200
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(why)


def test_bounds_of_every_array_space_are_inclusive() -> None:
    assert [array.tolist() for array in bounds(gym.spaces.MultiDiscrete([2, 3], start=[1, -1]))] == [
        [1, -1],
        [2, 1],
    ]
    assert [array.tolist() for array in bounds(gym.spaces.MultiBinary(2))] == [[0, 0], [1, 1]]


def test_spaces_are_alike_that_differ_in_bounds_alone() -> None:
    def nested(high: float, choices: int, dtype: Any = np.float32) -> gym.Space[Any]:
        box = gym.spaces.Box(-1.0, high, (2,), dtype)
        return gym.spaces.Dict({"a": gym.spaces.Tuple([box, gym.spaces.Discrete(choices)])})

    assert alike(nested(1.0, 3), nested(np.inf, 3))
    assert not alike(nested(1.0, 3), nested(1.0, 4))
    assert not alike(nested(1.0, 3), nested(1.0, 3, np.float64))
    assert not alike(nested(1.0, 3), gym.spaces.Dict({"b": nested(1.0, 3)["a"]}))  # type: ignore[index]
    assert not alike(
        gym.spaces.Tuple([gym.spaces.Discrete(2)]), gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2)
    )


CAST: list[tuple[gym.Space[Any], Any, Any]] = [
    (BOX, np.full((2, 2), 0.1), np.full((2, 2), 0.1, np.float32)),
    (BOX, np.ones((2, 2), np.int64), np.ones((2, 2), np.float32)),
    (IMAGE, np.full(4, 255, np.int64), np.full(4, 255, np.uint8)),
    (IMAGE, np.full(4, 7.0), np.full(4, 7, np.uint8)),
    (LEAVES[4], np.float64(3.0), np.int64(3)),
    (LEAVES[6], np.array([1.0, 2.0]), np.array([1, 2])),
    (LEAVES[8], np.array([0.0, 1.0, 1.0]), np.array([0, 1, 1], np.int8)),
]
"""Spaces, elements of another number type, and what they are cast to."""


@pytest.mark.parametrize("case", range(len(CAST)))
@pytest.mark.parametrize("together", [False, True], ids=["list", "array"])
def test_elements_of_another_number_type_are_cast_with_one_warning(case: int, together: bool) -> None:
    space, value, expected = CAST[case]
    stacker = Stacker(space)
    values: Any = np.stack([value] * 3) if together else [value] * 3
    with pytest.warns(UserWarning, match="they are cast, because no value is lost") as warned:
        stacked = stacker(values)
    # The second time without a warning, which would be an error here.
    again = stacker(values)
    assert len(warned) == 1
    assert stacked.dtype == again.dtype == expected.dtype
    np.testing.assert_array_equal(stacked, np.stack([expected] * 3))
    np.testing.assert_array_equal(again, stacked)


def test_flags_are_elements_of_a_box_of_flags_and_numbers_are_not() -> None:
    flags: Any = gym.spaces.Box(np.zeros(2, np.bool_), np.ones(2, np.bool_), dtype=np.bool_)
    assert why_outside(flags, np.array([True, False])) is None
    assert why_outside(flags, np.array([1, 0])) is not None


LOST: list[tuple[gym.Space[Any], Any]] = [
    (BOX, np.full((2, 2), 1e300)),
    (gym.spaces.Box(-np.inf, np.inf, (1,), np.float32), np.array([2**24 + 1])),
    (IMAGE, np.full(4, 256)),
    (IMAGE, np.full(4, -1)),
    (IMAGE, np.full(4, 0.5)),
    (IMAGE, np.full(4, np.nan)),
    (gym.spaces.Box(0, 2**63, (1,), np.uint64), np.array([-1])),
    (gym.spaces.Box(-(2**62), 2**62, (1,), np.int64), np.array([2**63 + 1], np.uint64)),
    (LEAVES[4], np.float64(2.5)),
    (LEAVES[4], np.nan),
]


@pytest.mark.parametrize("case", range(len(LOST)))
@pytest.mark.parametrize("together", [False, True], ids=["list", "array"])
def test_elements_that_would_lose_a_value_are_refused(case: int, together: bool) -> None:
    space, value = LOST[case]
    with pytest.raises(OutsideSpaceError, match="obs"):
        stack(np.stack([value] * 3) if together else [value] * 3, space)


HELD: list[tuple[gym.Space[Any], gym.Space[Any], bool]] = [
    (gym.spaces.Box(-2.0, 2.0, (2, 2)), BOX, True),
    (BOX, gym.spaces.Box(-2.0, 2.0, (2, 2)), False),
    (BOX, gym.spaces.Box(-1.0, 1.0, (2, 2), np.float64), True),
    (gym.spaces.Box(0.0, 255.0, (4,)), IMAGE, True),
    (gym.spaces.Box(0, 255, (2, 2), np.uint8), gym.spaces.Box(0.0, 1.0, (2, 2)), False),
    (gym.spaces.Discrete(6, start=-1), LEAVES[4], True),
    (LEAVES[4], gym.spaces.Discrete(6, start=-1), False),
    (gym.spaces.MultiDiscrete([3, 3]), LEAVES[6], True),
    (gym.spaces.MultiDiscrete([2, 2]), LEAVES[6], False),
    (gym.spaces.Tuple([BOX, gym.spaces.Discrete(6)]), gym.spaces.Tuple([BOX, LEAVES[4]]), True),
    (gym.spaces.Dict(a=BOX), gym.spaces.Dict(b=BOX), False),
    (gym.spaces.Text(3), gym.spaces.Text(3), True),
]


@pytest.mark.parametrize("case", range(len(HELD)))
def test_a_space_contains_another_one_if_it_contains_all_its_elements(case: int) -> None:
    wide, narrow, held = HELD[case]
    assert holds(wide, narrow) == held
