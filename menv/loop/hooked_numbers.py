"""What users' hooks leave in the columns that are learned from: numbers, or an error that says who left none.

`menv.loop.hooks`, postprocessing and learners look with it, before and after a hook that somebody has written. What was
no number before is nobody's fault here: rewards of 1e38 have such advantages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from menv.errors import ContractError
from menv.loop.pieces import Piece
from menv.loop.unsound import not_finite
from menv.sample_batch import SampleBatch

_LEARNED = (
    SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS,
    SampleBatch.CRITIC_OBS, SampleBatch.VF_PREDS, SampleBatch.NEXT_VF_PREDS, SampleBatch.ADVANTAGES,
    SampleBatch.VALUE_TARGETS,
)  # fmt: skip
"""Columns that mean the same for everybody; what NaN means in a user's own is not known here."""


def broken_columns(batch: Mapping[str, Any]) -> set[str]:
    """Return the columns of a policy's rows that hold NaN or infinity, of those that are learned from."""
    return {
        name for name in _LEARNED if _of(batch, name) is not None and not_finite({name: _of(batch, name)})
    }


def broken_of_each(batches: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return the same for the rows of several policies, by policy id."""
    return {name: broken_columns(batch) for name, batch in batches.items()}


def refuse_broken(
    hook: str,
    policy_id: str,
    batch: Mapping[str, Any],
    before: Collection[str],
    pieces: Sequence[Piece] = (),
) -> None:
    """Refuse what a hook has made of a policy's rows, if a column has come to hold NaN or infinity.

    Args:
        hook: Its name.
        policy_id: Whose rows.
        batch: They, [N, ...] each column.
        before: What `broken_columns` returned before the hook was called.
        pieces: Of trajectories, one after the other; without any, no agent is named.

    Raises:
        ContractError: One has.
    """
    for name in sorted(broken_columns(batch) - set(before)):
        column = _of(batch, name)
        row = int(np.argmin(np.isfinite(column).reshape(len(column), -1).all(1)))
        what = not_finite({name: column})
        raise ContractError(
            f"policy {policy_id!r}, {hook}: column {what} in row {row} of {len(column)}{_whose(pieces, row)}, expected "
            "finite numbers; look there for a division by zero, a logarithm of 0 or an overflow"
        )


def _of(batch: Mapping[str, Any], name: str) -> Any:
    stored = batch.stored() if isinstance(batch, SampleBatch) else batch
    column = stored.get(name)
    return column if isinstance(column, np.ndarray) and column.dtype.kind == "f" else None


def _whose(pieces: Iterable[Piece], row: int) -> str:
    for piece in pieces:
        if row < piece.batch.count:
            return f", agent {piece.agent_id!r}"
        row -= piece.batch.count
    return ""
