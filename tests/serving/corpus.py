"""Bodies that are well made, bodies that are not, and what a server does with either before a session sees it."""

from __future__ import annotations

import json
import struct
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np

from menv.serving.wire.bad_message import Code
from menv.serving.wire.columns import action, observation, reward
from menv.serving.wire.episodes import read_episode
from menv.serving.wire.messages import (
    EndEpisode,
    Episodes,
    GetAction,
    LogAction,
    LogReturns,
    Request,
    decode,
)

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
    request, dialect = decode(body)
    if isinstance(request, Episodes):
        for at, raw in enumerate(request.episodes):
            several = b"agents" in bytes(raw)
            read_episode(raw, several_agents if several else one_agent, dialect, f"EPISODES.episodes[{at}]")
    elif isinstance(request, GetAction | LogAction | EndEpisode):
        observation(request.observation, OBS, dialect, final=isinstance(request, EndEpisode))
        if isinstance(request, LogAction):
            action(request.action, ACTIONS, dialect)
    elif isinstance(request, LogReturns):
        reward(request.reward, dialect)
    return request


EPISODE: dict[str, Any] = {
    "obs": [[0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4], [-1.0, -0.0, 1e-30, 9]],
    "actions": [0, 1],
    "rewards": [1.0, -2],
    "is_terminated": True,
    "is_truncated": False,
}
RICH = {
    **EPISODE, "id": "e-1", "env": "0", "t": 7, "weights_seq_no": 3, "action_logp": [-0.5, -0.25],
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
    """Return every well-made message in JSON with spaces, in compact JSON and in msgpack, arrays packed too."""
    found = []
    for message in WELL_MADE:
        found += [json.dumps(message).encode(), msgspec.json.encode(message), msgspec.msgpack.encode(message)]
    columns = {
        "obs": np.zeros((3, 4), np.float32), "actions": np.array([0, 1]), "rewards": np.ones(2),
        "action_logp": np.zeros((2, 1)), "action_dist_inputs": np.zeros((2, 2), np.float32),
    }  # fmt: skip
    packed = {
        name: {"dtype": array.dtype.str, "shape": array.shape, "data": array.tobytes()}
        for name, array in columns.items()
    }
    return [*found, msgspec.msgpack.encode({"type": "EPISODES", "episodes": [{**EPISODE, **packed}]})]


def get_action(observation: str) -> bytes:
    """Return a GET_ACTION with any text as its observation."""
    return b'{"type": "GET_ACTION", "episode_id": "e", "observation": %b}' % observation.encode(
        "utf-8", "surrogatepass"
    )


def episode(**changes: Any) -> bytes:
    """Return an EPISODES in JSON with one episode, some of its fields changed, or left out with `...`."""
    fields = {name: value for name, value in {**EPISODE, **changes}.items() if value is not ...}
    return json.dumps({"type": "EPISODES", "episodes": [fields]}).encode()


def msgpacked(**changes: Any) -> bytes:
    """Return the same in msgpack."""
    return msgspec.msgpack.encode({"type": "EPISODES", "episodes": [{**EPISODE, **changes}]})


def a_pack(dtype: str = "<f4", shape: Any = (3, 4), data: Any = bytes(48)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data": data}


MALFORMED: dict[str, tuple[bytes, Code]] = {
    "nothing": (b"", Code.MALFORMED),
    "spaces": (b"   \n", Code.MALFORMED),
    "a list": (b"[]", Code.MALFORMED),
    "a text": (b'"PING"', Code.MALFORMED),
    "a pickle": (b"\x80\x04\x95\x0b\x00", Code.MALFORMED),
    "half a byte order mark": (b'\xef\xbb{"type": "PING"}', Code.MALFORMED),
    "half an object": (b'{"type": "PI', Code.MALFORMED),
    "two objects": (b'{"type": "PING"}{"type": "PING"}', Code.MALFORMED),
    "single quotes": (b"{'type': 'PING'}", Code.MALFORMED),
    "a trailing comma": (b'{"type": "PING",}', Code.MALFORMED),
    "half a map": (b"\x82\xa4type\xa4PING", Code.MALFORMED),
    "a map of four billion": (b"\xdf\xff\xff\xff\xff\xa4type\xa4PING", Code.MALFORMED),
    "a map with a number for a key": (b"\x82\xa4type\xa4PING\x01\x02", Code.WRONG_TYPE),
    "no type": (b'{"typ": "PING"}', Code.MISSING_FIELD),
    "a number for the type": (b'{"type": 1}', Code.WRONG_TYPE),
    "null for the type": (b'{"type": null}', Code.WRONG_TYPE),
    "bytes for the type": (b"\x81\xa4type\xc4\x04PING", Code.WRONG_TYPE),
    "an unknown type": (b'{"type": "PINGPONG"}', Code.UNKNOWN_TYPE),
    "a type a megabyte long": (b'{"type": "%b"}' % (b"x" * 1_000_000), Code.UNKNOWN_TYPE),
    "an old name": (b'{"type": "GET_WEIGHTS"}', Code.UNKNOWN_TYPE),
    "an answer": (b'{"type": "SET_STATE", "weights_seq_no": 1}', Code.NOT_A_REQUEST),
    "the type twice": (b'{"type": "PING", "type": "GET_CONFIG"}', Code.DUPLICATE_KEY),
    "the type twice, once escaped": (b'{"type": "PING", "t\\u0079pe": "GET_CONFIG"}', Code.DUPLICATE_KEY),
    "the type twice in msgpack": (b"\x82\xa4type\xa4PING\xa4type\xa4PING", Code.DUPLICATE_KEY),
    "an unknown key twice": (b'{"type": "PING", "x": 1, "x": 2}', Code.DUPLICATE_KEY),
    "a column twice": (episode().replace(b'"obs"', b'"actions": [1, 1], "obs"'), Code.DUPLICATE_KEY),
    "a column twice in msgpack": (
        msgpacked().replace(b"\x85\xa3obs", b"\x86\xa7rewards\x92\x01\x01\xa3obs"), Code.DUPLICATE_KEY
    ),
    "an agent paid twice": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": {"a": 1, "a": 1}}', Code.DUPLICATE_KEY
    ),
    "an agent done twice": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "done": {"a": true, "a": false}}',
        Code.DUPLICATE_KEY,
    ),
    "deep lists": (b'{"type": "PING", "x": %b}' % (b"[" * 100_000), Code.TOO_DEEP),
    "deep objects": (b'{"type": "PING", "x": %b' % (b'{"x":' * 100_000), Code.TOO_DEEP),
    "deep maps": (b"\x82\xa4type\xa4PING\xa1x" + b"\x81\xa1x" * 100_000, Code.TOO_DEEP),
    "a deep observation": (get_action("[" * 100_000 + "]" * 100_000), Code.TOO_DEEP),
    "a deep info": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": {"x": %b}}' % (b"[" * 33 + b"]" * 33),
        Code.TOO_DEEP,
    ),
    "a long info": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": {"x": "%b"}}' % (b"x" * 70_000),
        Code.TOO_LARGE,
    ),
    "an info that is a list": (
        b'{"type": "LOG_RETURNS", "episode_id": "e", "reward": 1, "info": [1]}', Code.WRONG_TYPE
    ),
    "no episode id": (b'{"type": "START_EPISODE", "episode_id": ""}', Code.OUT_OF_RANGE),
    "a long episode id": (b'{"type": "START_EPISODE", "episode_id": "%b"}' % (b"e" * 257), Code.OUT_OF_RANGE),
    "a negative seq": (b'{"type": "START_EPISODE", "seq": -1}', Code.OUT_OF_RANGE),
    "a fraction for a seq": (b'{"type": "START_EPISODE", "seq": 1.5}', Code.WRONG_TYPE),
    "a seq of 400 digits": (b'{"type": "START_EPISODE", "seq": 1%b}' % (b"0" * 400), Code.OUT_OF_RANGE),
    "a seq of 5,000 digits": (b'{"type": "START_EPISODE", "seq": 1%b}' % (b"0" * 5000), Code.OUT_OF_RANGE),
    "an unknown form": (b'{"type": "GET_STATE", "form": "pickle"}', Code.OUT_OF_RANGE),
    "no observation": (b'{"type": "GET_ACTION", "episode_id": "e"}', Code.MISSING_FIELD),
    "null for an observation": (get_action("null"), Code.WRONG_TYPE),
    "an object for an observation": (get_action('{"0": 1}'), Code.WRONG_TYPE),
    "too few numbers": (get_action("[1, 2, 3]"), Code.WRONG_LENGTH),
    "too many numbers": (get_action("[1, 2, 3, 4, 5]"), Code.WRONG_LENGTH),
    "a number out of bounds": (get_action("[1, 2, 3, 40]"), Code.OUT_OF_RANGE),
    "NaN": (get_action("[NaN, 1, 1, 1]"), Code.MALFORMED),
    "Infinity": (get_action("[1, Infinity, 1, 1]"), Code.MALFORMED),
    "1e400": (get_action("[1e400, 1, 1, 1]"), Code.OUT_OF_RANGE),
    "1e39": (get_action("[1e39, 1, 1, 1]"), Code.NOT_FINITE),
    "a number of 400 digits": (get_action(f"[1{'0' * 400}, 1, 1, 1]"), Code.OUT_OF_RANGE),
    "a number with a zero in front": (get_action("[01, 1, 1, 1]"), Code.MALFORMED),
    "a hexadecimal number": (get_action("[0x1, 1, 1, 1]"), Code.MALFORMED),
    "texts for numbers": (get_action('["1", "1", "1", "1"]'), Code.WRONG_TYPE),
    "true for a number": (get_action("[true, 1, 1, 1]"), Code.WRONG_TYPE),
    "NaN in msgpack": (msgpacked(rewards=[float("nan"), 1.0]), Code.NOT_FINITE),
    "infinity in msgpack": (msgpacked(obs=[[float("inf"), 0, 0, 0]] * 3), Code.NOT_FINITE),
    "a lone surrogate": (b'{"type": "START_EPISODE", "episode_id": "\\ud800"}', Code.MALFORMED),
    "half a pair of surrogates": (b'{"type": "START_EPISODE", "episode_id": "\\ud800x\\ud800y"}', Code.MALFORMED),
    "surrogates in UTF-8": (b'{"type": "START_EPISODE", "episode_id": "\xed\xa0\x80"}', Code.MALFORMED),
    "latin-1": (b'{"type": "START_EPISODE", "episode_id": "\xe9"}', Code.MALFORMED),
    "an extension of msgpack": (msgpacked(rewards=msgspec.msgpack.Ext(5, b"1234")), Code.WRONG_TYPE),
    "episodes that are none": (b'{"type": "EPISODES", "episodes": [1, null]}', Code.WRONG_TYPE),
    "episodes that are an object": (b'{"type": "EPISODES", "episodes": {}}', Code.WRONG_TYPE),
    "no episodes": (b'{"type": "EPISODES"}', Code.MISSING_FIELD),
    "two million numbers for episodes": (
        b'{"type": "EPISODES", "episodes": [%b1]}' % (b"1," * 2_000_000), Code.WRONG_TYPE
    ),
    "a million empty episodes": (
        b'{"type": "EPISODES", "episodes": [%b{}]}' % (b"{}," * 1_000_000), Code.MISSING_FIELD
    ),
    "no rewards": (episode(rewards=...), Code.MISSING_FIELD),
    "no flag": (episode(is_terminated=...), Code.MISSING_FIELD),
    "a number for a flag": (episode(is_terminated=1), Code.WRONG_TYPE),
    "no obs at all": (episode(obs=[], actions=[], rewards=[]), Code.WRONG_LENGTH),
    "as many obs as actions": (episode(obs=EPISODE["obs"][:2]), Code.WRONG_LENGTH),
    "ragged obs": (episode(obs=[[0, 0, 0, 0], [0, 0], [0, 0, 0, 0]]), Code.WRONG_LENGTH),
    "obs one level too deep": (episode(obs=[EPISODE["obs"]]), Code.WRONG_TYPE),
    "null within obs": (episode(obs=[[0, 0, 0, None]] * 3), Code.WRONG_TYPE),
    "fractions for actions": (episode(actions=[0.0, 0.5]), Code.WRONG_TYPE),
    "flags for actions": (episode(actions=[False, True]), Code.WRONG_TYPE),
    "an action too far": (episode(actions=[0, 2]), Code.OUT_OF_RANGE),
    "a negative action": (episode(actions=[0, -1]), Code.OUT_OF_RANGE),
    "an action of 400 digits": (episode(actions=[0, 10**400]), Code.OUT_OF_RANGE),
    "texts for rewards": (episode(rewards=["1", "2"]), Code.WRONG_TYPE),
    "too few log-probabilities": (episode(action_logp=[-1.0]), Code.WRONG_LENGTH),
    "no log-probabilities for actions": (episode(action_logp=[]), Code.WRONG_LENGTH),
    "ragged log-probabilities": (episode(action_logp=[[-1.0], [-1.0, 2.0]]), Code.WRONG_LENGTH),
    "mixed log-probabilities": (episode(action_logp=[-1.0, [-1.0]]), Code.WRONG_LENGTH),
    "ragged inputs": (episode(action_dist_inputs=[[1.0], [1.0, 2.0]]), Code.WRONG_LENGTH),
    "flat inputs": (episode(action_dist_inputs=[1.0, 2.0]), Code.WRONG_TYPE),
    "a negative t": (episode(t=-1), Code.OUT_OF_RANGE),
    "an unknown agent": (
        json.dumps({"type": "EPISODES", "episodes": [{**TOGETHER, "agents": {"x": EPISODE}}]}).encode(),
        Code.UNKNOWN_AGENT,
    ),
    "packed objects": (msgpacked(obs=a_pack("|O")), Code.WRONG_TYPE),
    "packed big-endian numbers": (msgpacked(obs=a_pack(">f4")), Code.WRONG_TYPE),
    "packed numbers of no type": (msgpacked(obs=a_pack("import os")), Code.WRONG_TYPE),
    "too few packed bytes": (msgpacked(obs=a_pack(data=bytes(47))), Code.WRONG_LENGTH),
    "too many packed bytes": (msgpacked(obs=a_pack(data=bytes(52))), Code.WRONG_LENGTH),
    "a packed shape of a negative size": (msgpacked(obs=a_pack(shape=(-3, -4))), Code.OUT_OF_RANGE),
    "a packed shape of absurd size": (msgpacked(obs=a_pack(shape=(2**32,) * 8)), Code.WRONG_LENGTH),
    "a packed shape beyond all": (msgpacked(obs=a_pack(shape=(2**63,))), Code.OUT_OF_RANGE),
    "a packed shape of a size and none": (msgpacked(obs=a_pack(shape=(2**32, 0), data=b"")), Code.WRONG_LENGTH),
    "a packed shape of 40 axes": (msgpacked(obs=a_pack(shape=(1,) * 40, data=bytes(4))), Code.WRONG_LENGTH),
    "packed numbers turned round": (msgpacked(obs=a_pack(shape=(4, 3))), Code.WRONG_LENGTH),
    "packed numbers of one row": (msgpacked(obs=a_pack(shape=(12,))), Code.WRONG_LENGTH),
    "packed fractions for actions": (
        msgpacked(actions=a_pack("<f8", (2,), struct.pack("<dd", 0.0, 0.5))), Code.WRONG_TYPE
    ),
    "packed numbers that are not finite": (msgpacked(obs=a_pack(data=b"\xff" * 48)), Code.NOT_FINITE),
    "packed numbers out of bounds": (
        msgpacked(obs=a_pack(data=np.full(12, 11, np.float32).tobytes())), Code.OUT_OF_RANGE
    ),
    "packed numbers too large for their space": (
        msgpacked(obs=a_pack("<f8", data=np.full(12, 1e39).tobytes())), Code.NOT_FINITE
    ),
    "a text for packed bytes": (msgpacked(obs=a_pack(data="x" * 48)), Code.WRONG_TYPE),
    "packing in JSON": (episode(obs=a_pack(data="AAAA")), Code.WRONG_TYPE),
}  # fmt: skip
"""Every way to go wrong that we know, with the code of the answer."""
