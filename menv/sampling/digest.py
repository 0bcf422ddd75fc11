"""A digest of what happened: one number for all rows of a run, to be compared with that of another run.

`menv.sampling.sampler` keeps one and shows it every fragment that it closes; results and `menv.verify` tell it. It is
a sum
of one hash a row, so that neither the order of rows counts, nor where fragments were cut, nor how many samplers shared
the sub-environments. It deliberately knows no policies, and nothing that a learner adds to a batch.

A row's hash is made of whose it is (seed, env index among all, agent, episode, life), its number in its trajectory, and
the bytes of its observation, mask, action, reward and flags; where the trajectory ended, of the last observation too.
Floats count to the last bit. Equal digests say that two runs were the same but for chance of about 2**-64 a pair of
rows; nothing here holds against somebody who wants two runs to look alike.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

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
"""Of the fields of `DigestRows`: those that are columns of a batch, which callbacks may write into."""
_LARGE = 160_000
"""Bytes that are hashed at once, 2,000 rows of a small environment; fewer wait for others."""
_BESIDE = 64
"""Of which a row takes about so many beside its observation."""
_BLOCK = 1 << 14
"""Words that are hashed at once: what fits into a processor's cache takes half the time."""


class DigestRows(NamedTuple):
    """What of a batch a digest is made of: N rows in S pieces.

    Attributes:
        obs: [N, F].
        actions: [N, ...].
        mask: [N, M], M is 0 without masks.
        rewards: [N].
        terminated: [N].
        truncated: [N].
        t: [N].
        lengths: [S] rows of each piece.
        life: [S] whose it is.
        eps_id: [S].
        next_obs: [S, F].
        next_mask: [S, M].
        missing: [S] True where no last observation was given.
    """

    obs: Column
    actions: Column
    mask: Column
    rewards: Column
    terminated: Column
    truncated: Column
    t: Column
    lengths: Column
    life: Column
    eps_id: Column
    next_obs: Column
    next_mask: Column
    missing: Column

    @classmethod
    def of(cls, batch: SampleBatch) -> DigestRows:
        """Return the rows of a batch as a buffer released it; arrays are shared."""
        pieces = batch.segments
        obs, actions, rewards, terminated, truncated, t = batch.columns(_COLUMNS)
        # Looking for a column that is not there takes longer than all the rest.
        mask = batch[SampleBatch.ACTION_MASK] if pieces.next_mask.shape[1] else obs[:, :0]
        return cls(
            obs, actions, mask, rewards, terminated, truncated, t, pieces.lengths, pieces.life, pieces.eps_id,
            pieces.next_obs, pieces.next_mask, pieces.final_missing,
        )  # fmt: skip

    @property
    def form(self) -> tuple[Any, ...]:
        """What rows have in common that can be hashed together."""
        return (
            self.obs.shape[1:],
            self.obs.dtype,
            self.actions.shape[1:],
            self.actions.dtype,
            self.mask.shape[1:],
        )


class Digest:
    """The sum of the hashes of all rows so far, 128 bits.

    Attributes:
        rows: How many they are.
    """

    def __init__(self, low: int = 0, high: int = 0, rows: int = 0) -> None:
        self._sums = (low, high)
        self.rows = rows
        # Copies of the rows of short fragments, and their size: to hash 4 takes as long as 400.
        self._waiting: list[DigestRows] = []
        self._size = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self.state() == other.state()

    # It changes with every fragment.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Digest({self.hex()}, {self.rows} rows)"

    def take(self, batch: SampleBatch) -> None:
        """Add the rows of a batch as a buffer released it, before anything is added to it or changed."""
        count = batch.count
        if not count:
            return
        self.rows += count
        rows = DigestRows.of(batch)
        size = rows.obs.nbytes + _BESIDE * count
        if size >= _LARGE:
            self._sum(rows)
            return
        # What lies around the pieces nobody changes.
        own = [column.copy() for column in rows[:_CHANGEABLE]]
        self._waiting.append(DigestRows(*own, *rows[_CHANGEABLE:]))
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

    def state(self) -> list[int]:
        """Return what the constructor takes to go on from here."""
        self._sum_waiting()
        return [*self._sums, self.rows]

    def _sum_waiting(self) -> None:
        by_form: dict[tuple[Any, ...], list[DigestRows]] = {}
        for rows in self._waiting:
            by_form.setdefault(rows.form, []).append(rows)
        # They wait no longer, whatever interrupts what follows: to count some twice would be worse than not at all.
        self._waiting, self._size = [], 0
        for alike in by_form.values():
            self._sum(DigestRows(*(np.concatenate(columns) for columns in zip(*alike, strict=True))))

    def _sum(self, rows: DigestRows) -> None:
        low = row_hashes(rows)
        # The other half is another bijection of the same words, so that their sums have nothing in common.
        high = rng.keys(low, np.zeros(1, np.int64))
        self._add(int(np.add.reduce(low)), int(np.add.reduce(high)))

    def _add(self, low: int, high: int) -> None:
        self._sums = ((self._sums[0] + low) & _MASK, (self._sums[1] + high) & _MASK)


def row_hashes(rows: DigestRows) -> Keys:
    """Return [N] 64-bit hashes of rows."""
    words = _hashes(rows.obs, "obs")
    words += _hashes(rows.actions, "actions")
    words += _hashes(rows.rewards, "rewards")
    if rows.mask.shape[1]:
        words += _hashes(rows.mask, "action_mask")
    # Both are keys already; together they are not the same for two lives.
    words += np.repeat(rng.keys(rows.life.view(np.uint64), rows.eps_id), rows.lengths)
    last = np.cumsum(rows.lengths) - 1
    over = np.flatnonzero((rows.terminated | rows.truncated)[last])
    if len(over):
        words[last[over]] += _last_hashes(rows, over)
    flags = (rows.terminated.view(np.int8) << 1) | rows.truncated.view(np.int8)
    return rng.keys(words, (rows.t << 2) | flags)


def _last_hashes(rows: DigestRows, over: Column) -> Keys:
    """Return hashes of the last observations of the pieces `over`, whose trajectories ended."""
    words = _hashes(rows.next_obs[over], "last obs") + _hashes(rows.missing[over], "last obs missing")
    if rows.next_mask.shape[1]:
        words += _hashes(rows.next_mask[over], "last mask")
    return words


def _hashes(column: Column, name: str) -> Keys:
    """Return [N] words, one for each [...] row of a column; a new array."""
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
        # A product keeps what lies above a bit that differs; without this sign bits would be lost in each other.
        np.matmul(block ^ (block >> _HALF), factors, out=found[start : start + step])
    return found


def _words(column: Column) -> Keys:
    """Return the bytes of each row of a column as [N, W] words, filled up with zeros."""
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
    """Return [W] odd random words, other ones for each column."""
    key = np.full(width, rng.stable_hash(name), np.uint64)
    return rng.keys(key, np.arange(width)) | np.uint64(1)


def _word_of(value: Any) -> int:
    """Return a word for an action that is no array; one that no file could hold counts by its type alone."""
    found = tree_digest(value)
    return rng.stable_hash(type(value).__name__) if found is None else int(found[:16], 16)
