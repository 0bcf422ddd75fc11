"""Episodes on their way from the translator to its server: read and checked already, and cheap to take up.

Numbers are blocks of bytes; whatever else a column holds comes in small pieces, so that nobody has to read a long
one at once. Both ends are this program: what is written here has been checked, and is not checked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from menv.serving.wire.columns import reader_of
from menv.serving.wire.dialect import Dialect
from menv.serving.wire.episodes import SpacesOf, WireEpisode
from menv.serving.wire.packed import Array, to_raw
from menv.serving.wire.space_readers import Column, Space

_PIECE_BYTES = 16_384


class _Block(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An array, or rows of something else in pieces."""

    dtype: str = ""
    shape: list[int] = []
    data: bytes = b""
    pieces: list[Raw] | None = None

    def array(self) -> Array:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class _Flat(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One `WireEpisode`."""

    id: str | None
    env: str | None
    t: int
    terminated: bool
    truncated: bool
    weights_seq_no: int | None
    rewards: _Block
    obs: _Block
    actions: _Block
    logp: _Block | None
    dist_inputs: _Block | None
    state_in: _Block | None
    env_t: _Block | None
    agents: dict[str, Raw] | None
    unclaimed: dict[str, float] | None
    env_steps: int | None


class Translated(msgspec.Struct, array_like=True, frozen=True):
    """A message with episodes.

    Attributes:
        message: Without its episodes, in msgpack.
        episodes: Each as `write_flat` has it.
    """

    message: bytes
    episodes: list[Raw]


_ABOUT = ("id", "env", "t", "terminated", "truncated", "weights_seq_no", "unclaimed", "env_steps")
_FREE = ("logp", "dist_inputs", "state_in", "env_t")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Flat)


def write_flat(episode: WireEpisode) -> Raw:
    """Return an episode as bytes."""
    agents = episode.agents
    columns: dict[str, Any] = {name: _optional(getattr(episode, name)) for name in _FREE}
    about: dict[str, Any] = {name: getattr(episode, name) for name in _ABOUT}
    flat = _Flat(
        **about,
        **columns,
        rewards=_block(episode.rewards),
        obs=_column(episode.obs),
        actions=_column(episode.actions),
        agents=None if agents is None else {name: write_flat(one) for name, one in agents.items()},
    )
    return Raw(_ENCODER.encode(flat))


def read_flat(raw: Raw, spaces_of: SpacesOf, agent: str | None = None) -> Iterator[WireEpisode | None]:
    """Read an episode in small steps.

    Args:
        raw: From `write_flat`.
        spaces_of: The spaces that it was read against before.
        agent: Whose episode it is, where there are several.

    Yields:
        None while it is read, and at last the episode.
    """
    flat = _DECODER.decode(raw)
    yield from (
        _alone(flat, spaces_of, agent) if flat.agents is None else _together(flat, flat.agents, spaces_of)
    )


def _together(flat: _Flat, parts: dict[str, Raw], spaces_of: SpacesOf) -> Iterator[WireEpisode | None]:
    agents: dict[str, WireEpisode] = {}
    for name, part in parts.items():
        for one in read_flat(part, spaces_of, name):
            if one is not None:
                agents[name] = one
            yield None
    yield WireEpisode(**_about(flat), obs=[], actions=[], rewards=np.empty(0), agents=agents)


def _alone(flat: _Flat, spaces_of: SpacesOf, agent: str | None) -> Iterator[WireEpisode | None]:
    spaces = spaces_of(agent)
    assert spaces is not None
    columns: dict[str, Any] = {name: _array(getattr(flat, name)) for name in _FREE}
    for name, space, bounded in (("obs", spaces[0], True), ("actions", spaces[1], False)):
        for column in _rows(getattr(flat, name), space, bounded):
            columns[name] = column
            if column is None:
                yield None
    yield WireEpisode(**_about(flat), **columns, rewards=flat.rewards.array())


def _about(flat: _Flat) -> dict[str, Any]:
    return {name: getattr(flat, name) for name in _ABOUT}


def _array(block: _Block | None) -> Array | None:
    return None if block is None else block.array()


def _optional(array: Array | None) -> _Block | None:
    return None if array is None else _block(array)


def _block(array: Array) -> _Block:
    return _Block(array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes())


def _column(column: Column) -> _Block:
    """Return a column of numbers as a block, others as lists of rows that are soon read."""
    if isinstance(column, np.ndarray):
        return _block(column)
    pieces: list[Raw] = []
    rows: list[Raw] = []
    size = 0
    for row in column:
        rows.append(to_raw(row, Dialect.MSGPACK))
        size += len(memoryview(rows[-1]))
        if size > _PIECE_BYTES:
            pieces.append(Raw(_ENCODER.encode(rows)))
            rows, size = [], 0
    return _Block(pieces=[*pieces, Raw(_ENCODER.encode(rows))])


def _rows(found: _Block, space: Space, bounded: bool) -> Iterator[Column | None]:
    """Yield None for each piece of a column, and at last the column."""
    if found.pieces is None:
        yield found.array()
        return
    reader = reader_of(space, bounded).columns
    column: list[Any] = []
    for piece in found.pieces:
        column.extend(reader.read(piece, Dialect.MSGPACK, "translated"))
        yield None
    yield column
