"""Where rows of several policies are computed in one pass through their stacked networks: in a lane for each policy.

`OnnxActing` lays them out, its runners put them there. Nothing here knows networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Which = npt.NDArray[np.int64]

# Rows of two policies lie in lanes of their own at once, if they are more than so great a part of the spare ones.
_FEW = 6
# Sorting costs as much as so many runs, and pays for rows that have come so often again.
_SORTING = 2
_STEADY = 3


@dataclass(slots=True)
class Lanes:
    """Where R rows of P policies are computed.

    Attributes:
        which: [R] the policy index of each row.
        places: [R] the place of each row among all those computed.
        depth: Places in each policy's lane; 0 where one lane of all rows is computed for everybody.
    """

    which: Which
    places: Which
    depth: int = 0

    @classmethod
    def of_all(cls, which: Which) -> Lanes:
        """Return the places of rows that are computed for everybody: there is more to compute, nothing to sort."""
        places = which * len(which)
        places += np.arange(len(which))
        return cls(which, places)

    @classmethod
    def of_own(cls, which: Which, counts: npt.NDArray[np.int64]) -> Lanes:
        """Return lanes that hold their own policy's rows each, of which there are `counts` [P]."""
        depth = depth_for(counts)
        order = np.argsort(which, kind="stable")
        ahead = np.arange(len(counts)) * depth - (np.cumsum(counts) - counts)
        places = np.empty(len(which), np.int64)
        places[order] = np.arange(len(which)) + np.repeat(ahead, counts)
        return cls(which, places, depth)

    @classmethod
    def of_two(cls, which: Which) -> Lanes | None:
        """Return lanes of the rows of two policies, None where there is a row of another; nothing is sorted."""
        rows, own = len(which), which.nonzero()[0]
        seconds, before = len(own), which.cumsum()
        # Whole numbers other than 0 of which so many have that sum, and that sum of squares, are all 1.
        if before.item(-1) != seconds or which.dot(which) != seconds:
            return None
        depth = depth_for(np.array((rows - seconds, seconds)))
        places = np.arange(rows) - before
        places[own] = np.arange(depth, depth + seconds)
        return cls(which, places, depth)

    def put(self, rows: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
        """Copy rows [R, N] into the lanes [P, depth, N], where other places keep what they hold, or [1, R, N]."""
        if self.depth:
            into.reshape(-1, rows.shape[1])[self.places] = rows
        else:
            into[...] = rows

    def spread(self, rows: npt.NDArray[Any], policies: int) -> npt.NDArray[Any]:
        """Return rows [R, N] in new lanes [P, depth, N], zeros elsewhere, or as [1, R, N]."""
        if not self.depth:
            return rows[None]
        lanes = np.zeros((policies, self.depth, rows.shape[1]), rows.dtype)
        self.put(rows, lanes)
        return lanes


def depth_for(counts: npt.NDArray[np.int64]) -> int:
    """Return how deep lanes are of which the fullest holds that many rows.

    In steps of an eighth to a quarter, so that numbers that vary a little do not call for buffers of their own each.
    """
    # Batches of one row are rounded differently.
    most = max(int(np.maximum.reduce(counts)), 2)
    step = 1 << max(0, most.bit_length() - 3)
    return -(-most // step) * step


class LanePlan:
    """Decides where rows are computed, by what it costs.

    Args:
        policies: P.
        spare_rows: Rows that cost as much as a run of one policy more; 0 where networks cannot be stacked.
    """

    def __init__(self, policies: int, spare_rows: int) -> None:
        self._policies = policies
        self._spare_rows = spare_rows
        # The rows of the last call, how often they came one after the other, and what came of it.
        self._which = np.zeros(0, np.int64)
        self._times = 0
        self._lanes: Lanes | None = None

    def lanes_of(self, which: Which) -> Lanes | None:
        """Return where rows of several policies are computed together; None where a run for each costs less.

        Rows whose like does not come again and again are not sorted unless they are many. That it does is known of an
        array that nobody can write, such as `menv.loop.layouts` hands over while the same agents wait.
        """
        if which is self._which and not which.flags.writeable:
            self._times += 1
            if self._times == _STEADY:
                self._lanes = self._sorted(which, steady=True)
            return self._lanes
        self._which, self._times = which, 0
        if self._policies == 2 and _FEW * len(which) > self._spare_rows:
            self._lanes = self._of_two(which)
            if self._lanes is not None:
                return self._lanes
        few = (self._policies - 1) * len(which) <= self._spare_rows
        self._lanes = None if few else self._sorted(which, steady=False)
        # Everybody computes all rows, where that costs less than to sort them, or than a run for each.
        if few or (self._lanes is None and self._all_pay(which)):
            self._lanes = Lanes.of_all(which)
        return self._lanes

    def _all_pay(self, which: Which) -> bool:
        """Return whether everybody computes all rows for less than a run of each policy that has some would cost.

        Most policies may have none: past versions of one that learns, or those that were removed.
        """
        rows = len(which)
        if rows > self._spare_rows:
            return False
        runs = len(set(which.tolist())) - 1 + _SORTING
        return (self._policies - 1) * rows <= self._spare_rows * runs

    def _of_two(self, which: Which) -> Lanes | None:
        """Return lanes of the rows of two policies, None where something else costs less."""
        # With more rows the lanes cost more than another run, however well they are filled.
        if len(which) > 4 * self._spare_rows:
            return None
        lanes = Lanes.of_two(which)
        if lanes is None:
            return None
        return lanes if self._spare(which, lanes.depth) <= min(len(which), self._spare_rows) else None

    def _spare(self, which: Which, depth: int) -> int:
        """Return what lanes so deep cost more than runs of each policy, in rows; one in them costs a quarter more."""
        return self._policies * depth - len(which) + len(which) // 4

    def _sorted(self, which: Which, *, steady: bool) -> Lanes | None:
        if not self._spare_rows or not (steady or self._policies - 1 > _SORTING):
            return None
        if np.minimum.reduce(which) < 0 or np.maximum.reduce(which) >= self._policies:
            return None
        counts = np.bincount(which, minlength=self._policies)
        spare = self._spare(which, depth_for(counts))
        runs = max(1, int(np.count_nonzero(counts)) - 1) - (0 if steady else _SORTING)
        return Lanes.of_own(which, counts) if spare <= self._spare_rows * runs else None
