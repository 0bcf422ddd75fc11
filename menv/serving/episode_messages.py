"""Episodes in messages, whole or as trajectory chunks, of one agent or several, checked against the spaces.

`read_episode` decodes them from EPISODES. `write_flat` and `read_flat` pass checked episodes from the body parser
process to the server, where they have to be cheap to read: numbers are blocks of bytes, and other columns are cut into
small pieces, so that reading never holds up the event loop for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import gymnasium as gym
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Raw, UnsetType

from menv.serving.codec import (
    Array,
    BadMessageError,
    Data,
    ErrorCode,
    PackedArray,
    TypedDecoder,
    WireFormat,
    check_keys,
    fields,
    is_nil,
    to_raw,
)
from menv.serving.number_reader import (
    NUMBERS_OR_ROWS,
    ROWS,
    TIMES,
    Floats,
    gaussian,
    log_probabilities,
    matrix,
    refuse_positive,
    rows_within,
    times,
)
from menv.serving.protocol import Count, Id
from menv.serving.value_readers import Column, ElementReader, Space, reader_of, reward
from menv.spaces import leaves

SpacesOf = Callable[[str | None], tuple[Space, Space] | None]
"""See `menv.serving.step_columns.agent_spaces`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireEpisode:
    """An episode or a chunk of one: n timesteps of one agent, or the episodes of several agents that ran together.

    Arrays may be read-only.

    Attributes:
        id: Id of the episode, None if the client sends none.
        env: Which of several environments on one connection.
        t: Index of the first timestep in the episode.
        weights_seq_no: Weights of the policy that acted, if known.
        obs: n + 1 observations, [n + 1, *shape] or a list; the last is the one after the last action.
        actions: n actions, [n, *shape] or a list; actions of a Box may exceed its bounds.
        rewards: [n] float64.
        logp: [n] float32 log-probabilities of the actions, or None.
        dist_inputs: [n, K] float32 inputs of the action distribution, or None.
        state_in: [n, S] float32 hidden state before each timestep, or None.
        env_t: [n + 1] env step of each observation in the episode, or None.
        agents: The episode of each agent, if there are several; the columns here are empty then.
        env_steps: Env steps of a chunk of several agents, if known.
        unclaimed: Rewards of agents that none of their actions can own, by agent.
    """

    id: str | None = None
    env: str | None = None
    t: int = 0
    terminated: bool
    truncated: bool
    weights_seq_no: int | None = None
    obs: Column
    actions: Column
    rewards: npt.NDArray[np.float64]
    logp: Floats | None = None
    dist_inputs: Floats | None = None
    state_in: Floats | None = None
    env_t: npt.NDArray[np.int64] | None = None
    agents: Mapping[str, WireEpisode] | None = None
    env_steps: int | None = None
    unclaimed: Mapping[str, float] | None = None

    @property
    def steps(self) -> int:
        """n, the number of actions of all agents."""
        if self.agents is not None:
            return sum(one.steps for one in self.agents.values())
        return len(self.rewards)


def read_episode(
    raw: Data, spaces_of: SpacesOf, wire_format: WireFormat, where: str = "episode"
) -> WireEpisode:
    """Decode one entry of `Episodes.episodes`; `where` begins the text of an error."""
    spaces = spaces_of(None)
    if spaces is not None:
        return _reader_of(spaces).read(raw, wire_format, where)
    whole = _declared(_WHOLE, raw, wire_format, where, ("agents", "is_terminated", "is_truncated"))
    agents = {}
    for agent_id, member in fields(whole.agents, wire_format, f"{where}.agents").items():
        at = f"{where}.agents[{agent_id[:60]!r}]"
        spaces = spaces_of(agent_id)
        if spaces is None:
            raise BadMessageError(
                ErrorCode.UNKNOWN_ID, f"{at}: unknown agent, expected one of the environment's"
            )
        agents[agent_id] = _reader_of(spaces).read(member, wire_format, at)
    return WireEpisode(
        **_about(whole), obs=[], actions=[], rewards=np.empty(0), agents=agents,
        env_steps=whole.env_steps if isinstance(whole.env_steps, int) else None,
        unclaimed=_unclaimed(whole.unclaimed, wire_format, f"{where}.unclaimed"),
    )  # fmt: skip


_HEADER_FIELDS: list[tuple[str, Any, Any]] = [
    ("is_terminated", bool | UnsetType, UNSET),
    ("is_truncated", bool | UnsetType, UNSET),
    ("id", Id | None | UnsetType, UNSET),
    ("env", Id | None | UnsetType, UNSET),
    ("t", Count | None | UnsetType, UNSET),
    ("weights_seq_no", Count | None | UnsetType, UNSET),
]
_GROUP_FIELDS: list[tuple[str, Any, Any]] = [
    ("agents", Raw, UNSET),
    ("unclaimed", Raw, UNSET),
    ("env_steps", Count | None | UnsetType, UNSET),
]
_WHOLE = TypedDecoder(msgspec.defstruct("Whole", [*_HEADER_FIELDS, *_GROUP_FIELDS]))
_REWARDS = reader_of(gym.spaces.Box(-np.inf, np.inf, (), np.float64))
_OPTIONAL: dict[str, tuple[str, Callable[[Any, str, int], npt.NDArray[Any]]]] = {
    "logp": ("action_logp", log_probabilities),
    "dist_inputs": ("action_dist_inputs", matrix),
    "state_in": ("state_in", matrix),
    "env_t": ("env_t", times),
}
_NEEDED = ("obs", "actions", "rewards", "is_terminated", "is_truncated")


class EpisodeReader:
    """Reads episodes of one agent."""

    def __init__(self, observations: ElementReader, actions: ElementReader) -> None:
        self._obs, self._actions = observations, actions
        box = isinstance(actions.space, gym.spaces.Box)
        self._shape: tuple[int, ...] | None = actions.space.shape if box else None
        self._is_discrete = not any(isinstance(leaf, gym.spaces.Box) for leaf in leaves(actions.space))
        self._typed = TypedDecoder(*(self._declaration(wire_format) for wire_format in ("json", "msgpack")))

    def _declaration(self, wire_format: str) -> Any:
        packed = UnsetType if wire_format == "json" else PackedArray | UnsetType
        columns: list[tuple[str, Any, Any]] = [
            ("obs", getattr(self._obs, wire_format) | UnsetType, UNSET),
            ("actions", getattr(self._actions, wire_format) | UnsetType, UNSET),
            ("rewards", getattr(_REWARDS, wire_format) | UnsetType, UNSET),
            ("action_logp", NUMBERS_OR_ROWS | None | packed, UNSET),
            ("action_dist_inputs", rows_within(len(self._shape or ())) | None | packed, UNSET),
            ("state_in", ROWS | None | packed, UNSET),
            ("env_t", TIMES | None | packed, UNSET),
        ]
        return msgspec.defstruct("OneAgent", [*_HEADER_FIELDS, *columns])

    def read(self, raw: Data, wire_format: WireFormat, where: str) -> WireEpisode:
        """Return the episode, or raise `BadMessageError`."""
        found = _declared(self._typed, raw, wire_format, where, _NEEDED)
        rewards: Any = _REWARDS.column(found.rewards, f"{where}.rewards")
        actions = self._actions.column(found.actions, f"{where}.actions")
        obs = self._obs.column(found.obs, f"{where}.obs")
        steps = len(rewards)
        if len(actions) != steps or len(obs) != steps + 1:
            raise BadMessageError(
                ErrorCode.WRONG_LENGTH,
                f"{where}: {len(obs)} obs, {len(actions)} actions and {steps} rewards, expected as many rewards as "
                "actions and one obs more; end with the obs after the last action",
            )
        about = _about(found)
        acting = steps if about["terminated"] or about["truncated"] else len(obs)
        masks, space = self._obs.masks, self._actions.space
        masks.check(obs, acting, space, f"{where}.obs")
        masks.check_actions(obs, actions, space, f"{where}.actions")
        for name, (column, build) in _OPTIONAL.items():
            values = getattr(found, column)
            if name == "dist_inputs" and self._shape:
                build = partial(gaussian, shape=self._shape)
            if values is not UNSET and values is not None:
                about[name] = build(values, f"{where}.{column}", steps)
        if self._is_discrete and "logp" in about:
            refuse_positive(about["logp"], f"{where}.action_logp")
        return WireEpisode(**about, obs=obs, actions=actions, rewards=rewards)


_MAX_READERS = 1024
_readers: dict[tuple[int, int], EpisodeReader] = {}


def _reader_of(spaces: tuple[Space, Space]) -> EpisodeReader:
    observations, actions = reader_of(spaces[0]), reader_of(spaces[1], bounded=False)
    # The reader keeps both alive, so that no other objects get their ids.
    key = (id(observations), id(actions))
    reader = _readers.get(key)
    if reader is None:
        if len(_readers) >= _MAX_READERS:
            _readers.clear()
        reader = _readers[key] = EpisodeReader(observations, actions)
    return reader


def _declared(
    typed: TypedDecoder, raw: Data, wire_format: WireFormat, where: str, needed: tuple[str, ...]
) -> Any:
    """Decode an object with declared fields; all of `needed` must be there, and no key twice."""
    found = typed.read(raw, wire_format, where)
    missing = [name for name in needed if getattr(found, name) is UNSET]
    if missing:
        raise BadMessageError(
            ErrorCode.MALFORMED, f"{where}: no {' and no '.join(missing)}, expected {', '.join(needed)}"
        )
    keys = sum(value is not UNSET for value in msgspec.structs.astuple(found))
    strings = isinstance(found.id, str) + isinstance(found.env, str)
    check_keys(raw, wire_format, where, keys, strings)
    return found


def _unclaimed(raw: Raw | UnsetType, wire_format: WireFormat, where: str) -> Mapping[str, float] | None:
    if isinstance(raw, UnsetType) or is_nil(raw, wire_format):
        return None
    paid = reward(raw, wire_format, where)
    if not isinstance(paid, dict):
        raise BadMessageError(
            ErrorCode.WRONG_TYPE, f"{where}: got a number, expected an object of numbers by agent"
        )
    return paid


def _about(found: Any) -> dict[str, Any]:
    """Return the fields of the whole episode; null is the same as absent."""
    about = {"terminated": found.is_terminated, "truncated": found.is_truncated}
    for name in ("id", "env", "t", "weights_seq_no"):
        value = getattr(found, name)
        if value is not UNSET and value is not None:
            about[name] = value
    return about


_PIECE_BYTES = 16_384


_Block: TypeAlias = tuple[str, Sequence[int], Any]
"""Dtype, shape and bytes of an array; other rows have an empty dtype and are encoded lists of them."""
_FLAT_HEADER = ("id", "env", "t", "terminated", "truncated", "weights_seq_no", "unclaimed", "env_steps")
_FLAT_ARRAYS = ("rewards", "logp", "dist_inputs", "state_in", "env_t")
_ENCODER = msgspec.msgpack.Encoder()


def write_flat(episode: WireEpisode) -> Raw:
    """Encode a checked episode."""
    flat: dict[str, Any] = {name: getattr(episode, name) for name in _FLAT_HEADER}
    if episode.agents is not None:
        flat["agents"] = {name: bytes(write_flat(one)) for name, one in episode.agents.items()}
    else:
        arrays = {name: getattr(episode, name) for name in _FLAT_ARRAYS}
        flat |= {name: _block(array) for name, array in arrays.items() if array is not None}
        flat |= {"obs": _column(episode.obs), "actions": _column(episode.actions)}
    return Raw(_ENCODER.encode(flat))


def read_flat(
    raw: bytes | Raw, spaces_of: SpacesOf, agent: str | None = None
) -> Iterator[WireEpisode | None]:
    """Read an episode from `write_flat` in small steps: yield None in between, and the episode at the end."""
    flat = msgspec.msgpack.decode(raw)
    about = {name: flat[name] for name in _FLAT_HEADER}
    if "agents" in flat:
        agents: dict[str, WireEpisode] = {}
        for name, part in flat["agents"].items():
            for one in read_flat(part, spaces_of, name):
                if one is not None:
                    agents[name] = one
                yield None
        yield WireEpisode(**about, obs=[], actions=[], rewards=np.empty(0), agents=agents)
        return
    spaces = spaces_of(agent)
    assert spaces is not None
    columns: dict[str, Any] = {name: _array(flat[name]) for name in _FLAT_ARRAYS if name in flat}
    for name, space, bounded in (("obs", spaces[0], True), ("actions", spaces[1], False)):
        for column in _rows(flat[name], space, bounded):
            columns[name] = column
            if column is None:
                yield None
    yield WireEpisode(**about, **columns)


def _array(block: _Block) -> Array:
    dtype, shape, data = block
    return np.frombuffer(data, dtype).reshape(shape)


def _block(array: Array) -> _Block:
    return array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes()


def _column(column: Column) -> _Block:
    """Return a column of numbers as a block, others as lists of rows in pieces."""
    if isinstance(column, np.ndarray):
        return _block(column)
    pieces: list[bytes] = []
    rows: list[Raw] = []
    size = 0
    for row in column:
        rows.append(to_raw(row, WireFormat.MSGPACK))
        size += len(memoryview(rows[-1]))
        if size > _PIECE_BYTES:
            pieces.append(_ENCODER.encode(rows))
            rows, size = [], 0
    return "", (), [*pieces, _ENCODER.encode(rows)]


def _rows(block: _Block, space: Space, bounded: bool) -> Iterator[Column | None]:
    """Yield None for each piece of a column, and the column at the end."""
    dtype, _, pieces = block
    if dtype:
        yield _array(block)
        return
    reader = reader_of(space, bounded)
    column: list[Any] = []
    for piece in pieces:
        column.extend(reader.read_column(piece, WireFormat.MSGPACK, "translated"))
        yield None
    yield column
