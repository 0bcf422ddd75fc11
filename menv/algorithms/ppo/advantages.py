"""Generalized advantage estimation in numpy, over many trajectories at once.

PPO calls `compute_advantages` for every batch without advantages, and users call it in `postprocess_trajectory` when
they have a custom critic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from menv.errors import ContractError
from menv.sample_batch import SampleBatch


def compute_advantages(
    batch: SampleBatch, last_value: object = 0.0, gamma: float = 0.99, lambda_: float = 0.95
) -> SampleBatch:
    """Add `advantages` and `value_targets` to a batch that has `vf_preds` [N], and return the batch.

    Args:
        batch: One trajectory chunk, or several (S).
        last_value: Value of the state after each chunk, a number or [S]. It counts as 0 after a termination.
        gamma: Discount factor.
        lambda_: GAE lambda; 0 is one-step TD, 1 is Monte Carlo.

    Raises:
        ContractError: There are no values, or not one per timestep or chunk.
    """
    values = np.asarray(batch[SampleBatch.VF_PREDS]) if SampleBatch.VF_PREDS in batch else None
    segments, count = batch.segments, batch.count
    last = np.asarray(last_value, np.float32)
    if values is None or values.shape != (count,) or last.shape not in ((), segments.lengths.shape):
        shape = None if values is None else values.shape
        raise ContractError(
            f"compute_advantages: vf_preds of shape {shape} and last_value of shape {last.shape}, expected {(count,)} "
            f'and () or {segments.lengths.shape}; set batch["vf_preds"] to one number per timestep'
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


def gae(
    rewards: npt.NDArray[Any],
    values: npt.NDArray[Any],
    next_values: npt.NDArray[Any],
    is_last: npt.NDArray[np.bool_],
    gamma: float,
    lambda_: float,
) -> npt.NDArray[np.float32]:
    """Return GAE(gamma, lambda) advantages (Schulman et al. 2016, eq. 16).

    All arguments and the result are [N], the timesteps of trajectories one after the other. At the last timestep of a
    trajectory, where `is_last` is True, `next_values` holds the bootstrap: 0 if the trajectory terminated, V(final obs)
    if it was truncated or the fragment ended. The value targets are `advantages + values`.

    The recursion `A_t = delta_t + gamma * lambda * A_t+1` is solved for all timesteps by doubling: after k passes each
    one holds the sum of its next 2**k terms, so log2(longest trajectory) passes suffice.
    """
    # [N] in float64: the sums of a long trajectory would lose digits in float32.
    sums: npt.NDArray[np.float64] = (
        np.asarray(rewards, np.float64) + gamma * np.asarray(next_values, np.float64) - values
    )
    decay = np.where(is_last, 0.0, gamma * lambda_)
    reach = 1
    longest = _longest(is_last)
    while reach < longest:
        # Chains that leave the array have met the end of a trajectory before, so their decay is 0.
        sums[:-reach] += decay[:-reach] * sums[reach:]
        decay[:-reach] *= decay[reach:]
        reach *= 2
    # Numbers too large for float32 become infinite; learners skip and report such updates.
    with np.errstate(over="ignore"):
        return sums.astype(np.float32)


def _longest(is_last: npt.NDArray[np.bool_]) -> int:
    ends = np.flatnonzero(is_last)
    return int(np.diff(ends, prepend=-1).max()) if len(ends) else 0
