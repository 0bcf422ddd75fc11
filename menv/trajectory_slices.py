"""Segments: where the pieces of trajectories lie in a batch, and what lies around each.

`menv.sampling.rollout_buffer` makes them and `menv.sample_batch` derives columns from them. They know row numbers, not
the columns that hold the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError

Column = npt.NDArray[Any]


@dataclass(slots=True)
class TrajectorySlices:
    """The pieces of trajectories in a batch; S pieces, one row each in every array.

    Attributes:
        lengths: [S] rows.
        next_obs: [S, F] the observation after the last row: final, or that of the next row.
        next_mask: [S, M] the action mask that came with it, all True if none did; M is 0 without masks.
        final_missing: [S] True where the environment gave no final observation and `next_obs`
            repeats the last one.
        first_t: [S] index of the first row within its trajectory.
        eps_id: [S] episode id.
        agent_index: [S] number of the agent, in order of appearance in its episode.
        env_id: [S] index of the sub-environment.
        unroll_id: [S] a number that no other piece of the run has; parts of one piece share it.
        prev_action: [S, ...] the action before the first row, zeros at a trajectory's start.
        prev_reward: [S] its reward.
        life: [S] a key of whose it is and which of its lives in the episode; see `Start`.
    """

    lengths: Column
    next_obs: Column
    next_mask: Column
    final_missing: Column
    first_t: Column
    eps_id: Column
    agent_index: Column
    env_id: Column
    unroll_id: Column
    prev_action: Column
    prev_reward: Column
    life: Column

    def take(self, which: Column) -> TrajectorySlices:
        """Return the pieces selected by a mask or by indices."""
        return TrajectorySlices(*(getattr(self, name)[which] for name in self.__slots__))

    def copy(self, shallow: bool = False) -> TrajectorySlices:
        """Return the same pieces; a shallow copy shares the arrays."""
        parts = [getattr(self, name) for name in self.__slots__]
        return TrajectorySlices(*(parts if shallow else [part.copy() for part in parts]))

    @property
    def ends(self) -> Column:
        """[S] index of the row after each piece's last one."""
        return np.cumsum(self.lengths)

    @property
    def starts(self) -> Column:
        """[S] index of each piece's first row."""
        return self.ends - self.lengths

    def spread(self, name: str) -> Column:
        """Return an array of the pieces for their rows, [N, ...]."""
        return np.repeat(getattr(self, name), self.lengths, axis=0)

    def chosen(self, rows: Column, labels: Column | None = None) -> RowSelection:
        """Return the pieces that some rows make up when they are put one after the other.

        Rows that follow each other in one piece, here and there, stay in one piece.

        Args:
            rows: [M] row indices, in the new order.
            labels: [M]; rows with different labels come into different pieces.
        """
        ends = self.ends
        piece = np.searchsorted(ends, rows, "right")
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = (rows[1:] != rows[:-1] + 1) | (piece[1:] != piece[:-1])
        if labels is not None:
            begins[1:] |= labels[1:] != labels[:-1]
        at = np.flatnonzero(begins)
        until = np.append(at[1:], len(rows))[: len(at)]
        first, last, owner = rows[at], rows[until - 1], piece[at]
        parts = self.take(owner)
        whole_start, whole_end = (ends - self.lengths)[owner], ends[owner]
        parts.lengths = until - at
        parts.first_t = parts.first_t + first - whole_start
        parts.final_missing = parts.final_missing & (last == whole_end - 1)
        return RowSelection(parts, first, last, first > whole_start, last < whole_end - 1)

    def joined(self) -> TrajectorySlices:
        """Return the pieces with neighbours that are parts of one piece put together."""
        follows = np.zeros(len(self.lengths), np.bool_)
        follows[1:] = (self.first_t[:-1] + self.lengths[:-1]) == self.first_t[1:]
        for name in ("unroll_id", "eps_id", "agent_index", "env_id"):
            values = getattr(self, name)
            follows[1:] &= values[1:] == values[:-1]
        if not follows.any():
            return self
        first = np.flatnonzero(~follows)
        last = np.append(first[1:], len(follows)) - 1
        whole = self.take(first)
        whole.lengths = np.add.reduceat(self.lengths, first)
        whole.next_obs, whole.next_mask = self.next_obs[last], self.next_mask[last]
        whole.final_missing = self.final_missing[last]
        return whole

    @staticmethod
    def concat(parts: Sequence[TrajectorySlices]) -> TrajectorySlices:
        """Return the pieces of several batches, in order."""
        names = TrajectorySlices.__slots__
        return TrajectorySlices(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(slots=True)
class RowSelection:
    """Pieces that were made of chosen rows; P pieces.

    Attributes:
        segments: The pieces. Where a piece was cut, what lies around it is still that of the whole one.
        first: [P] the index that each piece's first row had.
        last: [P] the index that its last row had.
        cut_before: [P] True where rows of the piece before `first` were left out.
        cut_after: [P] True where rows of the piece after `last` were left out.
    """

    segments: TrajectorySlices
    first: Column
    last: Column
    cut_before: Column
    cut_after: Column


def given(segments: TrajectorySlices | None) -> TrajectorySlices:
    """Return the segments that a batch is made with.

    Raises:
        ConfigError: There are none.
    """
    if segments is None:
        raise ConfigError(
            "SampleBatch: columns alone, expected segments too, which say where trajectories lie; set columns of a "
            "batch that was sampled, and hand in experience of your own through an ExternalEnv (log_action)"
        )
    return segments
