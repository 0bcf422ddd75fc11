"""Batches whose numbers say which row and piece they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np

from menv.sample_batch import InfoBuffer, Infos, SampleBatch, TrajectorySlices


def batch(lengths: list[int], first: int = 0) -> SampleBatch:
    """Return a batch whose observations count on from `first` and jump to the next hundred after each piece."""
    rows = [first + 100 * piece + step for piece, length in enumerate(lengths) for step in range(length)]
    ends = [first + 100 * piece + length + 10 for piece, length in enumerate(lengths)]
    count, pieces = len(rows), len(lengths)
    segments = TrajectorySlices(
        lengths=np.array(lengths, np.int64), next_obs=np.array(ends, np.float32).reshape(pieces, 1),
        next_mask=np.zeros((pieces, 0), np.bool_),
        final_missing=np.arange(pieces) % 2 == 1, first_t=np.zeros(pieces, np.int64), eps_id=np.arange(pieces) + first,
        agent_index=np.arange(pieces) * 2, env_id=np.arange(pieces) * 3, unroll_id=np.arange(pieces) + 50 + first,
        prev_action=np.arange(pieces) + 70, prev_reward=np.arange(pieces, dtype=np.float32) + 0.5,
        life=np.arange(pieces) + 90,
    )  # fmt: skip
    starts = np.repeat(segments.starts, segments.lengths)
    columns: dict[str, Any] = {
        "obs": np.array(rows, np.float32).reshape(count, 1), "actions": np.arange(count) % 4,
        "rewards": np.arange(count, dtype=np.float32), "terminateds": np.zeros(count, np.bool_),
        "truncateds": np.zeros(count, np.bool_), "t": np.arange(count) - starts,
    }  # fmt: skip
    columns["terminateds"][segments.ends - 1] = True
    # Every third row has no info, as if its environment had given none.
    log = InfoBuffer(count, [(0, [{"of": row} for row in rows], None)], [])
    source = np.where(np.arange(count) % 3 == 2, -1, np.arange(count))
    return SampleBatch(columns, segments, Infos((log,), source))


def values(column: Any) -> list[Any]:
    """Return a column of one number a row as a list."""
    numbers: list[Any] = np.asarray(column).reshape(len(column)).tolist()
    return numbers
