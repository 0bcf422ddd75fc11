"""Whole numbers are integers however they are written: Godot and JavaScript write 1.0, some write 1e0."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from msgspec import Raw, msgpack

from menv.env_context import InputContext
from menv.serving import Limits
from menv.serving.episodes import WireEpisode, read_episode
from menv.serving.policy_server import _max_env_steps
from menv.serving.protocol import (
    BadMessageError,
    Episodes,
    ErrorCode,
    GetAction,
    WireFormat,
    decode,
    packed,
    to_raw,
)
from tests.serving.doors import HTTP, TCP, WEBSOCKET, Door
from tests.serving.served import obs_of, served
from tests.serving.spaces import action, column, observation
from tests.serving.voices import episode

S = gym.spaces
BOTH = pytest.mark.parametrize("dialect", WireFormat)
WIDE = S.Discrete(2**62, start=0)
MASKED = S.Dict({"action_mask": S.MultiBinary(3), "seen": S.Box(-9.0, 9.0, (2,), np.float32)})


def as_floats(value: Any) -> Any:
    """Return a message as Godot writes it: each number a float."""
    if isinstance(value, list):
        return [as_floats(one) for one in value]
    if isinstance(value, dict):
        return {key: as_floats(one) for key, one in value.items()}
    return float(value) if type(value) is int else value


@pytest.mark.parametrize("text", ["1.0", "1e0", "1.00e+0", "0.1E1", "10e-1", "1"])
def test_a_whole_number_is_an_integer_however_it_is_written(text: str) -> None:
    assert action(Raw(text.encode()), S.Discrete(3), WireFormat.JSON) == 1
    found = column(
        Raw(f"[[{text}, 2.0], [2.0,{text}]]".encode()), S.MultiDiscrete([3, 3]), WireFormat.JSON, "actions"
    )
    assert found.tolist() == [[1, 2], [2, 1]]  # type: ignore[union-attr]
    body = f'{{"type": "GET_ACTION", "episode_id": "1.0", "seq": {text}, "observation": {text}}}'
    request, _ = decode(body.encode())
    assert isinstance(request, GetAction)
    assert (request.episode_id, request.seq) == ("1.0", 1)


@pytest.mark.parametrize("text", ["1.5", "true", '"1"', "1e-1", "1e300", "null", "[1.0]", "NaN"])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(BadMessageError):
        action(Raw(text.encode()), S.Discrete(3), WireFormat.JSON)


@pytest.mark.parametrize("value", [1.5, True, "1", 1e300, float("nan"), float("inf")])
def test_nor_is_it_in_msgpack(value: Any) -> None:
    with pytest.raises(BadMessageError):
        action(Raw(msgpack.encode(value)), S.Discrete(3), WireFormat.MSGPACK)
    with pytest.raises(BadMessageError):
        action(Raw(msgpack.encode([1.0, value])), S.MultiDiscrete([3, 3]), WireFormat.MSGPACK)


def test_no_digit_is_lost_and_zero_may_have_a_sign() -> None:
    for number in (2**53 + 1, 2**62 - 1):
        assert action(Raw(f"{number}.0".encode()), WIDE, WireFormat.JSON) == number
    assert action(Raw(b"-0.0"), S.Discrete(3), WireFormat.JSON) == 0
    assert action(Raw(b"-1.0"), S.Discrete(3, start=-1), WireFormat.JSON) == -1
    with pytest.raises(BadMessageError) as caught:
        action(Raw(b"3.0"), S.Discrete(3), WireFormat.JSON)
    assert caught.value.code == ErrorCode.OUT_OF_RANGE


@BOTH
def test_masks_and_bytes_of_images_may_be_floats(dialect: WireFormat) -> None:
    seen = to_raw({"action_mask": [1.0, 0.0, 1.0], "seen": [1, -2.5]}, dialect)
    found = observation(seen, MASKED, dialect)
    assert found["action_mask"].tolist() == [1, 0, 1]
    assert found["seen"].tolist() == [1.0, -2.5]
    image = observation(to_raw([[0.0, 255.0]], dialect), S.Box(0, 255, (1, 2), np.uint8), dialect)
    assert image.dtype == np.uint8
    assert image.tolist() == [[0, 255]]


def test_packed_floats_are_integers_where_all_of_them_are_whole() -> None:
    space = S.MultiDiscrete([3, 300])
    for dtype in (np.float32, np.float64):
        raw = to_raw(packed(np.array([[1, 299], [0, 7]], dtype)), WireFormat.MSGPACK)
        assert column(raw, space, WireFormat.MSGPACK, "actions").tolist() == [[1, 299], [0, 7]]  # type: ignore[union-attr]
        for wrong in (1.5, np.nan, np.inf, 1e19, -1.0):
            other = to_raw(packed(np.array([[1, wrong]], dtype)), WireFormat.MSGPACK)
            with pytest.raises(BadMessageError):
                column(other, space, WireFormat.MSGPACK, "actions")


@BOTH
def test_every_field_and_column_of_an_episode_may_be_a_float(dialect: WireFormat) -> None:
    told = {
        "id": "e 1.0",
        "t": 3,
        "weights_seq_no": 2,
        "obs": [1, 2, 0],
        "actions": [1, 0],
        "rewards": [1, 2],
        "env_t": [3, 4, 5],
        "is_terminated": False,
        "is_truncated": False,
        "action_logp": [-1, 0],
    }
    found, expected = (
        read_episode(to_raw(one, dialect), lambda _: (S.Discrete(3), S.Discrete(2)), dialect)
        for one in (as_floats(told), told)
    )
    assert (found.id, found.t, found.weights_seq_no) == ("e 1.0", 3, 2)
    for name in ("obs", "actions", "rewards", "env_t", "logp"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype


def test_a_byte_order_mark_is_ignored() -> None:
    body = b"\xef\xbb\xbf" + json.dumps({"type": "EPISODES", "episodes": [], "env_steps": 0.0}).encode()
    request, dialect = decode(body)
    assert isinstance(request, Episodes)
    assert (request.env_steps, dialect) == (0, WireFormat.JSON)
    with pytest.raises(BadMessageError):
        decode(b"\xef\xbb\xbf\x80")


@pytest.mark.slow_unless("read here-*", "read beside-http")
@pytest.mark.parametrize("door", [TCP, HTTP, WEBSOCKET], ids=lambda door: door.name)
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
        raw = to_raw({**told, "actions": actions, "action_logp": logp}, WireFormat.JSON)
        return read_episode(raw, lambda _: (S.Discrete(3), space), WireFormat.JSON)

    for space, actions in ((S.Discrete(2), [1, 0]), (S.MultiDiscrete([2, 2]), [[1, 1], [0, 1]])):
        with pytest.raises(BadMessageError, match=r"action_logp\[1\]: got 0.5, expected at most 0"):
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
    assert _max_env_steps(pixels, {}, Limits()) == 19
    assert _max_env_steps(pixels, {}, Limits(max_body=1000)) == 1
    settings = {"limits": limits}
    with (
        served(observation_space=space, rollout_fragment_length=4_000, settings=settings) as one,
        one.voice() as voice,
    ):
        assert 1 < voice.greet()["env_steps_per_sample"] <= steps
