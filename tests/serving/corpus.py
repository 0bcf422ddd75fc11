"""Bodies that are well made, bodies that are not, and what a server does with either before a session sees it."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np

S = gym.spaces
OBS: Any = S.Box(-10.0, 10.0, (4,), np.float32)
ACTIONS: Any = S.Discrete(2)
MASKED: Any = S.Dict(
    {"action_mask": S.MultiBinary(2), "camera": S.Box(0, 255, (2, 2, 3), np.uint8), "spot": S.Discrete(4)}
)
"""Observations of the agent "masked" of the environment with several agents; others see `OBS`."""


EPISODE: dict[str, Any] = {
    "obs": [[0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4], [-1.0, -0.0, 1e-30, 9]],
    "actions": [0, 1],
    "rewards": [1.0, -2],
    "is_terminated": True,
    "is_truncated": False,
}
RICH = {
    **EPISODE, "id": "e-1", "t": 0, "weights_seq_no": 3, "action_logp": [-0.5, -0.25],
    "action_dist_inputs": [[0.5, 1.5], [2, 3]], "state_in": [[0.0], [1.0]], "env_t": [0, 3, 4],
    "agent_id": "a", "module_id": "m",
}  # fmt: skip
SEEN = {"action_mask": [1, 0], "camera": [[[0, 1, 2]] * 2] * 2, "spot": 3}
MASKS = {
    "obs": [SEEN, {**SEEN, "action_mask": [0, 0]}], "actions": [0], "rewards": [0.0], "is_terminated": True,
    "is_truncated": False,
}  # fmt: skip
"""An episode whose last observation allows no action."""
TOGETHER = {
    "id": "e-2", "is_terminated": False, "is_truncated": False,
    "agents": {
        "plain": EPISODE,
        "masked": {**EPISODE, "obs": [SEEN, {**SEEN, "action_mask": [0, 1]}, SEEN], "is_terminated": False},
    },
}  # fmt: skip

WELL_MADE: list[dict[str, Any]] = [
    {"type": "PING"},
    {"type": "GET_CONFIG"},
    {"type": "GET_CONFIG", "token": "t" * 40, "extensions": ["menv-1"], "session": "s", "client": "a game"},
    {"type": "GET_STATE"},
    {"type": "GET_STATE", "policy_ids": ["p"], "form": "weights", "have": 12},
    {"type": "EPISODES", "episodes": [EPISODE, RICH], "env_steps": 4},
    {"type": "EPISODES", "episodes": [TOGETHER]},
    {"type": "EPISODES", "episodes": [{**TOGETHER, "agents": {"masked": MASKS}}]},
    {
        "type": "EPISODES_AND_GET_STATE",
        "episodes": [EPISODE] * 3,
        "env_steps": 6,
        "timesteps": 6,
        "weights_seq_no": 1,
    },
    {"type": "GET_POLICIES", "episode_id": "e", "agent_ids": ["a", "b"]},
    {"type": "START_EPISODE", "episode_id": "e", "training_enabled": False, "seq": 1},
    {"type": "GET_ACTION", "episode_id": "e", "observation": [0.5, 0, 0, 1], "seq": 2},
    {"type": "LOG_ACTION", "episode_id": "e", "observation": [0.5, 0, 0, 1], "action": 1, "seq": 3},
    {"type": "LOG_RETURNS", "episode_id": "e", "reward": 1.5, "info": {"a": [1, {"b": None}]}, "seq": 4},
    {"type": "LOG_RETURNS", "episode_id": "e", "reward": {"a": 1, "b": -2.5}, "done": {"a": True}},
    {"type": "END_EPISODE", "episode_id": "e", "observation": [0, 0, 0, 0], "truncated": True, "seq": 5},
]
"""One of each kind at least, as values."""


def bodies() -> list[bytes]:
    """Return every well-made message with spaces and without, arrays packed too."""
    found = []
    for message in WELL_MADE:
        found += [json.dumps(message).encode(), msgspec.json.encode(message)]
    columns = {
        "obs": np.zeros((3, 4), np.float32), "actions": np.array([0, 1]), "rewards": np.ones(2),
        "action_logp": np.zeros(2), "action_dist_inputs": np.zeros((2, 2), np.float32),
    }  # fmt: skip
    packed = {
        name: {"dtype": array.dtype.str, "shape": array.shape, "data": array.tobytes()}
        for name, array in columns.items()
    }
    return [*found, msgspec.json.encode({"type": "EPISODES", "episodes": [{**EPISODE, **packed}]})]


def get_action(observation: str) -> bytes:
    """Return a GET_ACTION with any text as its observation."""
    return b'{"type": "GET_ACTION", "episode_id": "e", "observation": %b}' % observation.encode(
        "utf-8", "surrogatepass"
    )


def episode(**changes: Any) -> bytes:
    """Return an EPISODES in JSON with one episode, some of its fields changed, or left out with `...`."""
    fields = {name: value for name, value in {**EPISODE, **changes}.items() if value is not ...}
    return json.dumps({"type": "EPISODES", "episodes": [fields]}).encode()


def encoded(**changes: Any) -> bytes:
    """Return the same, with bytes in base64."""
    return msgspec.json.encode({"type": "EPISODES", "episodes": [{**EPISODE, **changes}]})


def together(**agents: Any) -> bytes:
    """Return an EPISODES with one episode of such agents."""
    return json.dumps({"type": "EPISODES", "episodes": [{**TOGETHER, "agents": agents}]}).encode()


def a_pack(dtype: str = "<f4", shape: Any = (3, 4), data: Any = bytes(48)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": data}


MALFORMED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "malformed"),
    "a list": (b"[]", "wrong_type"),
    "a text": (b'"PING"', "wrong_type"),
    "a pickle": (b"\x80\x04\x95\x0b\x00", "malformed"),
    "half a byte order mark": (b'\xef\xbb{"type": "PING"}', "malformed"),
    "half an object": (b'{"type": "PI', "malformed"),
    "two objects": (b'{"type": "PING"}{"type": "PING"}', "malformed"),
    "no type": (b'{"typ": "PING"}', "malformed"),
    "a number for the type": (b'{"type": 1}', "wrong_type"),
    "null for the type": (b'{"type": null}', "malformed"),
    "an unknown type": (b'{"type": "PINGPONG"}', "unknown_type"),
    "a type a megabyte long": (b'{"type": "%b"}' % (b"x" * 1_000_000), "unknown_type"),
    "an old name": (b'{"type": "GET_WEIGHTS"}', "unknown_type"),
    "an answer": (b'{"type": "SET_STATE", "weights_seq_no": 1}', "unknown_type"),
    "deep lists": (b'{"type": "PING", "x": %b}' % (b"[" * 100_000), "too_large"),
    "a deep observation": (get_action("[" * 100_000 + "]" * 100_000), "too_large"),
    "a deep info": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": {"x": %b}}' % (b"[" * 33 + b"]" * 33),
        "too_large",
    ),
    "a long info": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": {"x": "%b"}}' % (b"x" * 70_000),
        "too_large",
    ),
    "an info that is a list": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": [1]}', "wrong_type"
    ),
    "no episode id": (b'{"type": "START_EPISODE", "episode_id": ""}', "out_of_range"),
    "a long episode id": (b'{"type": "START_EPISODE", "episode_id": "%b"}' % (b"e" * 257), "out_of_range"),
    "a negative seq": (b'{"type": "START_EPISODE", "seq": -1}', "out_of_range"),
    "a fraction for a seq": (b'{"type": "START_EPISODE", "seq": 1.5}', "wrong_type"),
    "a seq of 5,000 digits": (b'{"type": "START_EPISODE", "seq": 1%b}' % (b"0" * 5000), "out_of_range"),
    "an unknown form": (b'{"type": "GET_STATE", "form": "pickle"}', "out_of_range"),
    "no observation": (b'{"type": "GET_ACTION", "episode_id": "e"}', "malformed"),
    "null for an observation": (get_action("null"), "wrong_type"),
    "an object for an observation": (get_action('{"0": 1}'), "malformed"),
    "too few numbers": (get_action("[1, 2, 3]"), "wrong_length"),
    "too many numbers": (get_action("[1, 2, 3, 4, 5]"), "wrong_length"),
    "a number out of bounds": (get_action("[1, 2, 3, 40]"), "out_of_range"),
    "NaN": (get_action("[NaN, 1, 1, 1]"), "malformed"),
    "Infinity": (get_action("[1, Infinity, 1, 1]"), "malformed"),
    "1e400": (get_action("[1e400, 1, 1, 1]"), "out_of_range"),
    "1e39": (get_action("[1e39, 1, 1, 1]"), "out_of_range"),
    "texts for numbers": (get_action('["1", "1", "1", "1"]'), "wrong_type"),
    "true for a number": (get_action("[true, 1, 1, 1]"), "wrong_type"),
    "a lone surrogate": (b'{"type": "START_EPISODE", "episode_id": "\\ud800"}', "malformed"),
    "latin-1": (b'{"type": "START_EPISODE", "episode_id": "\xe9"}', "malformed"),
    "episodes that are none": (b'{"type": "EPISODES", "episodes": [1, null]}', "wrong_type"),
    "episodes that are an object": (b'{"type": "EPISODES", "episodes": {}}', "wrong_type"),
    "no episodes": (b'{"type": "EPISODES"}', "malformed"),
    "400,000 numbers for episodes": (
        b'{"type": "EPISODES", "episodes": [%b1]}' % (b"1," * 400_000), "wrong_type"
    ),
    "300,000 empty episodes": (
        b'{"type": "EPISODES", "episodes": [%b{}]}' % (b"{}," * 300_000), "malformed"
    ),
    "no rewards": (episode(rewards=...), "malformed"),
    "no flag": (episode(is_terminated=...), "malformed"),
    "a number for a flag": (episode(is_terminated=1), "wrong_type"),
    "no obs at all": (episode(obs=[], actions=[], rewards=[]), "wrong_length"),
    "as many obs as actions": (episode(obs=EPISODE["obs"][:2]), "wrong_length"),
    "ragged obs": (episode(obs=[[0, 0, 0, 0], [0, 0], [0, 0, 0, 0]]), "wrong_length"),
    "obs one level too deep": (episode(obs=[EPISODE["obs"]]), "wrong_type"),
    "fractions for actions": (episode(actions=[0.0, 0.5]), "wrong_type"),
    "flags for actions": (episode(actions=[False, True]), "wrong_type"),
    "an action too far": (episode(actions=[0, 2]), "out_of_range"),
    "a negative action": (episode(actions=[0, -1]), "out_of_range"),
    "an action of 400 digits": (episode(actions=[0, 10**400]), "out_of_range"),
    "too few log-probabilities": (episode(action_logp=[-1.0]), "wrong_length"),
    "no log-probabilities for actions": (episode(action_logp=[]), "wrong_length"),
    "ragged log-probabilities": (episode(action_logp=[[-1.0], [-1.0, 2.0]]), "wrong_type"),
    "mixed log-probabilities": (episode(action_logp=[-1.0, [-1.0]]), "wrong_type"),
    "ragged inputs": (episode(action_dist_inputs=[[1.0], [1.0, 2.0]]), "wrong_length"),
    "flat inputs": (episode(action_dist_inputs=[1.0, 2.0]), "wrong_type"),
    "a negative t": (episode(t=-1), "out_of_range"),
    "more actions than rewards": (episode(rewards=[1.0]), "wrong_length"),
    "fewer actions than rewards": (episode(actions=[0]), "wrong_length"),
    "a log-probability above 0": (episode(action_logp=[-0.5, 0.5]), "out_of_range"),
    "an infinite log-probability": (episode(action_logp=[1e39, 0]), "out_of_range"),
    "an infinite input": (episode(action_dist_inputs=[[1e39, 0], [0, 0]]), "out_of_range"),
    "flags for states": (episode(state_in=[[True], [False]]), "wrong_type"),
    "too few states": (episode(state_in=[[1.0]]), "wrong_length"),
    "too many inputs": (episode(action_dist_inputs=[[1.0, 2.0]] * 3), "wrong_length"),
    "packed inputs with an axis too many": (
        encoded(action_dist_inputs=a_pack(shape=(2, 2, 1), data=bytes(16))), "wrong_length"
    ),
    "too few env steps": (episode(env_t=[0, 1]), "wrong_length"),
    "env steps that fall": (episode(env_t=[0, 2, 1]), "out_of_range"),
    "a negative env step": (episode(env_t=[-1, 0, 1]), "out_of_range"),
    "an env step that is too late": (episode(env_t=[0, 1, 2**31]), "out_of_range"),
    "half an env step": (episode(env_t=[0.5, 1, 2]), "wrong_type"),
    "packed env steps that are no integers": (
        encoded(env_t=a_pack("<f8", (3,), np.arange(3.0).tobytes())), "wrong_type"
    ),
    "a packed env step that would wrap around": (
        encoded(env_t=a_pack("<u8", (3,), np.array([0, 1, 2**63], np.uint64).tobytes())), "out_of_range"
    ),
    "a packed action that would wrap around": (
        encoded(actions=a_pack("<u8", (2,), np.array([0, 2**64 - 1], np.uint64).tobytes())), "out_of_range"
    ),
    "an agent's reward that is none": (
        together(plain={**EPISODE, "rewards": [1, None]}), "wrong_type"
    ),
    "an unknown agent": (together(nobody=EPISODE), "unknown_id"),
    "a mask that allows nothing before the end": (
        together(masked={**MASKS, "obs": [{**SEEN, "action_mask": [0, 0]}, SEEN]}), "out_of_range"
    ),
    "a last mask that allows nothing where it goes on": (
        together(masked={**MASKS, "is_terminated": False}), "out_of_range"
    ),
    "packed objects": (encoded(obs=a_pack("|O")), "wrong_type"),
    "packed big-endian numbers": (encoded(obs=a_pack(">f4")), "wrong_type"),
    "too few packed bytes": (encoded(obs=a_pack(data=bytes(47))), "wrong_length"),
    "too many packed bytes": (encoded(obs=a_pack(data=bytes(52))), "wrong_length"),
    "a packed shape of a negative size": (encoded(obs=a_pack(shape=(-3, -4))), "out_of_range"),
    "a packed shape of absurd size": (encoded(obs=a_pack(shape=(2**32,) * 8)), "wrong_length"),
    "a packed shape of a size and none": (encoded(obs=a_pack(shape=(2**32, 0), data=b"")), "wrong_length"),
    "a packed shape of 40 axes": (encoded(obs=a_pack(shape=(1,) * 40, data=bytes(4))), "wrong_length"),
    "packed numbers turned round": (encoded(obs=a_pack(shape=(4, 3))), "wrong_length"),
    "packed numbers of one row": (encoded(obs=a_pack(shape=(12,))), "wrong_length"),
    "packed fractions for actions": (
        encoded(actions=a_pack("<f8", (2,), struct.pack("<dd", 0.0, 0.5))), "wrong_type"
    ),
    "packed numbers that are not finite": (encoded(obs=a_pack(data=b"\xff" * 48)), "out_of_range"),
    "packed numbers out of bounds": (
        encoded(obs=a_pack(data=np.full(12, 11, np.float32).tobytes())), "out_of_range"
    ),
    "packed numbers too large for their space": (
        encoded(obs=a_pack("<f8", data=np.full(12, 1e39).tobytes())), "out_of_range"
    ),
    "a text for packed bytes": (encoded(obs=a_pack(data="x" * 48)), "wrong_length"),
}  # fmt: skip
"""Every way to go wrong that we know, with the code of the answer."""

TOKENS = [
    b"null", b"true", b"NaN", b"-Infinity", b"1e400", b"-1e400", b"1" + b"0" * 400, b"-0", b"0.1e-400", b"[]", b"{}",
    b'""', b"[" * 1000, b'{"a":' * 300, b'"\\ud800"', b'"\\u0000"', b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x00",
    b"\xc1", b"\xef\xbb\xbf", b"99999999",
]  # fmt: skip
"""What parsers stumble over."""

VALUES: list[Any] = [
    None, True, 0, 1, -1, 2, 1.5, 1e39, -1e308, 2**63 - 1, -(2**63), 2**64 - 1, "", "a", "a" * 300, [], {}, [0],
    [[]], [1, "a"], {"a": 1}, {"agents": {}}, [0.5] * 4, [[0.5] * 4] * 3, [0.5] * 100, b"1234",
    {"dtype": "<f4", "shape": [3, 4], "data": bytes(48)}, {"dtype": "<f4", "shape": [4], "data": b"\xff" * 16},
    {"dtype": "<i8", "shape": [2], "data": bytes(16)}, {"dtype": "O", "shape": [2**31], "data": b""},
]  # fmt: skip
"""Values that are right in some places."""


class Damage:
    """Damages bodies, the same way for the same seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        small = [body for body, _ in MALFORMED.values() if len(body) < 2000]
        self._bodies = bodies() + small
        self._ways = (self._flip, self._cut, self._insert, self._repeat, self._swap)

    def body(self) -> bytes:
        """Return a body with a wrong value or with damaged bytes."""
        if self._draw.random() < 0.5:
            return self._wrong_value()
        body = self._draw.choice(self._bodies)
        for _ in range(self._draw.choice((1, 1, 2, 5))):
            body = self._draw.choice(self._ways)(body)
        return body

    def _wrong_value(self) -> bytes:
        """Return a well-written body in which some value is another one."""
        message = copy.deepcopy(self._draw.choice(WELL_MADE))
        for _ in range(self._draw.choice((0, 1, 1, 2))):
            holder: Any = message
            while True:
                places = list(holder) if isinstance(holder, dict) else range(len(holder))
                place = self._draw.choice([place for place in places if place != "type"] or ["x"])
                inner = holder.get(place) if isinstance(holder, dict) else holder[place]
                if not inner or not isinstance(inner, dict | list) or self._draw.random() < 0.2:
                    break
                holder = inner
            holder[place] = copy.deepcopy(self._draw.choice(VALUES))
        return msgspec.json.encode(message)

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self._draw.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self._draw.randrange(8))]) + data[at + 1 :]

    def _cut(self, data: bytes) -> bytes:
        begin, end = self._slice(data)
        return data[:begin] + data[end:]

    def _insert(self, data: bytes) -> bytes:
        at = self._draw.randint(0, len(data))
        return data[:at] + self._draw.choice(TOKENS) + data[at:]

    def _repeat(self, data: bytes) -> bytes:
        begin, end = self._slice(data)
        return data[:end] + data[begin:end] * self._draw.choice((1, 1, 3, 50)) + data[end:]

    def _swap(self, data: bytes) -> bytes:
        begin, end = self._slice(data)
        return data[:begin] + self._draw.choice(TOKENS) + data[end:]

    def _slice(self, data: bytes) -> tuple[int, int]:
        begin = self._draw.randint(0, len(data))
        return begin, min(len(data), begin + self._draw.choice((1, 2, 8, 40)))
