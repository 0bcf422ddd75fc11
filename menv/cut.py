"""The rows of a fragment, sorted into trajectories.

`menv.ledger` calls it when a fragment closes. Pure functions of arrays: a stable sort by slot, the
ends found by binary search, rewards moved from the row they came in with to the row that earned them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]


class RowEnd(NamedTuple):
    """The end of the trajectory that had `slot` when there were `row` rows.

    Attributes:
        slot: The slot.
        row: Number of rows written before the end.
        reward: Earned since the trajectory's last row.
        terminated: True if the environment's own rules ended it.
        truncated: True if it was cut short.
        final_obs: The raw final observation, None if there is none.
    """

    slot: int
    row: int
    reward: float
    terminated: bool
    truncated: bool
    final_obs: Any


@dataclass(slots=True)
class Cut:
    """N rows in S trajectories.

    Attributes:
        order: [N] row indices, trajectory after trajectory by slot, each in time.
        starts: [S] position of each trajectory's first row in `order`.
        lengths: [S] rows of each trajectory.
        held: [S] True where the trajectory lives on, so that its last row is not complete.
        ends: The ends, in the order of the trajectories that they belong to.
        end_segments: Index of the trajectory of each end.
    """

    order: Column
    starts: Column
    lengths: Column
    held: Column
    ends: list[RowEnd]
    end_segments: Column

    @property
    def last(self) -> Column:
        """[S] position of each trajectory's last row in `order`."""
        return self.starts + self.lengths - 1

    def released(self) -> Column:
        """Return [N] True for rows whose reward is complete, in the sorted order."""
        mask = np.ones(len(self.order), np.bool_)
        mask[self.last[self.held]] = False
        return mask

    def rewards(self, income: Column, fresh: Column) -> Column:
        """Return [N] what each row's action earned, in the sorted order.

        Args:
            income: [N] what came in with each row, in the order of writing.
            fresh: [S] True where the first row begins a trajectory; what came in before the first
                action joins that action's row.
        """
        came = income[self.order]
        earned = np.empty_like(came)
        earned[:-1] = came[1:]
        earned[self.last] = 0.0
        earned[self.last[self.end_segments]] = [end.reward for end in self.ends]
        first = self.starts[fresh]
        earned[first] += came[first]
        return earned

    def flags(self) -> tuple[Column, Column]:
        """Return [N] terminateds and [N] truncateds, in the sorted order."""
        terminateds = np.zeros(len(self.order), np.bool_)
        truncateds = np.zeros(len(self.order), np.bool_)
        at = self.last[self.end_segments]
        terminateds[at] = [end.terminated for end in self.ends]
        truncateds[at] = [end.truncated for end in self.ends]
        return terminateds, truncateds

    def steps(self, first: Column) -> Column:
        """Return [N] each row's index within its trajectory, whose first row here has index `first` [S]."""
        steps: Column = np.arange(len(self.order)) + np.repeat(first - self.starts, self.lengths)
        return steps


def cut(slots: Column, ends: Sequence[RowEnd]) -> Cut:
    """Sort rows into trajectories.

    Args:
        slots: [N] slot of each row, in the order of writing.
        ends: Every end since the last cut; each has a row of its trajectory before it.
    """
    n = len(slots)
    # numpy sorts 16-bit integers by radix, several times as fast as wider ones.
    small = slots.astype(np.uint16) if n and slots.max() < 1 << 16 else slots
    order = np.argsort(small, kind="stable")
    by_slot = slots[order].astype(np.int64)
    place = by_slot * (n + 1) + order
    wanted = np.array([end.slot * (n + 1) + end.row for end in ends], np.int64)
    at = np.searchsorted(place, wanted) - 1
    is_end = np.zeros(n, np.bool_)
    is_end[at] = True
    is_last = is_end.copy()
    is_last[:-1] |= by_slot[1:] != by_slot[:-1]
    if n:
        is_last[-1] = True
    last = np.flatnonzero(is_last)
    starts = np.concatenate(([0], last[:-1] + 1)) if n else last
    by_place = np.argsort(at, kind="stable")
    return Cut(
        order, starts, last + 1 - starts, ~is_end[last],
        [ends[i] for i in by_place], np.searchsorted(last, at[by_place]),
    )  # fmt: skip
