"""Advantages of rows whose values are known: for users who have a critic of their own.

A `postprocess_trajectory` calls `compute_advantages`; `menv.algorithms.ppo` calls it for rows that no user has
completed. It knows no networks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from menv.algorithms.learning.returns import gae
from menv.errors import ContractError
from menv.migration_hints import old_arguments
from menv.sample_batch import SampleBatch


@old_arguments(rollout="batch", last_r="last_value")
def compute_advantages(
    batch: SampleBatch, last_value: Any = 0.0, gamma: float = 0.99, lambda_: float = 0.95
) -> SampleBatch:
    """Add `advantages` and `value_targets` to rows that have `vf_preds` [N], and return the batch.

    Args:
        batch: One piece of a trajectory, or several (S).
        last_value: What the state after the last row of each piece is worth, a number or [S]. It counts as 0
            where the row is terminated.
        gamma: Discount of one step.
        lambda_: Weight of longer returns; 0 is one-step TD, 1 Monte Carlo.

    Raises:
        ContractError: There are no values, or not one for each row or piece.
    """
    values = np.asarray(batch[SampleBatch.VF_PREDS]) if SampleBatch.VF_PREDS in batch else None
    segments, count = batch.segments, batch.count
    last = np.asarray(last_value, np.float32)
    if values is None or values.shape != (count,) or last.shape not in ((), segments.lengths.shape):
        shape = None if values is None else values.shape
        raise ContractError(
            f"compute_advantages: vf_preds of shape {shape} and last_value of shape {last.shape}, expected {(count,)} "
            f'and () or {segments.lengths.shape}; set batch["vf_preds"] to one number a row'
        )
    ends = segments.ends - 1
    after = np.empty(count, np.float32)
    after[:-1] = values[1:]
    after[ends] = np.where(batch[SampleBatch.TERMINATEDS][ends], 0.0, last)
    is_last = np.zeros(count, np.bool_)
    is_last[ends] = True
    advantages: npt.NDArray[np.float32] = gae(
        batch[SampleBatch.REWARDS], values, after, is_last, gamma, lambda_
    )
    batch[SampleBatch.ADVANTAGES] = advantages
    batch[SampleBatch.VALUE_TARGETS] = advantages + values
    return batch
