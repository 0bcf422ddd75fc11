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

from menv.serving.action_requests import read_info
from menv.serving.episodes import read_episode
from menv.serving.protocol import (
    EndEpisode,
    EpisodeMessage,
    Episodes,
    ErrorCode,
    GetAction,
    LogAction,
    LogReturns,
    Request,
    decode,
    frame,
)
from menv.serving.value_readers import reward
from tests.serving.spaces import action, observation

S = gym.spaces
OBS: Any = S.Box(-10.0, 10.0, (4,), np.float32)
ACTIONS: Any = S.Discrete(2)
MASKED: Any = S.Dict(
    {"action_mask": S.MultiBinary(2), "camera": S.Box(0, 255, (2, 2, 3), np.uint8), "word": S.Text(4)}
)
"""Observations of the agent "masked" of the environment with several agents; others see `OBS`."""


def one_agent(agent_id: str | None) -> tuple[Any, Any] | None:
    """Return the spaces of an environment with one agent."""
    return (OBS, ACTIONS) if agent_id is None else None


def several_agents(agent_id: str | None) -> tuple[Any, Any] | None:
    """Return the spaces of an environment with the agents "plain" and "masked"."""
    return {"plain": (OBS, ACTIONS), "masked": (MASKED, ACTIONS)}.get(agent_id or "")


def take(body: bytes) -> Request:
    """Decode a body and check all that it holds, as for an environment of one agent or, in vain, of several."""
    request = decode(body)
    if isinstance(request, EpisodeMessage):
        read_info(request.info)
    if isinstance(request, Episodes):
        for at, raw in enumerate(request.episodes):
            several = b"agents" in bytes(raw)
            read_episode(raw, several_agents if several else one_agent, f"EPISODES.episodes[{at}]")
    elif isinstance(request, GetAction | LogAction | EndEpisode):
        observation(request.observation, OBS, final=isinstance(request, EndEpisode))
        if isinstance(request, LogAction):
            action(request.action, ACTIONS)
    elif isinstance(request, LogReturns):
        reward(request.reward)
    return request


EPISODE: dict[str, Any] = {
    "obs": [[0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4], [-1.0, -0.0, 1e-30, 9]],
    "actions": [0, 1],
    "rewards": [1.0, -2],
    "is_terminated": True,
    "is_truncated": False,
}
RICH = {
    **EPISODE, "id": "e-1", "t": 7, "weights_seq_no": 3, "action_logp": [-0.5, -0.25],
    "action_dist_inputs": [[0.5, 1.5], [2, 3]], "state_in": [[0.0], [1.0]], "env_t": [0, 3, 4],
    "agent_id": "a", "module_id": "m",
}  # fmt: skip
SEEN = {"action_mask": [1, 0], "camera": [[[0, 1, 2]] * 2] * 2, "word": "ab"}
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


def a_pack(dtype: str = "<f4", shape: Any = (3, 4), data: Any = bytes(48)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": data}


MALFORMED: dict[str, tuple[bytes, ErrorCode]] = {
    "nothing": (b"", ErrorCode.MALFORMED),
    "spaces": (b"   \n", ErrorCode.MALFORMED),
    "a list": (b"[]", ErrorCode.WRONG_TYPE),
    "a text": (b'"PING"', ErrorCode.WRONG_TYPE),
    "a pickle": (b"\x80\x04\x95\x0b\x00", ErrorCode.MALFORMED),
    "half a byte order mark": (b'\xef\xbb{"type": "PING"}', ErrorCode.MALFORMED),
    "half an object": (b'{"type": "PI', ErrorCode.MALFORMED),
    "two objects": (b'{"type": "PING"}{"type": "PING"}', ErrorCode.MALFORMED),
    "single quotes": (b"{'type': 'PING'}", ErrorCode.MALFORMED),
    "a trailing comma": (b'{"type": "PING",}', ErrorCode.MALFORMED),
    "no type": (b'{"typ": "PING"}', ErrorCode.MALFORMED),
    "a number for the type": (b'{"type": 1}', ErrorCode.WRONG_TYPE),
    "null for the type": (b'{"type": null}', ErrorCode.MALFORMED),
    "an unknown type": (b'{"type": "PINGPONG"}', ErrorCode.UNKNOWN_TYPE),
    "a type a megabyte long": (b'{"type": "%b"}' % (b"x" * 1_000_000), ErrorCode.UNKNOWN_TYPE),
    "an old name": (b'{"type": "GET_WEIGHTS"}', ErrorCode.UNKNOWN_TYPE),
    "an answer": (b'{"type": "SET_STATE", "weights_seq_no": 1}', ErrorCode.UNKNOWN_TYPE),
    "deep lists": (b'{"type": "PING", "x": %b}' % (b"[" * 100_000), ErrorCode.TOO_LARGE),
    "deep objects": (b'{"type": "PING", "x": %b' % (b'{"x":' * 100_000), ErrorCode.TOO_LARGE),
    "a deep observation": (get_action("[" * 100_000 + "]" * 100_000), ErrorCode.TOO_LARGE),
    "a deep info": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": {"x": %b}}' % (b"[" * 33 + b"]" * 33),
        ErrorCode.TOO_LARGE,
    ),
    "a long info": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": {"x": "%b"}}' % (b"x" * 70_000),
        ErrorCode.TOO_LARGE,
    ),
    "an info that is a list": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": [1]}', ErrorCode.WRONG_TYPE
    ),
    "no episode id": (b'{"type": "START_EPISODE", "episode_id": ""}', ErrorCode.OUT_OF_RANGE),
    "a long episode id": (b'{"type": "START_EPISODE", "episode_id": "%b"}' % (b"e" * 257), ErrorCode.OUT_OF_RANGE),
    "a negative seq": (b'{"type": "START_EPISODE", "seq": -1}', ErrorCode.OUT_OF_RANGE),
    "a fraction for a seq": (b'{"type": "START_EPISODE", "seq": 1.5}', ErrorCode.WRONG_TYPE),
    "a seq of 400 digits": (b'{"type": "START_EPISODE", "seq": 1%b}' % (b"0" * 400), ErrorCode.OUT_OF_RANGE),
    "a seq of 5,000 digits": (b'{"type": "START_EPISODE", "seq": 1%b}' % (b"0" * 5000), ErrorCode.OUT_OF_RANGE),
    "an unknown form": (b'{"type": "GET_STATE", "form": "pickle"}', ErrorCode.OUT_OF_RANGE),
    "no observation": (b'{"type": "GET_ACTION", "episode_id": "e"}', ErrorCode.MALFORMED),
    "null for an observation": (get_action("null"), ErrorCode.WRONG_TYPE),
    "an object for an observation": (get_action('{"0": 1}'), ErrorCode.MALFORMED),
    "too few numbers": (get_action("[1, 2, 3]"), ErrorCode.WRONG_LENGTH),
    "too many numbers": (get_action("[1, 2, 3, 4, 5]"), ErrorCode.WRONG_LENGTH),
    "a number out of bounds": (get_action("[1, 2, 3, 40]"), ErrorCode.OUT_OF_RANGE),
    "NaN": (get_action("[NaN, 1, 1, 1]"), ErrorCode.MALFORMED),
    "Infinity": (get_action("[1, Infinity, 1, 1]"), ErrorCode.MALFORMED),
    "1e400": (get_action("[1e400, 1, 1, 1]"), ErrorCode.OUT_OF_RANGE),
    "1e39": (get_action("[1e39, 1, 1, 1]"), ErrorCode.OUT_OF_RANGE),
    "a number of 400 digits": (get_action(f"[1{'0' * 400}, 1, 1, 1]"), ErrorCode.OUT_OF_RANGE),
    "a number with a zero in front": (get_action("[01, 1, 1, 1]"), ErrorCode.MALFORMED),
    "a hexadecimal number": (get_action("[0x1, 1, 1, 1]"), ErrorCode.MALFORMED),
    "texts for numbers": (get_action('["1", "1", "1", "1"]'), ErrorCode.WRONG_TYPE),
    "true for a number": (get_action("[true, 1, 1, 1]"), ErrorCode.WRONG_TYPE),
    "a lone surrogate": (b'{"type": "START_EPISODE", "episode_id": "\\ud800"}', ErrorCode.MALFORMED),
    "half a pair of surrogates": (b'{"type": "START_EPISODE", "episode_id": "\\ud800x\\ud800y"}', ErrorCode.MALFORMED),
    "surrogates in UTF-8": (b'{"type": "START_EPISODE", "episode_id": "\xed\xa0\x80"}', ErrorCode.MALFORMED),
    "latin-1": (b'{"type": "START_EPISODE", "episode_id": "\xe9"}', ErrorCode.MALFORMED),
    "episodes that are none": (b'{"type": "EPISODES", "episodes": [1, null]}', ErrorCode.WRONG_TYPE),
    "episodes that are an object": (b'{"type": "EPISODES", "episodes": {}}', ErrorCode.WRONG_TYPE),
    "no episodes": (b'{"type": "EPISODES"}', ErrorCode.MALFORMED),
    "400,000 numbers for episodes": (
        b'{"type": "EPISODES", "episodes": [%b1]}' % (b"1," * 400_000), ErrorCode.WRONG_TYPE
    ),
    "300,000 empty episodes": (
        b'{"type": "EPISODES", "episodes": [%b{}]}' % (b"{}," * 300_000), ErrorCode.MALFORMED
    ),
    "no rewards": (episode(rewards=...), ErrorCode.MALFORMED),
    "no flag": (episode(is_terminated=...), ErrorCode.MALFORMED),
    "a number for a flag": (episode(is_terminated=1), ErrorCode.WRONG_TYPE),
    "no obs at all": (episode(obs=[], actions=[], rewards=[]), ErrorCode.WRONG_LENGTH),
    "as many obs as actions": (episode(obs=EPISODE["obs"][:2]), ErrorCode.WRONG_LENGTH),
    "ragged obs": (episode(obs=[[0, 0, 0, 0], [0, 0], [0, 0, 0, 0]]), ErrorCode.WRONG_LENGTH),
    "obs one level too deep": (episode(obs=[EPISODE["obs"]]), ErrorCode.WRONG_TYPE),
    "null within obs": (episode(obs=[[0, 0, 0, None]] * 3), ErrorCode.WRONG_TYPE),
    "fractions for actions": (episode(actions=[0.0, 0.5]), ErrorCode.WRONG_TYPE),
    "flags for actions": (episode(actions=[False, True]), ErrorCode.WRONG_TYPE),
    "an action too far": (episode(actions=[0, 2]), ErrorCode.OUT_OF_RANGE),
    "a negative action": (episode(actions=[0, -1]), ErrorCode.OUT_OF_RANGE),
    "an action of 400 digits": (episode(actions=[0, 10**400]), ErrorCode.OUT_OF_RANGE),
    "texts for rewards": (episode(rewards=["1", "2"]), ErrorCode.WRONG_TYPE),
    "too few log-probabilities": (episode(action_logp=[-1.0]), ErrorCode.WRONG_LENGTH),
    "no log-probabilities for actions": (episode(action_logp=[]), ErrorCode.WRONG_LENGTH),
    "ragged log-probabilities": (episode(action_logp=[[-1.0], [-1.0, 2.0]]), ErrorCode.WRONG_TYPE),
    "mixed log-probabilities": (episode(action_logp=[-1.0, [-1.0]]), ErrorCode.WRONG_TYPE),
    "ragged inputs": (episode(action_dist_inputs=[[1.0], [1.0, 2.0]]), ErrorCode.WRONG_LENGTH),
    "flat inputs": (episode(action_dist_inputs=[1.0, 2.0]), ErrorCode.WRONG_TYPE),
    "a negative t": (episode(t=-1), ErrorCode.OUT_OF_RANGE),
    "an unknown agent": (
        json.dumps({"type": "EPISODES", "episodes": [{**TOGETHER, "agents": {"x": EPISODE}}]}).encode(),
        ErrorCode.UNKNOWN_ID,
    ),
    "packed objects": (encoded(obs=a_pack("|O")), ErrorCode.WRONG_TYPE),
    "packed big-endian numbers": (encoded(obs=a_pack(">f4")), ErrorCode.WRONG_TYPE),
    "packed numbers of no type": (encoded(obs=a_pack("import os")), ErrorCode.WRONG_TYPE),
    "too few packed bytes": (encoded(obs=a_pack(data=bytes(47))), ErrorCode.WRONG_LENGTH),
    "too many packed bytes": (encoded(obs=a_pack(data=bytes(52))), ErrorCode.WRONG_LENGTH),
    "a packed shape of a negative size": (encoded(obs=a_pack(shape=(-3, -4))), ErrorCode.OUT_OF_RANGE),
    "a packed shape of absurd size": (encoded(obs=a_pack(shape=(2**32,) * 8)), ErrorCode.WRONG_LENGTH),
    "a packed shape beyond all": (encoded(obs=a_pack(shape=(2**63,))), ErrorCode.OUT_OF_RANGE),
    "a packed shape of a size and none": (encoded(obs=a_pack(shape=(2**32, 0), data=b"")), ErrorCode.WRONG_LENGTH),
    "a packed shape of 40 axes": (encoded(obs=a_pack(shape=(1,) * 40, data=bytes(4))), ErrorCode.WRONG_LENGTH),
    "packed numbers turned round": (encoded(obs=a_pack(shape=(4, 3))), ErrorCode.WRONG_LENGTH),
    "packed numbers of one row": (encoded(obs=a_pack(shape=(12,))), ErrorCode.WRONG_LENGTH),
    "packed fractions for actions": (
        encoded(actions=a_pack("<f8", (2,), struct.pack("<dd", 0.0, 0.5))), ErrorCode.WRONG_TYPE
    ),
    "packed numbers that are not finite": (encoded(obs=a_pack(data=b"\xff" * 48)), ErrorCode.OUT_OF_RANGE),
    "packed numbers out of bounds": (
        encoded(obs=a_pack(data=np.full(12, 11, np.float32).tobytes())), ErrorCode.OUT_OF_RANGE
    ),
    "packed numbers too large for their space": (
        encoded(obs=a_pack("<f8", data=np.full(12, 1e39).tobytes())), ErrorCode.OUT_OF_RANGE
    ),
    "a text for packed bytes": (encoded(obs=a_pack(data="x" * 48)), ErrorCode.WRONG_LENGTH),
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
    """Damages bodies and frames, the same way for the same seed."""

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

    def frame(self) -> bytes:
        """Return a frame of such a body, now and then with a damaged header."""
        framed = frame(self.body())
        return framed if self._draw.random() < 7 / 8 else self._flip(framed[:8]) + framed[8:]

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
