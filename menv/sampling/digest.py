"""A digest of a run: a 128-bit hash of all rows, to compare two runs.

The sampler adds each closed fragment; results and `menv.verify` report it. The digest is a sum of one hash per row, so
that it depends neither on the order of rows, nor on fragment boundaries, nor on the number of samplers. Policies, and
columns that learners add, do not count.

A row's hash covers its identity (seed, env index among all, agent, episode, number of the agent episode), its number in
the trajectory, and the exact bytes of observation, mask, action, reward and flags; at the end of a trajectory also the
final observation. Equal digests mean equal runs, up to a chance of about 2**-64 per pair of rows. It is not a
cryptographic hash.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from menv import rng
from menv.base_env import Column
from menv.rng import Keys
from menv.sample_batch import SampleBatch
from menv.serialization import digest as tree_digest

_MASK = (1 << 64) - 1
_HALF = np.uint64(32)
_COLUMNS = (
    SampleBatch.OBS,
    SampleBatch.ACTIONS,
    SampleBatch.REWARDS,
    SampleBatch.TERMINATEDS,
    SampleBatch.TRUNCATEDS,
    SampleBatch.T,
)
_CHANGEABLE = 7
"""The first of `HashedColumns` are columns of a batch, which callbacks may change."""
_LARGE = 160_000
"""Bytes that are hashed at once, about 2,000 rows of a small environment; smaller batches wait."""
_EXTRA = 64
"""Bytes of a row without its observation."""
_BLOCK = 1 << 14
"""Words that are hashed at once; blocks that fit into the cache take half the time."""


HashedColumns: TypeAlias = tuple[Column, ...]
"""Of N rows in S trajectory chunks [N, ...]: observation, action, mask, reward, both flags, `t`; and of each chunk
[S, ...]: length, life, episode id, next observation, its mask, and whether the environment gave no final one."""


def _hashed_columns(batch: SampleBatch) -> HashedColumns:
    """Return the part of a batch from a buffer that is hashed; arrays are shared."""
    pieces = batch.segments
    obs, actions, *others = (batch[name] for name in _COLUMNS)
    # Looking up a missing column is slow.
    mask = batch[SampleBatch.ACTION_MASK] if pieces.next_mask.shape[1] else obs[:, :0]
    return (
        obs, actions, mask, *others, pieces.lengths, pieces.life, pieces.eps_id, pieces.next_obs, pieces.next_mask,
        pieces.final_missing,
    )  # fmt: skip


class Digest:
    """The sum of the hashes of all rows so far, 128 bits.

    Attributes:
        rows: The number of rows.
    """

    def __init__(self, low: int = 0, high: int = 0, rows: int = 0) -> None:
        self._sums = (low, high)
        self.rows = rows
        # Copies of the rows of short fragments, and their size: hashing 4 rows takes as long as 400.
        self._waiting: list[HashedColumns] = []
        self._size = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self.state() == other.state()

    # Mutable.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Digest({self.hex()}, {self.rows} rows)"

    def take(self, batch: SampleBatch) -> None:
        """Add the rows of a batch from a buffer, before columns are added or changed."""
        count = batch.count
        if not count:
            return
        self.rows += count
        rows = _hashed_columns(batch)
        size = rows[0].nbytes + _EXTRA * count
        if size >= _LARGE:
            self._sum(rows)
            return
        # The fields per chunk do not change.
        own = (column.copy() for column in rows[:_CHANGEABLE])
        self._waiting.append((*own, *rows[_CHANGEABLE:]))
        self._size += size
        if self._size >= _LARGE:
            self._sum_waiting()

    def add(self, other: Digest) -> None:
        """Add the rows of another sampler of the same run."""
        low, high, rows = other.state()
        self._add(low, high)
        self.rows += rows

    def hex(self) -> str:
        """Return the sum as 32 hexadecimal digits."""
        low, high, _ = self.state()
        return f"{high:016x}{low:016x}"

    def state(self) -> tuple[int, int, int]:
        """Return the arguments of the constructor that continue this digest."""
        self._sum_waiting()
        return *self._sums, self.rows

    def _sum_waiting(self) -> None:
        by_form: dict[tuple[Any, ...], list[HashedColumns]] = {}
        for rows in self._waiting:
            form = tuple((column.shape[1:], column.dtype) for column in rows[:3])
            by_form.setdefault(form, []).append(rows)
        # Cleared first, so that an interrupt cannot count rows twice.
        self._waiting, self._size = [], 0
        for alike in by_form.values():
            self._sum(tuple(np.concatenate(columns) for columns in zip(*alike, strict=True)))

    def _sum(self, rows: HashedColumns) -> None:
        low = _row_hashes(rows)
        # The other half is another bijection of the same words, so that the sums are independent.
        high = rng.keys(low, np.zeros(1, np.int64))
        self._add(int(np.add.reduce(low)), int(np.add.reduce(high)))

    def _add(self, low: int, high: int) -> None:
        self._sums = ((self._sums[0] + low) & _MASK, (self._sums[1] + high) & _MASK)


def row_hashes(batch: SampleBatch) -> Keys:
    """Return [N] 64-bit hashes of the rows of a batch from a buffer."""
    return _row_hashes(_hashed_columns(batch))


def _row_hashes(rows: HashedColumns) -> Keys:
    obs, actions, mask, rewards, terminated, truncated, t, lengths, life, eps_id, *last = rows
    words = _hashes(obs, "obs")
    words += _hashes(actions, "actions")
    words += _hashes(rewards, "rewards")
    if mask.shape[1]:
        words += _hashes(mask, "action_mask")
    # Both are random keys; the pair is unique for each agent episode.
    words += np.repeat(rng.keys(life.view(np.uint64), eps_id), lengths)
    ends = np.cumsum(lengths) - 1
    over = np.flatnonzero((terminated | truncated)[ends])
    if len(over):
        next_obs, next_mask, missing = (column[over] for column in last)
        words[ends[over]] += _hashes(next_obs, "last obs") + _hashes(missing, "last obs missing")
        if next_mask.shape[1]:
            words[ends[over]] += _hashes(next_mask, "last mask")
    flags = (terminated.view(np.int8) << 1) | truncated.view(np.int8)
    return rng.keys(words, (t << 2) | flags)


def _hashes(column: Column, name: str) -> Keys:
    """Return a new array [N] with one word per row of a column."""
    if column.dtype == object:
        column = np.array([_word_of(value) for value in column.tolist()], np.uint64)
    words = _words(column)
    factors = _factors(name, words.shape[1])
    if words.shape[1] == 1:
        found: Keys = (words ^ (words >> _HALF))[:, 0] * factors
        return found
    step = max(1, _BLOCK // max(1, words.shape[1]))
    found = np.empty(len(words), np.uint64)
    for start in range(0, len(words), step):
        block = words[start : start + step]
        # A product only mixes bits upwards; without the shift, differences in sign bits could cancel.
        np.matmul(block ^ (block >> _HALF), factors, out=found[start : start + step])
    return found


def _words(column: Column) -> Keys:
    """Return the bytes of each row of a column as [N, W] words, padded with zeros."""
    rows = np.ascontiguousarray(column).reshape(len(column), -1)
    if rows.shape[1] == 1 and rows.dtype.itemsize < 8 and rows.dtype.kind in "biu":
        words: Keys = rows.astype(np.uint64)
        return words
    width = rows.shape[1] * rows.dtype.itemsize
    if width % 8:
        filled = np.zeros((len(rows), -(-width // 8) * 8), np.uint8)
        filled[:, :width] = rows.view(np.uint8)
        return filled.view(np.uint64)
    return rows.view(np.uint64)


@lru_cache(maxsize=256)
def _factors(name: str, width: int) -> Keys:
    """Return [W] odd random words that depend on the column."""
    key = np.full(width, rng.stable_hash(name), np.uint64)
    return rng.keys(key, np.arange(width)) | np.uint64(1)


def _word_of(value: object) -> int:
    """Return a word for an action that is not an array; an action that cannot be serialized counts by its type."""
    found = tree_digest(value)
    return rng.stable_hash(type(value).__name__) if found is None else int(found[:16], 16)
