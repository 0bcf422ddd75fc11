"""Elements of spaces and columns of episodes survive both dialects; what is no element is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, msgpack

from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serving import Limits
from menv.serving.episodes import WireEpisode, read_episode
from menv.serving.policy_server import _max_env_steps
from menv.serving.protocol import (
    BadMessageError,
    ErrorCode,
    GetAction,
    WireFormat,
    decode,
    packed,
    to_raw,
)
from menv.serving.value_readers import MaskCheck, reader_of, reward
from menv.spaces import why_outside
from tests.serving.corpus import EPISODE, RICH, TOGETHER, one_agent, several_agents
from tests.serving.doors import HTTP, Door, every_door
from tests.serving.served import obs_of, served
from tests.serving.spaces import action, column, element, numbers, observation, same, spaces
from tests.serving.voices import episode

S = gym.spaces
J, M = WireFormat
dialects = st.sampled_from(WireFormat)
BOTH = pytest.mark.parametrize("dialect", WireFormat)


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=100, deadline=None)
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


FLAGS: Any = S.Box(0, 1, (3,), np.bool_)


@BOTH
def test_whole_numbers_are_taken_for_floats_and_zeros_and_ones_for_flags(dialect: WireFormat) -> None:
    for space, written, wanted in (
        (S.Box(-1, 1, (2,)), [1, -1], np.array([1, -1], np.float32)),
        (FLAGS, [1, True, 0], np.array([True, True, False])),
        (S.MultiBinary(3), [1, True, 0], np.array([1, 1, 0], np.int8)),
        (S.MultiBinary(2), np.array([True, False]), np.array([1, 0], np.int8)),
        (FLAGS, np.array([1, 0, 0], np.uint8), np.array([True, False, False])),
    ):
        if dialect is M or isinstance(written, list):
            assert same(element(to_raw(written, dialect), space, dialect, ""), wanted)


BOX = S.Box(np.array([-1.0, -np.inf], np.float32), np.array([1.0, 5.0], np.float32))
NESTED = S.Dict({"a b": S.Tuple([BOX, S.Discrete(3, start=-1)]), "t": S.Text(3, charset="ab")})
INSIDE: dict[str, Any] = {"a b": [[0.0, 0.0], 0], "t": "ab"}
WRONG: list[tuple[gym.Space[Any], Any, ErrorCode, str]] = [
    (BOX, [0.0, 5.5], ErrorCode.OUT_OF_RANGE, "obs[1]"),
    (BOX, [-1.5, 0.0], ErrorCode.OUT_OF_RANGE, "obs[0]"),
    (BOX, [0.0, -1e39], ErrorCode.OUT_OF_RANGE, "obs[1]"),
    (BOX, [0.0], ErrorCode.WRONG_LENGTH, "obs"),
    (BOX, [[0.0], [0.0]], ErrorCode.WRONG_TYPE, "obs[0]"),
    (BOX, [0.0, "0"], ErrorCode.WRONG_TYPE, "obs[1]"),
    (BOX, [0.0, True], ErrorCode.WRONG_TYPE, "obs[1]"),
    (S.Discrete(3, start=-1), 2, ErrorCode.OUT_OF_RANGE, "obs"),
    (S.Discrete(3, start=-1), -2, ErrorCode.OUT_OF_RANGE, "obs"),
    (S.Discrete(3), 1.5, ErrorCode.WRONG_TYPE, "obs"),
    (S.Discrete(3), True, ErrorCode.WRONG_TYPE, "obs"),
    (S.Discrete(3), [1], ErrorCode.WRONG_TYPE, "obs"),
    (S.MultiDiscrete([2, 9]), [2, 0], ErrorCode.OUT_OF_RANGE, "obs[0]"),
    (S.MultiBinary(2), [2, 0], ErrorCode.OUT_OF_RANGE, "obs[0]"),
    (S.Box(0, 255, (1,), np.uint8), [256], ErrorCode.OUT_OF_RANGE, "obs[0]"),
    (NESTED, {**INSIDE, "t": "abc"}, ErrorCode.OUT_OF_RANGE, "obs['t']"),
    (NESTED, {**INSIDE, "t": "abab"}, ErrorCode.OUT_OF_RANGE, "obs.t"),
    (NESTED, {**INSIDE, "a b": [[0, 6], 0]}, ErrorCode.OUT_OF_RANGE, "obs['a b'][0][1]"),
    (NESTED, {**INSIDE, "a b": [[0, 0], 5]}, ErrorCode.OUT_OF_RANGE, "obs.a b[1]"),
    (NESTED, {"t": "ab"}, ErrorCode.MALFORMED, "obs"),
    (NESTED, {**INSIDE, "zz": 1}, ErrorCode.WRONG_TYPE, "obs"),
]


@BOTH
@pytest.mark.parametrize("case", range(len(WRONG)))
def test_what_is_no_element_is_told_with_its_place(case: int, dialect: WireFormat) -> None:
    space, value, code, place = WRONG[case]
    with pytest.raises(BadMessageError) as caught:
        element(to_raw(value, dialect), space, dialect, "obs")
    assert caught.value.code is code
    assert caught.value.text.startswith(f"{place}: ")


@BOTH
def test_the_greatest_number_of_64_bits_is_taken(dialect: WireFormat) -> None:
    space = S.Box(0, 2**64 - 1, (1,), np.uint64)
    assert element(to_raw([2**64 - 1], dialect), space, dialect, "obs") == [2**64 - 1]


@BOTH
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


@BOTH
def test_the_row_of_a_column_is_told(dialect: WireFormat) -> None:
    rows: list[Any] = [[0.0, 0.0]] * 4
    rows[2] = [0.0, 6.0]
    with pytest.raises(BadMessageError, match=r"obs\[2\]\[1\]: got 6\.0, expected -inf to 5\.0"):
        column(to_raw(rows, dialect), BOX, dialect, "obs")
    with pytest.raises(BadMessageError, match=r"obs\[2\]\[1\]: got 6\.0, expected -inf to 5\.0"):
        column(to_raw([np.array(row, np.float32) for row in rows], dialect), BOX, dialect, "obs")


@pytest.mark.parametrize(("space", "array", "code"), [
    (BOX, np.zeros((2, 3), np.float32), ErrorCode.WRONG_LENGTH),
    (BOX, np.zeros(2, np.float32), ErrorCode.WRONG_LENGTH),
    (BOX, np.full((1, 2), np.nan), ErrorCode.OUT_OF_RANGE),
    (BOX, np.full((1, 2), -np.inf, np.float32), ErrorCode.OUT_OF_RANGE),
    (BOX, np.full((1, 2), 2.0), ErrorCode.OUT_OF_RANGE),
    (BOX, np.zeros((1, 2), np.bool_), ErrorCode.WRONG_TYPE),
    (S.Discrete(2), np.array([0, 2]), ErrorCode.OUT_OF_RANGE),
    (S.Discrete(2), np.array([0.5]), ErrorCode.WRONG_TYPE),
    (S.Discrete(2), np.array([2**64 - 1], np.uint64), ErrorCode.OUT_OF_RANGE),
    (S.Box(0, 255, (1,), np.uint8), np.array([[256]]), ErrorCode.OUT_OF_RANGE),
    (S.Box(0, 255, (1,), np.uint8), np.array([[-1]], np.int8), ErrorCode.OUT_OF_RANGE),
    (S.MultiBinary(1), np.array([[2]], np.int8), ErrorCode.OUT_OF_RANGE),
    (S.Box(0, 1, (1,), np.bool_), np.array([[2]], np.uint8), ErrorCode.OUT_OF_RANGE),  # type: ignore[arg-type]
])  # fmt: skip
def test_packed_columns_are_checked_like_lists_and_integers_never_wrap_around(
    space: Any, array: Any, code: ErrorCode
) -> None:
    with pytest.raises(BadMessageError) as caught:
        column(to_raw(array, M), space, M, "obs")
    assert caught.value.code is code


@BOTH
def test_bounds_that_no_signed_number_of_64_bits_holds_are_kept(dialect: WireFormat) -> None:
    space = S.Box(0, 2**63 + 4096, (1,), np.uint64)
    assert element(to_raw([2**63 + 4096], dialect), space, dialect, "obs") == 2**63 + 4096
    for wrong in ([2**64 - 1], [-1]):
        with pytest.raises(BadMessageError, match="out_of_range"):
            element(to_raw(wrong, dialect), space, dialect, "obs")
    with pytest.raises(BadMessageError, match="out_of_range"):
        element(Raw(b"[1" + b"0" * 400 + b"]"), space, J, "obs")


@BOTH
def test_an_action_may_leave_the_bounds_of_its_box_but_stays_finite(dialect: WireFormat) -> None:
    space = S.Tuple([S.Box(-1, 1, (1,)), S.Discrete(2)])
    drawn = action(to_raw([[3.5], 1], dialect), space, dialect)
    assert same(drawn, (np.array([3.5], np.float32), np.int64(1)))
    for wrong in ([[1e39], 1], [[3.5], 2]):
        with pytest.raises(BadMessageError, match="action"):
            action(to_raw(wrong, dialect), space, dialect)


@BOTH
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


@BOTH
def test_a_reward_is_a_finite_number_or_one_for_each_agent(dialect: WireFormat) -> None:
    assert reward(to_raw(2, dialect), dialect) == 2.0
    assert reward(to_raw({"a": 1, "b": -0.5}, dialect), dialect) == {"a": 1.0, "b": -0.5}
    for wrong in ("1", None, True, [1.0], {"a": None}):
        with pytest.raises(BadMessageError, match="wrong_type: reward"):
            reward(to_raw(wrong, dialect), dialect)
    for infinite in (float("nan"), {"a": float("inf")}):
        with pytest.raises(BadMessageError, match="out_of_range: reward"):
            reward(to_raw(infinite, M), M)


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
    with pytest.raises(BadMessageError, match="action_mask"):
        check.check([((first, none), first)], 1, actions, "obs")


WIDE = S.Discrete(2**62, start=0)
MASK_OF_3 = S.Dict({"action_mask": S.MultiBinary(3), "seen": S.Box(-9.0, 9.0, (2,), np.float32)})


def as_floats(value: Any) -> Any:
    """Return a message as Godot writes it: each number a float."""
    if isinstance(value, list):
        return [as_floats(one) for one in value]
    if isinstance(value, dict):
        return {key: as_floats(one) for key, one in value.items()}
    return float(value) if type(value) is int else value


@pytest.mark.parametrize("text", ["1.0", "1e0", "1.00e+0", "0.1E1", "10e-1", "1"])
def test_a_whole_number_is_an_integer_however_it_is_written(text: str) -> None:
    assert action(Raw(text.encode()), S.Discrete(3), J) == 1
    found = column(Raw(f"[[{text}, 2.0], [2.0,{text}]]".encode()), S.MultiDiscrete([3, 3]), J, "actions")
    assert found.tolist() == [[1, 2], [2, 1]]  # type: ignore[union-attr]
    body = f'{{"type": "GET_ACTION", "episode_id": "1.0", "seq": {text}, "observation": {text}}}'
    request, _ = decode(body.encode())
    assert isinstance(request, GetAction)
    assert (request.episode_id, request.seq) == ("1.0", 1)


def test_anything_else_is_none_in_either_dialect() -> None:
    for text in ("1.5", "true", '"1"', "1e-1", "1e300", "null", "[1.0]", "NaN"):
        with pytest.raises(BadMessageError):
            action(Raw(text.encode()), S.Discrete(3), J)
    for value in (1.5, True, "1", 1e300, float("nan"), float("inf")):
        with pytest.raises(BadMessageError):
            action(Raw(msgpack.encode(value)), S.Discrete(3), M)
        with pytest.raises(BadMessageError):
            action(Raw(msgpack.encode([1.0, value])), S.MultiDiscrete([3, 3]), M)


def test_no_digit_is_lost_and_zero_may_have_a_sign() -> None:
    for number in (2**53 + 1, 2**62 - 1):
        assert action(Raw(f"{number}.0".encode()), WIDE, J) == number
    assert action(Raw(b"-0.0"), S.Discrete(3), J) == 0
    assert action(Raw(b"-1.0"), S.Discrete(3, start=-1), J) == -1
    with pytest.raises(BadMessageError) as caught:
        action(Raw(b"3.0"), S.Discrete(3), J)
    assert caught.value.code == ErrorCode.OUT_OF_RANGE


@BOTH
def test_masks_and_bytes_of_images_may_be_floats(dialect: WireFormat) -> None:
    seen = to_raw({"action_mask": [1.0, 0.0, 1.0], "seen": [1, -2.5]}, dialect)
    found = observation(seen, MASK_OF_3, dialect)
    assert found["action_mask"].tolist() == [1, 0, 1]
    assert found["seen"].tolist() == [1.0, -2.5]
    image = observation(to_raw([[0.0, 255.0]], dialect), S.Box(0, 255, (1, 2), np.uint8), dialect)
    assert image.dtype == np.uint8
    assert image.tolist() == [[0, 255]]


def test_packed_floats_are_integers_where_all_of_them_are_whole() -> None:
    space = S.MultiDiscrete([3, 300])
    for dtype in (np.float32, np.float64):
        raw = to_raw(packed(np.array([[1, 299], [0, 7]], dtype)), M)
        assert column(raw, space, M, "actions").tolist() == [[1, 299], [0, 7]]  # type: ignore[union-attr]
        for wrong in (1.5, np.nan, np.inf, 1e19, -1.0):
            other = to_raw(packed(np.array([[1, wrong]], dtype)), M)
            with pytest.raises(BadMessageError):
                column(other, space, M, "actions")


@BOTH
def test_every_field_and_column_of_an_episode_may_be_a_float(dialect: WireFormat) -> None:
    told = {**RICH, "obs": [[0, 1, 2, 3]] * 3, "env_t": [3, 4, 5]}
    found, expected = (read(one, dialect) for one in (as_floats(told), told))
    assert (found.id, found.t, found.weights_seq_no) == ("e-1", 7, 3)
    for name in ("obs", "actions", "rewards", "env_t", "logp"):
        assert same(getattr(found, name), getattr(expected, name))


@pytest.mark.slow_unless("read here-*", "read beside-http")
@every_door
@pytest.mark.parametrize("steps", [40, 4_000], ids=["read here", "read beside"])
def test_a_client_that_writes_floats_and_a_mark_is_learned_from(door: Door, steps: int) -> None:
    with served() as one, one.voice(door) as voice:

        def ask(**message: Any) -> Any:
            voice.body(b"\xef\xbb\xbf" + json.dumps(as_floats(message)).encode())
            return voice.hear()

        assert ask(type="GET_CONFIG", extensions=["menv-1"])["type"] == "SET_CONFIG"
        rows = [obs_of(number) for number in range(steps + 1)]
        told = {**episode(rows, [1] * steps, [1.0] * steps, "terminated"), "id": "a", "t": 0}
        voice.body(b"\xef\xbb\xbf" + json.dumps(as_floats({"type": "EPISODES", "episodes": [told]})).encode())
        if door is HTTP:
            assert voice.hear() == {"type": "OK"}
        assert ask(type="START_EPISODE", episode_id="b", seq=0) == {
            "type": "EPISODE",
            "episode_id": "b",
            "seq": 0,
        }
        found = one.sample(steps)["default_policy"]
        assert found["actions"].tolist() == [1] * steps
        assert one.refused == 0


def test_a_choice_is_no_likelier_than_certain() -> None:
    told = episode([0, 0, 0], [1, 0], [1.0, 1.0], "terminated")

    def read(logp: list[float], space: Any, actions: Any) -> WireEpisode:
        raw = to_raw({**told, "actions": actions, "action_logp": logp}, J)
        return read_episode(raw, lambda _: (S.Discrete(3), space), J)

    for space, actions in ((S.Discrete(2), [1, 0]), (S.MultiDiscrete([2, 2]), [[1, 1], [0, 1]])):
        with pytest.raises(BadMessageError, match="action_logp"):
            read([-0.5, 0.5], space, actions)
        # Rounding may bring a certain one a little above.
        assert read([0.0, 1e-6], space, actions).steps == 2
    # A density may be above 1.
    assert read([0.5, 3.0], S.Box(-1.0, 1.0, (1,)), [[0.0], [0.5]]).steps == 2


@BOTH
def test_inputs_of_a_gaussian_may_have_the_shape_of_actions(dialect: WireFormat) -> None:
    flat = np.arange(12, dtype=np.float64).reshape(2, 6)
    means, logs = flat[:, :3], flat[:, 3:]
    three, column_of_three = S.Box(-1.0, 1.0, (3,)), S.Box(-1.0, 1.0, (3, 1))

    def read(inputs: Any, space: Any) -> Any:
        told = episode([0, 0, 0], np.zeros((2, *space.shape)).tolist(), [1.0, 1.0], "terminated")
        raw = to_raw({**told, "action_dist_inputs": inputs}, dialect)
        return read_episode(raw, lambda _: (S.Discrete(3), space), dialect).dist_inputs

    pairs = np.stack([means, logs], -1)
    assert pairs.shape == (2, 3, 2)
    for space, inputs in (
        (three, flat), (three, pairs), (column_of_three, pairs), (column_of_three, pairs[:, :, None]),
        (three, np.stack([means, logs], 1)),
    ):  # fmt: skip
        for written in (inputs, inputs.tolist()):
            assert np.array_equal(read(written, space), flat)
    for wrong in (
        flat.reshape(2, 1, 6),
        pairs[:, :2],
        pairs[:1],
        [[[0.0], [1.0, 2.0]]] * 2,
        [[0.0, [1.0]]] * 2,
    ):
        with pytest.raises(BadMessageError):
            read(wrong, three)


def test_no_sample_is_asked_for_that_is_too_large() -> None:
    space = S.Box(-np.inf, np.inf, (1000,), np.float64)
    limits = Limits(max_body=1_000_000)
    steps = _max_env_steps(InputContext(observation_space=space, action_space=S.Discrete(4)), {}, limits)
    worst = -1.2345678901234567e-300
    told = episode(
        [[worst] * 1000] * (steps + 1),
        [3] * steps,
        [worst] * steps,
        "terminated",
        action_logp=[worst] * steps,
    )
    size = len(json.dumps({"type": "EPISODES", "episodes": [as_floats(told)]}))
    assert limits.max_body / 2 < size <= limits.max_body
    pixels = InputContext(observation_space=S.Box(0, 255, (84, 84, 4), np.uint8), action_space=S.Discrete(4))
    assert _max_env_steps(pixels, {}, Limits()) == 4
    assert _max_env_steps(pixels, {}, Limits(max_body=1000)) == 1
    settings = {"limits": limits}
    with (
        served(observation_space=space, rollout_fragment_length=4_000, settings=settings) as one,
        one.voice() as voice,
    ):
        assert 1 < voice.greet()["env_steps_per_sample"] <= steps


def read(fields: Any, dialect: WireFormat, spaces_of: Any = one_agent) -> WireEpisode:
    return read_episode(to_raw(fields, dialect), spaces_of, dialect)


def refused(fields: Any, dialect: WireFormat, spaces_of: Any = one_agent) -> BadMessageError:
    with pytest.raises(BadMessageError) as caught:
        read(fields, dialect, spaces_of)
    return caught.value


@BOTH
def test_an_episode_with_all_its_columns_is_read(dialect: WireFormat) -> None:
    found = read(RICH, dialect)
    assert (found.id, found.t, found.weights_seq_no) == ("e-1", 7, 3)
    assert (found.terminated, found.truncated, found.steps, found.agents) == (True, False, 2, None)
    assert same(found.obs, np.array(EPISODE["obs"], np.float32))
    assert same(found.actions, np.array([0, 1]))
    assert same(found.rewards, np.array([1.0, -2.0]))
    assert same(found.logp, np.array([-0.5, -0.25], np.float32))
    assert same(found.dist_inputs, np.array([[0.5, 1.5], [2, 3]], np.float32))
    assert same(found.state_in, np.array([[0], [1]], np.float32))
    assert same(found.env_t, np.array([0, 3, 4]))


@BOTH
def test_an_episode_of_the_first_clients_has_no_more_than_five_fields(dialect: WireFormat) -> None:
    found = read(EPISODE, dialect)
    assert (found.id, found.t, found.weights_seq_no) == (None, 0, None)
    assert (found.logp, found.dist_inputs, found.state_in) == (None, None, None)
    nothing = dict.fromkeys(
        ("id", "t", "weights_seq_no", "action_logp", "action_dist_inputs", "state_in", "infos")
    )
    again = read({**EPISODE, **nothing}, dialect)
    assert (again.id, again.t, again.logp) == (None, 0, None)


@BOTH
def test_an_episode_without_a_step_is_legal(dialect: WireFormat) -> None:
    columns: dict[str, Any] = {
        name: [] for name in ("actions", "rewards", "action_logp", "action_dist_inputs", "state_in")
    }
    found = read({**EPISODE, "obs": EPISODE["obs"][:1], **columns}, dialect)
    assert (found.steps, len(found.obs)) == (0, 1)
    assert found.logp is not None
    assert found.dist_inputs is not None
    assert (found.logp.shape, found.dist_inputs.shape) == ((0,), (0, 0))


@BOTH
def test_log_probabilities_of_dimensions_are_added_up(dialect: WireFormat) -> None:
    for logp in ([[-0.5, -1], [0.25, -0.5]], np.array([[-0.5, -1], [0.25, -0.5]], np.float32)):
        assert same(read({**EPISODE, "action_logp": logp}, dialect).logp, np.array([-1.5, -0.25], np.float32))
    flat = np.array([-1.5, -0.25])
    assert same(read({**EPISODE, "action_logp": flat}, dialect).logp, np.array([-1.5, -0.25], np.float32))


@BOTH
@pytest.mark.parametrize(
    ("obs", "actions", "rewards"), [(2, 2, 2), (3, 1, 2), (3, 2, 1), (4, 2, 2), (0, 0, 0)]
)
def test_lengths_that_do_not_fit_are_all_told(
    dialect: WireFormat, obs: int, actions: int, rewards: int
) -> None:
    error = refused(
        {**EPISODE, "obs": [[0.0] * 4] * obs, "actions": [0] * actions, "rewards": [0] * rewards}, dialect
    )
    assert error.code is ErrorCode.WRONG_LENGTH
    assert (
        f"{obs} obs, {actions} actions and {rewards} rewards, expected as many rewards as actions"
        in error.text
    )


@BOTH
@pytest.mark.parametrize("name", ["action_logp", "action_dist_inputs", "state_in"])
def test_every_further_column_has_a_row_for_each_action(dialect: WireFormat, name: str) -> None:
    for rows in ([], [[1.0]], [[1.0]] * 3, np.zeros((3, 1), np.float32), np.zeros((2, 1, 1), np.float32)):
        error = refused({**EPISODE, name: rows}, dialect)
        assert error.code in (ErrorCode.WRONG_LENGTH, ErrorCode.WRONG_TYPE)
        assert name in error.text
    ragged = refused({**EPISODE, name: [[1.0], [1.0, 2.0]]}, dialect)
    assert ragged.text == f"episode.{name}: got rows of several lengths, expected one length"
    assert refused({**EPISODE, name: [[1e39], [0]]}, dialect).code is ErrorCode.OUT_OF_RANGE
    assert refused({**EPISODE, name: [[True], [0]]}, dialect).code is ErrorCode.WRONG_TYPE


@BOTH
def test_env_steps_of_observations_are_integers_that_do_not_fall(dialect: WireFormat) -> None:
    for good in ([0, 0, 2**31 - 1], np.array([1, 2, 2], np.uint8), np.array([1, 2, 5], np.int64)):
        assert same(read({**EPISODE, "env_t": good}, dialect).env_t, np.array(good, np.int64))
    for wrong, code in (
        ([0, 1], ErrorCode.WRONG_LENGTH),
        (np.zeros((3, 1), np.int64), ErrorCode.WRONG_LENGTH),
        ([0, 2, 1], ErrorCode.OUT_OF_RANGE),
        ([-1, 0, 1], ErrorCode.OUT_OF_RANGE),
        ([0, 1, 2**31], ErrorCode.OUT_OF_RANGE),
        ([0.5, 1, 2], ErrorCode.WRONG_TYPE),
        (np.array([0, 1, 2**63], np.uint64), ErrorCode.OUT_OF_RANGE),
        (np.array([0.5, 1, 2]), ErrorCode.WRONG_TYPE),
    ):
        error = refused({**EPISODE, "env_t": wrong}, dialect)
        assert error.code is code or (dialect is not M and isinstance(wrong, np.ndarray)), wrong
        assert error.text.startswith("episode.env_t")


@BOTH
def test_episodes_of_several_agents_are_read_together(dialect: WireFormat) -> None:
    found = read(TOGETHER, dialect, several_agents)
    assert found.id == "e-2"
    assert (found.terminated, found.truncated) == (False, False)
    assert found.agents is not None
    assert list(found.agents) == ["plain", "masked"]
    assert found.agents["plain"].terminated
    assert found.steps == 4
    assert len(found.rewards) == len(found.obs) == len(found.actions) == 0
    assert same(found.agents["masked"].obs[1]["action_mask"], np.array([0, 1], np.int8))


@BOTH
def test_an_agent_is_told_by_its_name_where_something_is_wrong(dialect: WireFormat) -> None:
    together: Any = TOGETHER["agents"]
    agents = {**together, "plain": {**EPISODE, "rewards": [1, None]}}
    error = refused({**TOGETHER, "agents": agents}, dialect, several_agents)
    assert error.text == "episode.agents['plain'].rewards[1]: got null, expected float"
    error = refused({**TOGETHER, "agents": {"nobody": EPISODE}}, dialect, several_agents)
    assert error.code is ErrorCode.UNKNOWN_ID


@BOTH
def test_one_agent_and_several_are_not_mixed_up(dialect: WireFormat) -> None:
    assert refused(EPISODE, dialect, several_agents).code is ErrorCode.MALFORMED
    assert refused(TOGETHER, dialect).code is ErrorCode.MALFORMED


@pytest.mark.parametrize("ids", ['"a": %b, "a": %b', '"a": %b, "\\u0061": %b'])
def test_an_agent_that_is_there_twice_is_refused(ids: str) -> None:
    member = bytes(to_raw(EPISODE, J))
    body = b'{"is_terminated": true, "is_truncated": false, "agents": {%b}}' % (
        ids.replace("a", "plain", 1).replace('"a"', '"plain"').replace("\\u0061", "\\u0070lain").encode()
        % (member, member)
    )
    with pytest.raises(BadMessageError, match="malformed"):
        read_episode(body, several_agents, J)


def with_masks(masks: list[list[int]], actions: list[int], **flags: bool) -> dict[str, Any]:
    obs = [{"action_mask": mask, "camera": [[[0, 1, 2]] * 2] * 2, "word": "a"} for mask in masks]
    return {
        "obs": obs, "actions": actions, "rewards": [0.0] * len(actions),
        "is_terminated": False, "is_truncated": False, **flags,
    }  # fmt: skip


def masked(agent_id: str | None) -> Any:
    return several_agents("masked") if agent_id is None else None


@BOTH
def test_a_mask_has_to_allow_what_was_done(dialect: WireFormat) -> None:
    read(with_masks([[1, 0], [0, 1], [1, 1]], [0, 1]), dialect, masked)
    error = refused(with_masks([[1, 0], [0, 1], [1, 1]], [0, 0]), dialect, masked)
    assert error.code is ErrorCode.OUT_OF_RANGE
    assert error.text.startswith("episode.actions[1]: got an action that the mask of its observation forbids")


@BOTH
def test_only_the_last_observation_of_an_ended_episode_may_allow_nothing(dialect: WireFormat) -> None:
    masks, actions = [[1, 0], [0, 0]], [0]
    read(with_masks(masks, actions, is_terminated=True), dialect, masked)
    read(with_masks(masks, actions, is_truncated=True), dialect, masked)
    assert "obs[1]['action_mask']" in refused(with_masks(masks, actions), dialect, masked).text
    error = refused(with_masks([[0, 0], [1, 1]], [0], is_terminated=True), dialect, masked)
    assert "obs[0]['action_mask']: got a mask that allows nothing" in error.text


@BOTH
def test_masks_of_a_group_and_of_several_choices_are_followed(dialect: WireFormat) -> None:
    member = S.Dict({"action_mask": S.MultiBinary(2)})
    group = (S.Tuple([member, member]), S.Tuple([S.Discrete(2), S.Discrete(2, start=1)]))
    fields = {
        "obs": [[{"action_mask": [1, 0]}, {"action_mask": [0, 1]}]] * 2, "actions": [[0, 2]], "rewards": [0],
        "is_terminated": True, "is_truncated": False,
    }  # fmt: skip
    read(fields, dialect, lambda agent_id: group)
    assert (
        "episode.actions[0][1]"
        in refused({**fields, "actions": [[0, 1]]}, dialect, lambda agent_id: group).text
    )

    several = (S.Dict({"action_mask": S.MultiBinary(5)}), S.MultiDiscrete([2, 3]))
    fields = {**fields, "obs": [{"action_mask": [1, 1, 0, 0, 1]}] * 2}
    read({**fields, "actions": [[1, 2]]}, dialect, lambda agent_id: several)
    assert (
        refused({**fields, "actions": [[1, 1]]}, dialect, lambda agent_id: several).code
        is ErrorCode.OUT_OF_RANGE
    )


@BOTH
def test_masks_that_fit_no_action_are_left_to_the_policy(dialect: WireFormat) -> None:
    """An environment may call something else a mask; nothing breaks over it here."""
    member = S.Dict({"action_mask": S.MultiBinary(2)})
    one, group = {"action_mask": [1, 0]}, [{"action_mask": [1, 0]}] * 2
    for observations, obs, actions, taken in (
        (member, one, S.Discrete(3), 1),
        (member, one, S.Box(-1, 1, (2,)), [0.0, 0.0]),
        (member, one, S.MultiDiscrete([2, 2]), [1, 1]),
        (S.Tuple([member, member]), group, S.Discrete(2), 1),
        (S.Tuple([member, member]), group, S.Tuple([S.Discrete(2)]), [0]),
    ):
        fields = {
            "obs": [obs] * 2,
            "actions": [taken],
            "rewards": [0],
            "is_terminated": True,
            "is_truncated": False,
        }
        spaces: Any = (observations, actions)
        assert read(fields, dialect, lambda agent_id, spaces=spaces: spaces).steps == 1


def test_a_thousand_agents_with_a_space_object_each_are_read_with_the_readers_of_one() -> None:
    agents = [f"agent_{i}" for i in range(1000)]
    own = {agent: (S.Box(-10, 10, (4,), np.float32), S.Discrete(2)) for agent in agents}
    fields = {"is_terminated": True, "is_truncated": False, "agents": dict.fromkeys(agents, EPISODE)}
    found = read(fields, M, lambda agent_id: own.get(agent_id or ""))
    assert found.steps == 2000
    assert len({id(reader_of(observations)) for observations, _ in own.values()}) == 1


@settings(max_examples=100, deadline=None)
@given(spaces, spaces, st.sampled_from(WireFormat), st.integers(0, 2**31), st.integers(0, 4))
def test_episodes_of_any_spaces_survive_both_dialects(
    observations: Any, actions: Any, dialect: WireFormat, seed: int, steps: int
) -> None:
    for space in (observations, actions):
        space.seed(seed)
    played: dict[str, Any] = {
        "obs": [observations.sample() for _ in range(steps + 1)],
        "actions": [actions.sample() for _ in range(steps)],
        "rewards": np.arange(steps, dtype=np.float64) / 7,
        "is_terminated": False,
        "is_truncated": True,
    }
    found = read(played, dialect, lambda agent_id: (observations, actions))
    assert all(map(same, found.obs, played["obs"]))
    assert all(map(same, found.actions, played["actions"]))
    assert same(found.rewards, played["rewards"])
    assert found.steps == steps
