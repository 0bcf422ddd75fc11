"""Sequences: pieces of trajectories of limited length, for learning through time.

Learners of recurrent policies call it. A sequence never crosses an episode, a life or the cut of a fragment, because
pieces do not; its rows are given as indices, so that any column can be laid out in sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from menv.base_env import Column
from menv.sample_batch import SampleBatch


class Sequences(NamedTuple):
    """B sequences of at most T rows.

    Attributes:
        rows: [B, T] indices of rows; behind the end of a shorter sequence its last row again.
        valid: [B, T] False behind the end.
    """

    rows: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """[B] index of each sequence's first row."""
        return self.rows[:, 0]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[B] rows."""
        lengths: npt.NDArray[np.int64] = np.count_nonzero(self.valid, axis=1)
        return lengths


def sequences(lengths: Column, most: int, width: int | None = None) -> Sequences:
    """Cut pieces into sequences.

    Args:
        lengths: [S] rows of each piece; the pieces follow each other.
        most: Most rows of a sequence; all but the last sequence of a piece have this many.
        width: T, at least `most`; None takes the length of the longest.
    """
    parts = -(-lengths // most)
    piece = np.repeat(np.arange(len(lengths)), parts)
    number = np.arange(len(piece)) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = (np.cumsum(lengths) - lengths)[piece] + number * most
    own = np.minimum(lengths[piece] - number * most, most)
    return sequences_at(starts, own, int(own.max(initial=0)) if width is None else width)


def sequences_at(starts: Column, lengths: Column, width: int) -> Sequences:
    """Return the sequences of T = `width` that begin at rows [B] and have so many rows [B]."""
    steps = np.arange(width)
    return Sequences(starts[:, None] + np.minimum(steps, lengths[:, None] - 1), steps < lengths[:, None])


def state_before(columns: Mapping[str, Any], rows: Column | slice = slice(None)) -> npt.NDArray[np.float32]:
    """Return the [M, S] recurrent state before some rows, from the columns `state_in_0` and so on."""
    parts: list[Column] = []
    while (name := SampleBatch.STATE_IN.format(len(parts))) in columns:
        parts.append(columns[name][rows])
    state: npt.NDArray[np.float32] = np.concatenate(parts, 1)
    return state
