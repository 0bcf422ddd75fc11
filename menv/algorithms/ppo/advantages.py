"""Advantages of rows whose values are known: for users who have a critic of their own.

A `postprocess_trajectory` calls `compute_advantages`; `menv.algorithms.ppo.ppo` calls it for rows that no user has
completed. It knows no networks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError, ContractError
from menv.migration_hints import old_arguments
from menv.sample_batch import SampleBatch

# SEAM menv.algorithms.learning.returns
# Generalised advantage estimation over many trajectories at once, in numpy.
#
# A closed fragment calls it with the concatenated rows of a policy. It does not know episodes or agents:
# only where a trajectory's rows end and what the state after each row is worth.


def gae(
    rewards: npt.NDArray[Any],
    values: npt.NDArray[Any],
    next_values: npt.NDArray[Any],
    is_last: npt.NDArray[np.bool_],
    gamma: float,
    lambda_: float,
) -> npt.NDArray[np.float32]:
    """Return GAE(gamma, lambda) advantages (Schulman et al. 2016, eq. 16).

    The recursion `A_t = delta_t + gamma * lambda * A_t+1` is solved for all rows by doubling: after
    k passes each row holds the sum of its next 2**k terms, so log2(longest trajectory) passes suffice.

    Args:
        rewards: [N] of trajectories one after the other.
        values: [N] V(obs) of each row.
        next_values: [N] V of the state after each row. At the last row of a trajectory that is the
            bootstrap: 0 if it was terminated, V(final obs) if it was truncated or cut.
        is_last: [N] True at the last row of each trajectory.
        gamma: Discount of one step.
        lambda_: Weight of longer returns; 0 is one-step TD, 1 Monte Carlo.

    Returns:
        [N]; the value targets are `advantages + values`.

    Raises:
        ConfigError: Lengths differ, or the last row does not end a trajectory.
    """
    lengths = [len(rewards), len(values), len(next_values), len(is_last)]
    if len(set(lengths)) > 1 or (lengths[0] and not is_last[-1]):
        raise ConfigError(
            f"gae: {lengths} rewards, values, next_values and flags, expected equal numbers and a last row "
            "that ends its trajectory; mark the row where a fragment was cut as last"
        )
    # [N] in float64: the sums of a long trajectory would lose digits in float32.
    sums: npt.NDArray[np.float64] = (
        np.asarray(rewards, np.float64) + gamma * np.asarray(next_values, np.float64) - values
    )
    decay = np.where(is_last, 0.0, gamma * lambda_)
    reach = 1
    longest = _longest(is_last)
    while reach < longest:
        # A row whose chain leaves the array has met its end before, so its decay is 0 already.
        sums[:-reach] += decay[:-reach] * sums[reach:]
        decay[:-reach] *= decay[reach:]
        reach *= 2
    # What is too large for float32 is infinite, and nobody learns from it; learners tell so.
    with np.errstate(over="ignore"):
        return sums.astype(np.float32)


def _longest(is_last: npt.NDArray[np.bool_]) -> int:
    ends = np.flatnonzero(is_last)
    return int(np.diff(ends, prepend=-1).max()) if len(ends) else 0


@old_arguments("leave it out; values are always used", rollout="batch", last_r="last_value")
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
