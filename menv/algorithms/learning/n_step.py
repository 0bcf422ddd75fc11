"""n-step returns over many pieces of trajectories at once, in numpy.

Learners that replay transitions call it with the rows of a batch. It does not know episodes or agents: only
where pieces end and what follows them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError
from menv.sample_batch import SampleBatch
from menv.segments import Column


class Transitions(NamedTuple):
    """What each row leads to: `returns + discounts * (worth of next_obs)` is the target of its action.

    Attributes:
        returns: [N] float32 sums of discounted rewards of up to n steps.
        discounts: [N] float32 gamma to the number of these steps, 0 where the last of them terminated.
        next_obs: [N, F] the observation after them.
        next_mask: [N, M] the choices that are allowed there, None where nothing is ever masked.
    """

    returns: npt.NDArray[np.float32]
    discounts: npt.NDArray[np.float32]
    next_obs: Column
    next_mask: Column | None


def transitions(batch: SampleBatch, gamma: float, n: int) -> Transitions:
    """Return the n-step transitions of a batch (Sutton 1988; Mnih et al. 2016, equation of section 4.2).

    A row closer than n steps to the end of its piece takes the steps that there are. At a truncation or the
    cut of a fragment the observation after the piece stands for the rest; behind a termination nothing does.

    Args:
        batch: Rows of trajectories, one piece after the other, not padded.
        gamma: Discount of one step.
        n: Steps, at least 1.

    Raises:
        ConfigError: `n` is below 1, or the batch is padded.
    """
    if n < 1 or SampleBatch.SEQ_MASK in batch:
        padded = "a padded" if SampleBatch.SEQ_MASK in batch else "an unpadded"
        raise ConfigError(
            f"n_step: n is {n} with {padded} batch, expected at least 1 and no padding; correct n_step"
        )
    segments, count = batch.segments, batch.count
    ends = np.repeat(segments.ends, segments.lengths)
    # [N] the row after the last step that a row's return counts.
    after = np.minimum(np.arange(count) + n, ends)
    steps = after - np.arange(count)
    rewards = np.asarray(batch["rewards"], np.float64)
    returns = rewards.copy()
    for lag in range(1, min(n, int(steps.max(initial=0)))):
        returns[:-lag] += np.where(steps[:-lag] > lag, gamma**lag * rewards[lag:], 0.0)
    discounts = np.where(batch["terminateds"][after - 1], 0.0, gamma**steps)
    leaves = after == ends
    piece = np.repeat(np.arange(len(segments.lengths)), segments.lengths)[leaves]
    next_mask = _next_mask(batch, after, leaves, piece)
    next_obs = _followers(batch["obs"], after, leaves, segments.next_obs[piece])
    # What is too large for float32 is infinite, and nobody learns from it; learners tell so.
    with np.errstate(over="ignore"):
        worth = returns.astype(np.float32)
    return Transitions(worth, discounts.astype(np.float32), next_obs, next_mask)


def _followers(column: Column, after: Column, leaves: Column, beyond: Column) -> Column:
    """Return the rows `after`; those that leave their piece get what lies `beyond` it."""
    found = column.take(np.minimum(after, len(column) - 1), axis=0)
    found[leaves] = beyond
    return found


def _next_mask(batch: SampleBatch, after: Column, leaves: Column, piece: Column) -> Column | None:
    masks = batch.get(SampleBatch.ACTION_MASK)
    if masks is None:
        return None
    return _followers(masks, after, leaves, batch.segments.next_mask[piece])
