"""The rows of a fragment, sorted into trajectories.

`menv.ledger` calls it when a fragment closes. Pure functions of arrays: a stable sort by slot, the
ends found by binary search, rewards moved from the row they came in with to the row that earned them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from menv.segments import Column


@dataclass(slots=True)
class Cut:
    """N rows in S trajectories.

    Attributes:
        order: [N] row indices, trajectory after trajectory by slot, each in time.
        starts: [S] position of each trajectory's first row in `order`.
        lengths: [S] rows of each trajectory.
        held: [S] True where the trajectory lives on, so that its last row is not complete.
        end_order: [M] indices of the ends, in the order of the trajectories that they belong to.
        end_segments: [M] index of the trajectory of each end, in that order.
        withdrawn: [S] True where the end takes the last row with it, because nobody knows what its action led to;
            the row before leads to what it observed.
    """

    order: Column
    starts: Column
    lengths: Column
    held: Column
    end_order: Column
    end_segments: Column
    withdrawn: Column

    @property
    def incomplete(self) -> Column:
        """[S] True where the last row is not released."""
        both: Column = self.held | self.withdrawn
        return both

    @property
    def last(self) -> Column:
        """[S] position of each trajectory's last row in `order`."""
        return self.starts + self.lengths - 1

    def released(self) -> Column:
        """Return [N] True for rows whose reward is complete, in the sorted order."""
        mask = np.ones(len(self.order), np.bool_)
        mask[self.last[self.incomplete]] = False
        return mask

    def rewards(self, income: Column, fresh: Column, at_end: Column) -> Column:
        """Return [N] what each row's action earned, in the sorted order.

        Args:
            income: [N] what came in with each row, in the order of writing.
            fresh: [S] True where the first row begins a trajectory; what came in before the first
                action joins that action's row.
            at_end: [M] what came in with each end.
        """
        came = income[self.order]
        earned = np.empty_like(came)
        earned[:-1] = came[1:]
        earned[self.last] = 0.0
        earned[self.last[self.end_segments]] = at_end[self.end_order]
        first = self.starts[fresh]
        earned[first] += came[first]
        return earned

    def sources(self) -> Column:
        """Return [N] what came after each row, in the sorted order: a row index, or N + the index of an end.

        It is -1 for the last row of a trajectory that lives on.
        """
        after = np.empty_like(self.order)
        after[:-1] = self.order[1:]
        after[self.last] = -1
        after[self.last[self.end_segments]] = len(self.order) + self.end_order
        return after

    def flags(self, at_end: Column) -> Column:
        """Return [N] flags in the sorted order, False but at the ends, which have `at_end` [M]."""
        flags = np.zeros(len(self.order), np.bool_)
        # Where the last row is withdrawn the one before it is the last; without one there is none to flag.
        some = self.lengths[self.end_segments] > self.withdrawn[self.end_segments]
        owners = self.end_segments[some]
        flags[self.last[owners] - self.withdrawn[owners]] = at_end[self.end_order[some]]
        return flags

    def by_env(self, places: Column, pieces: Column, env_index: Column) -> tuple[Column, Column]:
        """Sort trajectories by sub-environment, in each by their first rows: in an order that slots have no part in.

        Args:
            places: Positions in the sorted order of rows of these trajectories, ascending.
            pieces: Indices of these trajectories, ascending.
            env_index: [S].

        Returns:
            Both in the new order.
        """
        keys = env_index[pieces] * (len(self.order) + 1) + self.order[self.starts[pieces]]
        if (keys[1:] > keys[:-1]).all():
            return places, pieces
        by_key = np.argsort(keys, kind="stable")
        rank = np.empty(len(self.starts), np.int64)
        rank[pieces[by_key]] = np.arange(len(pieces))
        return places[np.argsort(np.repeat(rank, self.lengths)[places], kind="stable")], pieces[by_key]

    def steps(self, first: Column) -> Column:
        """Return [N] each row's index within its trajectory, whose first row here has index `first` [S]."""
        steps: Column = np.arange(len(self.order)) + np.repeat(first - self.starts, self.lengths)
        return steps


def cut(slots: Column, end_slots: Column, end_rows: Column, withdrawn: Collection[int] = ()) -> Cut:
    """Sort rows into trajectories.

    Args:
        slots: [N] slot of each row, in the order of writing.
        end_slots: [M] slot of each trajectory that ended; it has a row among the N.
        end_rows: [M] number of rows that had been written then.
        withdrawn: Indices of the ends that take the last row with them.
    """
    n = len(slots)
    # numpy sorts 16-bit integers by radix, several times as fast as wider ones.
    small = slots.astype(np.uint16) if n and slots.max() < 1 << 16 else slots
    order = np.argsort(small, kind="stable")
    by_slot = slots[order].astype(np.int64)
    place = by_slot * (n + 1) + order
    at = np.searchsorted(place, end_slots * (n + 1) + end_rows) - 1
    changes = np.ones(n, np.bool_)
    changes[:-1] = by_slot[1:] != by_slot[:-1]
    return _pieces(order, changes, at, withdrawn)


def cut_frames(frames: int, num_envs: int, end_slots: Column, end_rows: Column) -> Cut:
    """Sort the rows of frames into trajectories: row number f * E + e is that of slot e in frame f.

    Args:
        frames: How many, at least 1.
        num_envs: E.
        end_slots: [M] as for `cut`.
        end_rows: [M] likewise.
    """
    order = np.arange(frames * num_envs).reshape(frames, num_envs).T.ravel()
    changes = np.zeros(len(order), np.bool_)
    changes[frames - 1 :: frames] = True
    return _pieces(order, changes, end_slots * frames + end_rows // num_envs - 1, ())


def _pieces(order: Column, changes: Column, at: Column, withdrawn: Collection[int]) -> Cut:
    """Return what is sorted already.

    Args:
        order: [N] see `Cut`.
        changes: [N] True where the next row is of another slot, or there is none; overwritten.
        at: [M] position of the last row of each trajectory that ended.
        withdrawn: See `cut`.
    """
    is_end = np.zeros(len(order), np.bool_)
    is_end[at] = True
    changes |= is_end
    last = np.flatnonzero(changes)
    starts = np.concatenate(([0], last[:-1] + 1)) if len(order) else last
    by_place = np.argsort(at, kind="stable")
    gone = np.zeros(len(last), np.bool_)
    if withdrawn:
        gone[np.searchsorted(last, at[list(withdrawn)])] = True
    return Cut(
        order, starts, last + 1 - starts, ~is_end[last],
        by_place, np.searchsorted(last, at[by_place]), gone,
    )  # fmt: skip
