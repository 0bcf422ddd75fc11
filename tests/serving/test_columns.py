"""Elements of spaces survive both dialects to the last bit, and what is no element is refused with its place."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from menv.errors import ConfigError
from menv.serving import value_readers
from menv.serving.protocol import BadMessageError, ErrorCode, WireFormat, to_raw
from menv.serving.value_readers import MaskCheck, reader_of, reward
from menv.spaces import why_outside
from tests.serving.spaces import action, column, element, numbers, observation, same, spaces

S = gym.spaces
J, M = WireFormat
dialects = st.sampled_from(WireFormat)


@settings(max_examples=400, deadline=None)
@given(spaces, dialects, st.integers(0, 2**31), st.integers(0, 4))
def test_samples_of_any_space_survive_both_dialects_to_the_last_bit(
    space: Any, dialect: WireFormat, seed: int, rows: int
) -> None:
    space.seed(seed)
    samples = [space.sample() for _ in range(rows)]
    for sample in samples:
        back = element(to_raw(sample, dialect), space, dialect, "here")
        assert same(back, sample)
        assert why_outside(space, back) is None
    found = column(to_raw(samples, dialect), space, dialect, "here")
    assert len(found) == rows
    assert all(map(same, found, samples))


@settings(max_examples=200, deadline=None)
@given(numbers, st.integers(0, 2**31), st.integers(0, 4))
def test_columns_that_are_packed_as_a_whole_are_the_same(space: Any, seed: int, rows: int) -> None:
    space.seed(seed)
    samples = np.array([space.sample() for _ in range(rows)], space.dtype).reshape(rows, *space.shape)
    assert same(column(to_raw(samples, M), space, M, "here"), samples)
    assert same(column(to_raw(samples.tolist(), M), space, M, "here"), samples)
    assert same(column(to_raw(samples.tolist(), J), space, J, "here"), samples)


def test_packed_numbers_are_not_copied_unless_their_type_changes() -> None:
    box = S.Box(-1, 1, (2,), np.float32)
    found = column(to_raw(np.zeros((3, 2), np.float32), M), box, M, "here")
    assert isinstance(found, np.ndarray)
    assert isinstance(found.base, np.ndarray | bytes)
    assert not found.flags.writeable
    wider = column(to_raw(np.full((3, 2), 0.1), M), box, M, "here")
    assert same(wider, np.full((3, 2), 0.1, np.float32))


@pytest.mark.parametrize("dialect", WireFormat)
def test_whole_numbers_are_taken_for_floats_and_zeros_and_ones_for_flags(dialect: WireFormat) -> None:
    assert same(
        element(to_raw([1, -1], dialect), S.Box(-1, 1, (2,)), dialect, ""), np.array([1, -1], np.float32)
    )
    flags = S.Box(0, 1, (3,), np.bool_)  # type: ignore[arg-type]
    assert same(element(to_raw([1, True, 0], dialect), flags, dialect, ""), np.array([True, True, False]))
    mask = element(to_raw([1, True, 0], dialect), S.MultiBinary(3), dialect, "")
    assert same(mask, np.array([1, 1, 0], np.int8))


def test_a_packed_mask_of_flags_is_taken_for_bytes_of_zeros_and_ones() -> None:
    assert same(
        element(to_raw(np.array([True, False]), M), S.MultiBinary(2), M, ""), np.array([1, 0], np.int8)
    )
    assert same(
        element(to_raw(np.array([1, 0], np.uint8), M), S.Box(0, 1, (2,), np.bool_), M, ""),
        np.array([True, False]),
    )


BOX = S.Box(np.array([-1.0, -np.inf], np.float32), np.array([1.0, 5.0], np.float32))
NESTED = S.Dict({"a b": S.Tuple([BOX, S.Discrete(3, start=-1)]), "t": S.Text(3, charset="ab")})
INSIDE: dict[str, Any] = {"a b": [[0.0, 0.0], 0], "t": "ab"}
WRONG: list[tuple[gym.Space[Any], Any, ErrorCode, str]] = [
    (BOX, [0.0, 5.5], ErrorCode.OUT_OF_RANGE, r"^obs\[1\]: got 5\.5, expected -inf to 5\.0$"),
    (BOX, [-1.5, 0.0], ErrorCode.OUT_OF_RANGE, r"^obs\[0\]: got -1\.5, expected -1\.0 to 1\.0$"),
    (
        BOX,
        [0.0, -1e39],
        ErrorCode.OUT_OF_RANGE,
        r"^obs\[1\]: got NaN or a number too large for its type, expected float >= -3\.4",
    ),
    (BOX, [0.0], ErrorCode.WRONG_LENGTH, r"^obs: got another length, expected array of length 2$"),
    (BOX, [[0.0], [0.0]], ErrorCode.WRONG_TYPE, r"^obs\[0\]: got array, expected float$"),
    (BOX, [0.0, "0"], ErrorCode.WRONG_TYPE, r"^obs\[1\]: got str, expected float$"),
    (BOX, [0.0, True], ErrorCode.WRONG_TYPE, r"^obs\[1\]: got bool, expected float$"),
    (S.Discrete(3, start=-1), 2, ErrorCode.OUT_OF_RANGE, r"^obs: got another number, expected int <= 1$"),
    (S.Discrete(3, start=-1), -2, ErrorCode.OUT_OF_RANGE, r"expected int >= -1$"),
    (S.Discrete(3), 1.5, ErrorCode.WRONG_TYPE, r"^obs: got float, expected int$"),
    (S.Discrete(3), True, ErrorCode.WRONG_TYPE, r"^obs: got bool, expected int$"),
    (S.Discrete(3), [1], ErrorCode.WRONG_TYPE, r"^obs: got array, expected int$"),
    (S.MultiDiscrete([2, 9]), [2, 0], ErrorCode.OUT_OF_RANGE, r"^obs\[0\]: got 2, expected 0 to 1$"),
    (S.MultiBinary(2), [2, 0], ErrorCode.OUT_OF_RANGE, r"^obs\[0\]: got another number, expected int <= 1$"),
    (S.Box(0, 255, (1,), np.uint8), [256], ErrorCode.OUT_OF_RANGE, r"expected int <= 255$"),
    (S.Box(0, 2**64 - 1, (1,), np.uint64), [2**64 - 1], ErrorCode.OUT_OF_RANGE, ""),
    (NESTED, {**INSIDE, "t": "abc"}, ErrorCode.OUT_OF_RANGE, r"^obs\['t'\]: got other characters"),
    (
        NESTED,
        {**INSIDE, "t": "abab"},
        ErrorCode.OUT_OF_RANGE,
        r"^obs\.t: got another length, expected str of length <= 3$",
    ),
    (
        NESTED,
        {**INSIDE, "a b": [[0, 6], 0]},
        ErrorCode.OUT_OF_RANGE,
        r"^obs\['a b'\]\[0\]\[1\]: got 6\.0, expected -inf",
    ),
    (NESTED, {**INSIDE, "a b": [[0, 0], 5]}, ErrorCode.OUT_OF_RANGE, r"^obs\.a b\[1\]: got another number"),
    (NESTED, {"t": "ab"}, ErrorCode.MALFORMED, r"^obs: field 'a b' is missing"),
    (NESTED, {**INSIDE, "zz": 1}, ErrorCode.WRONG_TYPE, r"^obs: unknown field 'zz'"),
]


@pytest.mark.parametrize("dialect", WireFormat)
@pytest.mark.parametrize("case", range(len(WRONG)))
def test_what_is_no_element_is_told_with_its_place_and_what_was_expected(
    case: int, dialect: WireFormat
) -> None:
    space, value, code, text = WRONG[case]
    if not text:
        # The greatest number of 64 bits is inside; beside it lies a number that no type holds.
        assert element(to_raw(value, dialect), space, dialect, "obs") == value
        return
    with pytest.raises(BadMessageError) as caught:
        element(to_raw(value, dialect), space, dialect, "obs")
    assert caught.value.code is code
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(caught.value.text)


@pytest.mark.parametrize("dialect", WireFormat)
@pytest.mark.parametrize("shape", [(129,), (200, 3), (2, 300), (1, 150, 2)])
def test_wide_elements_are_counted_in_all_their_axes(shape: tuple[int, ...], dialect: WireFormat) -> None:
    space = S.Box(-1, 1, shape, np.float32)
    sample = space.sample()
    assert same(element(to_raw(sample.tolist(), dialect), space, dialect, "obs"), sample)
    for axis in range(len(shape)):
        for wrong in (np.delete(sample, 0, axis), np.concatenate([sample, np.take(sample, [0], axis)], axis)):
            with pytest.raises(BadMessageError, match="wrong_length: obs"):
                element(to_raw(wrong.tolist(), dialect), space, dialect, "obs")
            with pytest.raises(BadMessageError, match="wrong_length: obs"):
                element(to_raw(wrong, dialect), space, dialect, "obs")


@pytest.mark.parametrize("dialect", WireFormat)
def test_the_row_of_a_column_is_told(dialect: WireFormat) -> None:
    rows: list[Any] = [[0.0, 0.0]] * 4
    rows[2] = [0.0, 6.0]
    with pytest.raises(BadMessageError, match=r"obs\[2\]\[1\]: got 6\.0, expected -inf to 5\.0"):
        column(to_raw(rows, dialect), BOX, dialect, "obs")
    with pytest.raises(BadMessageError, match=r"obs\[2\]\[1\]: got 6\.0, expected -inf to 5\.0"):
        column(to_raw([np.array(row, np.float32) for row in rows], dialect), BOX, dialect, "obs")


@pytest.mark.parametrize(("array", "code"), [
    (np.zeros((2, 3), np.float32), ErrorCode.WRONG_LENGTH),
    (np.zeros(2, np.float32), ErrorCode.WRONG_LENGTH),
    (np.full((1, 2), np.nan), ErrorCode.OUT_OF_RANGE),
    (np.full((1, 2), -np.inf, np.float32), ErrorCode.OUT_OF_RANGE),
    (np.full((1, 2), 2.0), ErrorCode.OUT_OF_RANGE),
    (np.zeros((1, 2), np.bool_), ErrorCode.WRONG_TYPE),
])  # fmt: skip
def test_packed_columns_of_floats_are_checked_like_lists(array: Any, code: ErrorCode) -> None:
    with pytest.raises(BadMessageError) as caught:
        column(to_raw(array, M), BOX, M, "obs")
    assert caught.value.code is code


@pytest.mark.parametrize(("space", "array", "code"), [
    (S.Discrete(2), np.array([0, 2]), ErrorCode.OUT_OF_RANGE),
    (S.Discrete(2), np.array([0.5]), ErrorCode.WRONG_TYPE),
    (S.Discrete(2), np.array([2**64 - 1], np.uint64), ErrorCode.OUT_OF_RANGE),
    (S.Box(0, 255, (1,), np.uint8), np.array([[256]]), ErrorCode.OUT_OF_RANGE),
    (S.Box(0, 255, (1,), np.uint8), np.array([[-1]], np.int8), ErrorCode.OUT_OF_RANGE),
    (S.MultiBinary(1), np.array([[2]], np.int8), ErrorCode.OUT_OF_RANGE),
    (S.Box(0, 1, (1,), np.bool_), np.array([[2]], np.uint8), ErrorCode.OUT_OF_RANGE),  # type: ignore[arg-type]
])  # fmt: skip
def test_packed_integers_never_wrap_around(space: Any, array: Any, code: ErrorCode) -> None:
    with pytest.raises(BadMessageError) as caught:
        column(to_raw(array, M), space, M, "obs")
    assert caught.value.code is code


@pytest.mark.parametrize("dialect", WireFormat)
def test_bounds_that_no_signed_number_of_64_bits_holds_are_kept(dialect: WireFormat) -> None:
    space = S.Box(0, 2**63 + 4096, (1,), np.uint64)
    assert element(to_raw([2**63 + 4096], dialect), space, dialect, "obs") == 2**63 + 4096
    for wrong in ([2**64 - 1], [-1]):
        with pytest.raises(BadMessageError, match="out_of_range"):
            element(to_raw(wrong, dialect), space, dialect, "obs")
    with pytest.raises(BadMessageError, match="out_of_range"):
        element(Raw(b"[1" + b"0" * 400 + b"]"), space, J, "obs")


def test_equal_spaces_share_a_reader_and_new_ones_do_not_pile_up() -> None:
    first, second = (reader_of(S.Dict({"a": S.Box(-1, 1, (3,))})) for _ in range(2))
    assert first is second
    assert reader_of(S.Dict({"a": S.Box(-1, 1, (3,))}), bounded=False) is not first
    for other in (S.Box(-1, 1, (3,)), S.Dict({"b": S.Box(-1, 1, (3,))}), S.Dict({"a": S.Box(-1, 2, (3,))})):
        assert reader_of(other) is not first
    for n in range(1, 1500):
        reader_of(S.Discrete(n))
    assert len(value_readers._by_form) <= 1024
    assert element(to_raw(7, J), S.Discrete(8), J, "obs") == 7


@pytest.mark.parametrize("dialect", WireFormat)
def test_an_action_may_leave_the_bounds_of_its_box_but_stays_finite(dialect: WireFormat) -> None:
    space = S.Tuple([S.Box(-1, 1, (1,)), S.Discrete(2)])
    drawn = action(to_raw([[3.5], 1], dialect), space, dialect)
    assert same(drawn, (np.array([3.5], np.float32), np.int64(1)))
    for wrong in ([[1e39], 1], [[3.5], 2]):
        with pytest.raises(BadMessageError, match="action"):
            action(to_raw(wrong, dialect), space, dialect)


@pytest.mark.parametrize("dialect", WireFormat)
def test_an_observation_whose_mask_allows_nothing_is_only_taken_as_a_last_one(dialect: WireFormat) -> None:
    one: Any = S.Dict({"action_mask": S.Box(0, 1, (2,), np.int8), "x": S.Discrete(2)})
    group: Any = S.Tuple([S.Discrete(2), one])
    nothing = {"action_mask": [0, 0], "x": 1}
    for space, obs, path in (
        (one, nothing, r"\['action_mask'\]"),
        (group, [0, nothing], r"\[1\]\['action_mask'\]"),
    ):
        with pytest.raises(
            BadMessageError, match=rf"^out_of_range: GET_ACTION\.observation{path}: got a mask that allows"
        ):
            observation(to_raw(obs, dialect), space, dialect, "GET_ACTION.observation")
        observation(to_raw(obs, dialect), space, dialect, "END_EPISODE.observation", final=True)
    observation(to_raw({"action_mask": [0, 1], "x": 1}, dialect), one, dialect)
    both, half = S.MultiDiscrete([1, 1]), to_raw({"action_mask": [0, 1], "x": 1}, dialect)
    with pytest.raises(BadMessageError, match="got a mask that allows nothing"):
        observation(half, one, dialect, actions=both)
    observation(half, one, dialect, final=True, actions=both)


@pytest.mark.parametrize("dialect", WireFormat)
def test_a_reward_is_a_number_or_one_for_each_agent(dialect: WireFormat) -> None:
    assert reward(to_raw(2, dialect), dialect) == 2.0
    assert reward(to_raw({"a": 1, "b": -0.5}, dialect), dialect) == {"a": 1.0, "b": -0.5}
    for wrong in ("1", None, True, [1.0], {"a": None}):
        with pytest.raises(BadMessageError, match="wrong_type: reward"):
            reward(to_raw(wrong, dialect), dialect)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_no_number_that_is_not_finite_comes_through_msgpack(wrong: float, dtype: Any) -> None:
    space = S.Box(-np.inf, np.inf, (2,), dtype)
    for value in ([0.0, wrong], np.array([0.0, wrong])):
        for read in (element, column):
            with pytest.raises(BadMessageError, match="out_of_range"):
                read(to_raw(value if read is element else [value], M), space, M, "obs")
    with pytest.raises(
        BadMessageError, match=rf"obs\[0\]\[1\]: got .*, expected a finite {np.dtype(dtype)}$"
    ):
        column(to_raw(np.array([[0.0, wrong]]), M), space, M, "obs")


def test_a_reward_that_is_not_finite_is_refused() -> None:
    for wrong in (float("nan"), {"a": float("inf")}):
        with pytest.raises(BadMessageError, match="out_of_range: reward"):
            reward(to_raw(wrong, M), M)


def test_a_space_without_a_form_on_the_wire_is_a_matter_of_the_settings() -> None:
    spaces: list[Any] = [S.Sequence(S.Discrete(2)), S.Dict({1: S.Discrete(2)}), S.Dict({'"': S.Discrete(2)})]  # type: ignore[dict-item]
    for space in spaces:
        with pytest.raises(ConfigError, match=r"has no form (on the wire|in JSON)"):
            element(to_raw(0, J), space, J, "obs")


def test_masks_of_members_of_inner_groups_are_checked() -> None:
    agent = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(2), "seen": gym.spaces.Discrete(2)})
    one, outer = gym.spaces.Discrete(2), gym.spaces.Tuple
    check, actions = MaskCheck(outer([outer([agent, agent]), agent])), outer([outer([one, one]), one])
    first, none = {"action_mask": np.array([1, 0]), "seen": 0}, {"action_mask": np.zeros(2), "seen": 0}
    check.check_actions([((first, first), first)], [((0, 0), 0)], actions, "actions")
    with pytest.raises(BadMessageError, match=r"actions\[0\]\[0\]\[1\]: got an action that the mask"):
        check.check_actions([((first, first), first)], [((0, 1), 0)], actions, "actions")
    with pytest.raises(BadMessageError, match=r"obs\[0\]\[0\]\[1\]\['action_mask'\]: got a mask that allows"):
        check.check([((first, none), first)], 1, actions, "obs")
