"""Elements of spaces and columns of episodes survive the wire; what is no element is refused with its place."""

from __future__ import annotations

import json
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from menv.errors import ConfigError
from menv.serving import Limits
from menv.serving.episodes import read_episode
from menv.serving.protocol import BadMessageError, to_raw
from menv.serving.value_readers import check_masks, reader_of
from menv.spaces import why_outside
from tests.serving.doors import HTTP, Door, every_door
from tests.serving.served import played, served
from tests.serving.spaces import NUMBERS, same, spaces
from tests.serving.voices import episode

S = gym.spaces


def column(space: Any, rows: int, seed: int, form: str) -> tuple[Any, Any]:
    """Return samples of a space, and how a client may write them."""
    space.seed(seed)
    samples = [space.sample() for _ in range(rows)]
    if form == "row by row" or not isinstance(space, NUMBERS):
        return samples, samples
    array = np.array(samples, space.dtype).reshape(rows, *(space.shape or ()))
    return samples, array if form == "packed" else array.tolist()


@example(gym.spaces.Box(-1.0, 1.0, (0, 0), np.float16), gym.spaces.Discrete(2), 0, 0, "row by row")
@settings(max_examples=100, deadline=None)
@given(
    spaces,
    spaces,
    st.integers(0, 2**31),
    st.integers(0, 4),
    st.sampled_from(["row by row", "packed", "lists"]),
)
def test_episodes_of_any_spaces_survive_the_wire_bit_for_bit(
    observations: Any, actions: Any, seed: int, steps: int, form: str
) -> None:
    obs, acts = column(observations, steps + 1, seed, form), column(actions, steps, seed, form)
    rewards = np.arange(steps, dtype=np.float64) / 7
    raw = to_raw(episode(obs[1], acts[1], rewards.tolist(), "truncated"))
    found = read_episode(raw, lambda agent_id: (observations, actions))
    read = found.pieces[None].steps
    assert found.steps == len(read.actions) == steps
    assert all(map(same, read.obs, obs[0]))
    assert all(map(same, read.actions, acts[0]))
    assert same(read.rewards, rewards)
    for sample in obs[0]:
        back = reader_of(observations).read(to_raw(sample), "here")
        assert same(back, sample)
        assert why_outside(observations, back) is None


BOX = S.Box(np.array([-1.0, -np.inf], np.float32), np.array([1.0, 5.0], np.float32))
CHOICE = S.Discrete(3, start=-1)
ROOM: dict[str, Any] = {
    "action_space": S.Tuple([S.Box(-1, 1, (1,)), S.Discrete(2)]),
    "observation_space": S.Dict({
        "a b": S.Tuple([BOX, CHOICE]), "box": BOX, "choice": CHOICE, "choices": S.MultiDiscrete([2, 9]),
        "flags": S.MultiBinary(2), "pixels": S.Box(0, 255, (1,), np.uint8), "truth": S.Box(0, 1, (3,), np.bool_),
        "wide": S.Box(-1, 1, (2, 65), np.float32),
    }),
}  # fmt: skip
HERE: dict[str, Any] = {
    "a b": [[0.0, 0.0], 0], "box": [1, -1], "choice": -1, "choices": [1, 8], "flags": [True, 0], "pixels": [255],
    "truth": [1, True, 0], "wide": [[0.5] * 65] * 2,
}  # fmt: skip
"""Whole numbers are taken for floats, and zeros and ones for flags."""
WRONG: list[tuple[str, Any, str, str]] = [
    ("box", [0.0, 5.5], "out_of_range", ".box[1]"),
    ("box", [-1.5, 0.0], "out_of_range", ".box[0]"),
    ("box", [0.0, -1e39], "out_of_range", ".box[1]"),
    ("box", [0.0], "wrong_length", ".box"),
    ("box", [[0.0], [0.0]], "wrong_type", ".box[0]"),
    ("box", [0.0, "0"], "wrong_type", ".box[1]"),
    ("box", [0.0, True], "wrong_type", ".box[1]"),
    ("box", np.full(2, -np.inf, np.float32), "out_of_range", "['box'][0]"),
    ("box", np.zeros(2, np.bool_), "wrong_type", "['box']"),
    ("choice", 2, "out_of_range", ".choice"),
    ("choice", -2, "out_of_range", ".choice"),
    ("choice", 1.5, "wrong_type", ".choice"),
    ("choice", True, "wrong_type", ".choice"),
    ("choice", [1], "wrong_type", ".choice"),
    ("choices", [2, 0], "out_of_range", ".choices[0]"),
    ("flags", [2, 0], "out_of_range", ".flags[0]"),
    ("flags", np.array([0, 2], np.int8), "out_of_range", "['flags'][1]"),
    ("pixels", [256], "out_of_range", ".pixels[0]"),
    ("pixels", np.array([256]), "out_of_range", "['pixels'][0]"),
    ("pixels", np.array([-1], np.int8), "out_of_range", "['pixels'][0]"),
    ("truth", np.array([0, 0, 2], np.uint8), "out_of_range", "['truth'][2]"),
    ("wide", [[0.5] * 65], "wrong_length", ".wide"),
    ("wide", [[0.5] * 64] * 2, "wrong_length", ".wide[0]"),
    ("wide", np.zeros((2, 66), np.float32), "wrong_length", "['wide']"),
    ("wide", np.zeros((3, 65), np.float32), "wrong_length", "['wide']"),
    ("wide", [[0.5] * 65, [2.0] * 65], "out_of_range", ".wide[1][0]"),
    ("a b", [[0, 6], 0], "out_of_range", ".a b[0][1]"),
    ("a b", [[0, 0], 5], "out_of_range", ".a b[1]"),
    ("zz", 1, "wrong_type", ""),
]


def test_what_is_no_element_is_told_with_its_place() -> None:
    with served(rollout_fragment_length=1, **ROOM) as one, one.voice() as voice:

        def told(kind: str, **fields: Any) -> tuple[str, str]:
            voice.send(bytes(to_raw({"type": kind, "episode_id": "e", **fields})))
            answer = voice.hear()
            return answer.get("code", answer["type"]), answer.get("message", "").partition(": ")[0]

        assert told("START_EPISODE") == ("EPISODE", "")
        for name, value, code, place in WRONG:
            obs = {**HERE, name: value}
            assert told("GET_ACTION", observation=obs) == (code, f"GET_ACTION.observation{place}")
            rows = episode([HERE, obs], [[[0.0], 1]], [1.0])
            row = f"[1]{place}" if place else "[1]"
            assert told("EPISODES", episodes=[rows]) == (code, f"EPISODES.episodes[0].obs{row}")
        assert told("GET_ACTION", observation={"box": [0.0, 0.0]})[0] == "malformed"
        # An action may leave the bounds of its box, but stays finite.
        for action, place in (([[1e39], 1], "[0][0]"), ([[3.5], 2], "[1]")):
            assert told("LOG_ACTION", observation=HERE, action=action) == (
                "out_of_range",
                f"LOG_ACTION.action{place}",
            )
        assert told("LOG_ACTION", observation=HERE, action=[[3.5], 1], wait=False) == ("OK", "")


def test_a_mask_that_allows_nothing_is_told_in_a_group_and_in_one_component_too() -> None:
    one: Any = S.Dict({"action_mask": S.Box(0, 1, (2,), np.int8), "x": S.Discrete(2)})
    nothing, half = ({"action_mask": np.array([0, last], np.int8), "x": 1} for last in (0, 1))
    for obs, space, actions, path in (
        (nothing, one, None, "['action_mask']"),
        ((0, nothing), S.Tuple([S.Discrete(2), one]), None, "[1]['action_mask']"),
        (half, one, S.MultiDiscrete([1, 1]), "['action_mask']"),
    ):
        with pytest.raises(BadMessageError, match=re.escape(f"out_of_range: obs{path}: ")):
            check_masks([obs], space, actions, "obs", is_column=False)
    check_masks([half], one, None, "obs")


def test_a_space_without_a_form_on_the_wire_is_a_matter_of_the_settings() -> None:
    spaces: list[Any] = [S.Sequence(S.Discrete(2)), S.Dict({1: S.Discrete(2)}), S.Dict({'"': S.Discrete(2)})]  # type: ignore[dict-item]
    for space in spaces:
        with pytest.raises(ConfigError):
            reader_of(space)


def as_floats(value: Any) -> Any:
    """Return a message as Godot writes it: each number a float."""
    if isinstance(value, list):
        return [as_floats(one) for one in value]
    if isinstance(value, dict):
        return {key: as_floats(one) for key, one in value.items()}
    return float(value) if type(value) is int else value


@every_door
def test_a_client_that_writes_floats_and_a_mark_is_learned_from(door: Door) -> None:
    steps = 40
    with served() as one, one.voice(door) as voice:

        def ask(**message: Any) -> Any:
            voice.send(b"\xef\xbb\xbf" + json.dumps(as_floats(message)).encode())
            return voice.hear()

        assert ask(type="GET_CONFIG", extensions=["menv-1"])["type"] == "SET_CONFIG"
        told = played(steps, id="a", t=0)
        voice.send(b"\xef\xbb\xbf" + json.dumps(as_floats({"type": "EPISODES", "episodes": [told]})).encode())
        if door is HTTP:
            assert voice.hear() == {"type": "OK"}
        assert ask(type="START_EPISODE", episode_id="b", seq=0) == {
            "type": "EPISODE",
            "episode_id": "b",
            "seq": 0,
        }
        found = one.sample(steps)["default_policy"]
        assert found["actions"].tolist() == [0] * steps
        assert one.refused == 0


def test_no_sample_is_asked_for_that_is_too_large() -> None:
    space, worst = S.Box(-np.inf, np.inf, (1000,), np.float64), -1.2345678901234567e-300

    def asked(most: int, space: Any) -> int:
        spaces = {"observation_space": space, "action_space": S.Discrete(4), "rollout_fragment_length": 4_000}
        with served(settings={"limits": Limits(max_body=most)}, **spaces) as one, one.voice() as voice:
            return int(voice.greet()["env_steps_per_sample"])

    steps = asked(1_000_000, space)
    rows, column = [[worst] * 1000] * (steps + 1), [worst] * steps
    inputs = [[worst] * 4] * steps
    told = episode(rows, [3] * steps, column, "terminated", action_logp=column, action_dist_inputs=inputs)
    size = len(json.dumps({"type": "EPISODES", "episodes": [as_floats(told)]}))
    assert 500_000 < size <= 1_000_000
    pixels = S.Box(0, 255, (84, 84, 4), np.uint8)
    assert [asked(1_000_000, pixels), asked(1_000, pixels)] == [4, 1]
