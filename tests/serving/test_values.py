"""Elements of spaces and columns of episodes survive the wire; what is no element is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serving import Limits
from menv.serving.episodes import WireEpisode, read_episode
from menv.serving.policy_server import _max_env_steps
from menv.serving.protocol import (
    BadMessageError,
    ErrorCode,
    GetAction,
    decode,
    to_raw,
)
from menv.serving.value_readers import reward
from menv.spaces import why_outside
from tests.serving.corpus import EPISODE, RICH, TOGETHER, one_agent, several_agents
from tests.serving.doors import HTTP, Door, every_door
from tests.serving.served import obs_of, served
from tests.serving.spaces import action, column, element, numbers, observation, same, spaces
from tests.serving.voices import episode

S = gym.spaces


@settings(max_examples=200, deadline=None)
@given(spaces, st.integers(0, 2**31), st.integers(0, 4))
def test_samples_of_any_space_survive_the_wire_bit_for_bit(space: Any, seed: int, rows: int) -> None:
    space.seed(seed)
    samples = [space.sample() for _ in range(rows)]
    for sample in samples:
        back = element(to_raw(sample), space, "here")
        assert same(back, sample)
        assert why_outside(space, back) is None
    found = column(to_raw(samples), space, "here")
    assert len(found) == rows
    assert all(map(same, found, samples))


@settings(max_examples=100, deadline=None)
@given(numbers, st.integers(0, 2**31), st.integers(0, 4))
def test_columns_that_are_packed_as_a_whole_are_the_same(space: Any, seed: int, rows: int) -> None:
    space.seed(seed)
    samples = np.array([space.sample() for _ in range(rows)], space.dtype).reshape(rows, *space.shape)
    assert same(column(to_raw(samples), space, "here"), samples)
    assert same(column(to_raw(samples.tolist()), space, "here"), samples)


FLAGS: Any = S.Box(0, 1, (3,), np.bool_)


def test_whole_numbers_are_taken_for_floats_and_zeros_and_ones_for_flags() -> None:
    for space, written, wanted in (
        (S.Box(-1, 1, (2,)), [1, -1], np.array([1, -1], np.float32)),
        (FLAGS, [1, True, 0], np.array([True, True, False])),
        (S.MultiBinary(3), [1, True, 0], np.array([1, 1, 0], np.int8)),
        (S.MultiBinary(2), np.array([True, False]), np.array([1, 0], np.int8)),
        (FLAGS, np.array([1, 0, 0], np.uint8), np.array([True, False, False])),
    ):
        assert same(element(to_raw(written), space, ""), wanted)


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
    (NESTED, {**INSIDE, "t": "abc"}, ErrorCode.OUT_OF_RANGE, "obs.t"),
    (NESTED, {**INSIDE, "t": "abab"}, ErrorCode.OUT_OF_RANGE, "obs.t"),
    (NESTED, {**INSIDE, "a b": [[0, 6], 0]}, ErrorCode.OUT_OF_RANGE, "obs.a b[0][1]"),
    (NESTED, {**INSIDE, "a b": [[0, 0], 5]}, ErrorCode.OUT_OF_RANGE, "obs.a b[1]"),
    (NESTED, {"t": "ab"}, ErrorCode.MALFORMED, "obs"),
    (NESTED, {**INSIDE, "zz": 1}, ErrorCode.WRONG_TYPE, "obs"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_what_is_no_element_is_told_with_its_place(case: int) -> None:
    space, value, code, place = WRONG[case]
    with pytest.raises(BadMessageError) as caught:
        element(to_raw(value), space, "obs")
    assert caught.value.code is code
    assert caught.value.text.startswith(f"{place}: ")


@pytest.mark.parametrize("shape", [(129,), (200, 3), (2, 300), (1, 150, 2)])
def test_wide_elements_are_counted_in_all_their_axes(shape: tuple[int, ...]) -> None:
    space = S.Box(-1, 1, shape, np.float32)
    sample = space.sample()
    assert same(element(to_raw(sample.tolist()), space, "obs"), sample)
    for axis in range(len(shape)):
        for wrong in (np.delete(sample, 0, axis), np.concatenate([sample, np.take(sample, [0], axis)], axis)):
            with pytest.raises(BadMessageError, match="wrong_length: obs"):
                element(to_raw(wrong.tolist()), space, "obs")
            with pytest.raises(BadMessageError, match="wrong_length: obs"):
                element(to_raw(wrong), space, "obs")


def test_the_row_of_a_column_is_told() -> None:
    rows: list[Any] = [[0.0, 0.0]] * 4
    rows[2] = [0.0, 6.0]
    with pytest.raises(BadMessageError, match=r"obs\[2\]\[1\]"):
        column(to_raw(rows), BOX, "obs")
    with pytest.raises(BadMessageError, match=r"obs\[2\]\[1\]"):
        column(to_raw([np.array(row, np.float32) for row in rows]), BOX, "obs")


@pytest.mark.parametrize(("space", "array", "code"), [
    (BOX, np.full((1, 2), -np.inf, np.float32), ErrorCode.OUT_OF_RANGE),
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
        column(to_raw(array), space, "obs")
    assert caught.value.code is code


def test_an_action_may_leave_the_bounds_of_its_box_but_stays_finite() -> None:
    space = S.Tuple([S.Box(-1, 1, (1,)), S.Discrete(2)])
    drawn = action(to_raw([[3.5], 1]), space)
    assert same(drawn, (np.array([3.5], np.float32), np.int64(1)))
    for wrong in ([[1e39], 1], [[3.5], 2]):
        with pytest.raises(BadMessageError, match="action"):
            action(to_raw(wrong), space)


def test_an_observation_whose_mask_allows_nothing_is_only_taken_as_a_last_one() -> None:
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
            observation(to_raw(obs), space, "GET_ACTION.observation")
        observation(to_raw(obs), space, "END_EPISODE.observation", final=True)
    observation(to_raw({"action_mask": [0, 1], "x": 1}), one)
    both, half = S.MultiDiscrete([1, 1]), to_raw({"action_mask": [0, 1], "x": 1})
    with pytest.raises(BadMessageError, match="mask"):
        observation(half, one, actions=both)
    observation(half, one, final=True, actions=both)


def test_a_reward_is_a_finite_number_or_one_for_each_agent() -> None:
    assert reward(to_raw(2)) == 2.0
    assert reward(to_raw({"a": 1, "b": -0.5})) == {"a": 1.0, "b": -0.5}
    for wrong in ("1", None, True, [1.0], {"a": None}):
        with pytest.raises(BadMessageError, match="wrong_type: reward"):
            reward(to_raw(wrong))
    for infinite in (b"1e39", b'{"a": -1e300}'):
        with pytest.raises(BadMessageError, match="out_of_range: reward"):
            reward(Raw(infinite))


def test_a_space_without_a_form_on_the_wire_is_a_matter_of_the_settings() -> None:
    spaces: list[Any] = [S.Sequence(S.Discrete(2)), S.Dict({1: S.Discrete(2)}), S.Dict({'"': S.Discrete(2)})]  # type: ignore[dict-item]
    for space in spaces:
        with pytest.raises(ConfigError):
            element(to_raw(0), space, "obs")


def as_floats(value: Any) -> Any:
    """Return a message as Godot writes it: each number a float."""
    if isinstance(value, list):
        return [as_floats(one) for one in value]
    if isinstance(value, dict):
        return {key: as_floats(one) for key, one in value.items()}
    return float(value) if type(value) is int else value


@pytest.mark.parametrize("text", ["1.0", "1e0", "1.00e+0", "0.1E1", "10e-1", "1"])
def test_a_whole_number_is_an_integer_however_it_is_written(text: str) -> None:
    assert action(Raw(text.encode()), S.Discrete(3)) == 1
    found = column(Raw(f"[[{text}, 2.0], [2.0,{text}]]".encode()), S.MultiDiscrete([3, 3]), "actions")
    assert found.tolist() == [[1, 2], [2, 1]]  # type: ignore[union-attr]
    body = f'{{"type": "GET_ACTION", "episode_id": "1.0", "seq": {text}, "observation": {text}}}'
    request = decode(body.encode())
    assert isinstance(request, GetAction)
    assert (request.episode_id, request.seq) == ("1.0", 1)


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
        raw = to_raw({**told, "actions": actions, "action_logp": logp})
        return read_episode(raw, lambda _: (S.Discrete(3), space))

    for space, actions in ((S.Discrete(2), [1, 0]), (S.MultiDiscrete([2, 2]), [[1, 1], [0, 1]])):
        with pytest.raises(BadMessageError, match="action_logp"):
            read([-0.5, 0.5], space, actions)
        # Rounding may bring a certain one a little above.
        assert read([0.0, 1e-6], space, actions).steps == 2
    # A density may be above 1.
    assert read([0.5, 3.0], S.Box(-1.0, 1.0, (1,)), [[0.0], [0.5]]).steps == 2


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


def read(fields: Any, spaces_of: Any = one_agent) -> WireEpisode:
    return read_episode(to_raw(fields), spaces_of)


def refused(fields: Any, spaces_of: Any = one_agent) -> BadMessageError:
    with pytest.raises(BadMessageError) as caught:
        read(fields, spaces_of)
    return caught.value


def test_an_episode_with_all_its_columns_is_read() -> None:
    found = read(RICH)
    assert (found.id, found.terminated, found.truncated, found.steps) == ("e-1", True, False, 2)
    piece = found.pieces[None]
    assert (piece.t, piece.weights_seq_no) == (7, 3)
    steps = piece.steps
    assert same(steps.obs, np.array(EPISODE["obs"], np.float32))
    assert same(steps.actions, np.array([0, 1]))
    assert same(steps.rewards, np.array([1.0, -2.0]))
    assert same(steps.logp, np.array([-0.5, -0.25], np.float32))
    assert same(steps.dist_inputs, np.array([[0.5, 1.5], [2, 3]], np.float32))
    assert same(steps.state_in, np.array([[0], [1]], np.float32))
    assert same(steps.env_t, np.array([0, 3, 4]))


def test_an_episode_without_a_step_is_legal() -> None:
    columns: dict[str, Any] = {
        name: [] for name in ("actions", "rewards", "action_logp", "action_dist_inputs", "state_in")
    }
    found = read({**EPISODE, "obs": EPISODE["obs"][:1], **columns})
    steps = found.pieces[None].steps
    assert (found.steps, len(steps.obs)) == (0, 1)
    assert steps.logp is not None
    assert steps.dist_inputs is not None
    assert (steps.logp.shape, steps.dist_inputs.shape) == ((0,), (0, 0))


@pytest.mark.parametrize(
    ("obs", "actions", "rewards"), [(2, 2, 2), (3, 1, 2), (3, 2, 1), (4, 2, 2), (0, 0, 0)]
)
def test_lengths_that_do_not_fit_are_all_told(obs: int, actions: int, rewards: int) -> None:
    error = refused({**EPISODE, "obs": [[0.0] * 4] * obs, "actions": [0] * actions, "rewards": [0] * rewards})
    assert error.code is ErrorCode.WRONG_LENGTH
    assert (
        f"{obs} obs, {actions} actions and {rewards} rewards, expected as many rewards as actions"
        in error.text
    )


@pytest.mark.parametrize("name", ["action_logp", "action_dist_inputs", "state_in"])
def test_every_further_column_has_a_row_for_each_action(name: str) -> None:
    for rows in ([], [[1.0]], [[1.0]] * 3, np.zeros((3, 1), np.float32), np.zeros((2, 1, 1), np.float32)):
        error = refused({**EPISODE, name: rows})
        assert error.code in (ErrorCode.WRONG_LENGTH, ErrorCode.WRONG_TYPE)
        assert name in error.text
    ragged = refused({**EPISODE, name: [[1.0], [1.0, 2.0]]})
    assert ragged.code in (ErrorCode.WRONG_LENGTH, ErrorCode.WRONG_TYPE)
    assert ragged.text.startswith(f"episode.{name}")
    large = [1e39, 0] if name == "action_logp" else [[1e39], [0]]
    assert refused({**EPISODE, name: large}).code is ErrorCode.OUT_OF_RANGE
    assert refused({**EPISODE, name: [[True], [0]]}).code is ErrorCode.WRONG_TYPE


def test_env_steps_of_observations_are_integers_that_do_not_fall() -> None:
    for good in ([0, 0, 2**31 - 1], np.array([1, 2, 2], np.uint8), np.array([1, 2, 5], np.int64)):
        assert same(read({**EPISODE, "env_t": good}).pieces[None].steps.env_t, np.array(good, np.int64))
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
        error = refused({**EPISODE, "env_t": wrong})
        assert error.code is code, wrong
        assert error.text.startswith("episode.env_t")


def test_episodes_of_several_agents_are_read_together() -> None:
    found = read(TOGETHER, several_agents)
    assert found.id == "e-2"
    assert (found.terminated, found.truncated) == (False, False)
    assert list(found.pieces) == ["plain", "masked"]
    assert found.pieces["plain"].steps.terminated
    assert found.steps == 4
    assert same(found.pieces["masked"].steps.obs[1]["action_mask"], np.array([0, 1], np.int8))


def test_an_agent_is_told_by_its_name_where_something_is_wrong() -> None:
    together: Any = TOGETHER["agents"]
    agents = {**together, "plain": {**EPISODE, "rewards": [1, None]}}
    error = refused({**TOGETHER, "agents": agents}, several_agents)
    assert error.text == "episode.agents['plain'].rewards[1]: expected `float`, got `null`"
    error = refused({**TOGETHER, "agents": {"nobody": EPISODE}}, several_agents)
    assert error.code is ErrorCode.UNKNOWN_ID


def with_masks(masks: list[list[int]], actions: list[int], **flags: bool) -> dict[str, Any]:
    obs = [{"action_mask": mask, "camera": [[[0, 1, 2]] * 2] * 2, "word": "a"} for mask in masks]
    return {
        "obs": obs, "actions": actions, "rewards": [0.0] * len(actions),
        "is_terminated": False, "is_truncated": False, **flags,
    }  # fmt: skip


def masked(agent_id: str | None) -> Any:
    return several_agents("masked") if agent_id is None else None


def test_only_the_last_observation_of_an_ended_episode_may_allow_nothing() -> None:
    masks, actions = [[1, 0], [0, 0]], [0]
    read(with_masks(masks, actions, is_terminated=True), masked)
    read(with_masks(masks, actions, is_truncated=True), masked)
    assert "obs[1]['action_mask']" in refused(with_masks(masks, actions), masked).text
    error = refused(with_masks([[0, 0], [1, 1]], [0], is_terminated=True), masked)
    assert "obs[0]['action_mask']: got a mask that allows nothing" in error.text


@settings(max_examples=100, deadline=None)
@given(spaces, spaces, st.integers(0, 2**31), st.integers(0, 4))
def test_episodes_of_any_spaces_survive_the_wire(
    observations: Any, actions: Any, seed: int, steps: int
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
    found = read(played, lambda agent_id: (observations, actions))
    read_steps = found.pieces[None].steps
    assert all(map(same, read_steps.obs, played["obs"]))
    assert all(map(same, read_steps.actions, played["actions"]))
    assert same(read_steps.rewards, played["rewards"])
    assert found.steps == steps
