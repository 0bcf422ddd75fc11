"""Random numbers for the rows of a group, drawn ahead for blocks of env steps.

A draw depends on the agent's key and the env step alone, so it can be made before it is needed: one
block for all slots serves many polls, whoever waits in them. `menv.sampling.network_policy_group` calls it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from menv import rng
from menv.rng import Keys
from menv.trajectory_slices import Column

# SEAM menv.loop.slot_table
# Arrays by slot: which group and policy answer, whose sub-environment it is, what was earned.
#
# Only the parts of a `menv.sampling.sampler` write it. Looking up R rows is one fancy index a column; rows
# that wait
# again and again cost nothing, because their look-ups are cached by the identity of the slots array.


class SlotEntry(NamedTuple):
    """What is looked up for a slot.

    Attributes:
        group: Index of the group.
        policy: Index of the policy in its group.
        env_index: Index of the sub-environment.
        key: Key of the agent's random draws.
    """

    group: int
    policy: int
    env_index: int
    key: int


class TrajectoryTable:
    """The seats and the running returns; columns have room for more slots than there are.

    Attributes:
        groups: [slots] index of the group that answers.
        policies: [slots] index of the policy in its group.
        env_indices: [slots] index of the sub-environment.
        keys: [slots] key of the agent's random draws.
        returns: [slots] what the life has earned so far.
        version: Grows whenever a seat changes; look-ups of an older version are stale.
        used: Slots up to the highest that was ever in use.
    """

    def __init__(self) -> None:
        self.version = 0
        self.used = 0
        self.groups: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self.policies: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self.env_indices: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self.keys: Keys = np.zeros(64, np.uint64)
        self.returns: npt.NDArray[np.float64] = np.zeros(64, np.float64)
        self._seats: list[SlotEntry | None] = [None] * 64

    def entry(self, slot: int) -> SlotEntry:
        """Return what stands for a slot that is in use."""
        seat = self._seats[slot]
        assert seat is not None
        return seat

    def assign(self, slot: int, group: int, policy: int, env_index: int, key: int) -> None:
        """Begin a life on a slot; its return starts at 0."""
        while slot >= len(self._seats):
            self._grow()
        self.returns[slot] = 0.0
        # As a rule the same agent begins its next life on the slot.
        if self._seats[slot] == (group, policy, env_index, key):
            return
        seat = self._seats[slot] = SlotEntry(group, policy, env_index, key)
        self.version += 1
        self.used = max(self.used, slot + 1)
        self.groups[slot], self.policies[slot], self.env_indices[slot] = seat[:3]
        self.keys[slot] = seat.key

    def _grow(self) -> None:
        self._seats.extend([None] * len(self._seats))
        for name in ("groups", "policies", "env_indices", "keys", "returns"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros_like(column))))


Drawn = npt.NDArray[np.float32]

AHEAD = 64
"""Env steps that a block of draws serves."""
# Slots of agents that do not wait are drawn for as well; with more of them drawing ahead does not pay.
_SLOTS_PER_ROW = 4
# So many numbers Python itself compares in less time than numpy takes to be asked.
_FEW = 100


class ActionSampler:
    """Gives [R, width] numbers for rows that wait.

    Args:
        draw: `draws.uniforms`, or another of its kind.
        width: Numbers per row.
    """

    def __init__(self, draw: rng.Draw, width: int) -> None:
        self.draw = draw
        self.width = width
        self._version = -1
        self._first: Column = np.zeros(0, np.int64)
        self._block = np.zeros((0, 0, width), np.float32)
        self._misses = 0
        # The same block as rows, and what to take off for a place in them.
        self._rows = self._block.reshape(-1, width)
        self._origin = self._first

    def rows(self, slots: Column, table: TrajectoryTable, env_steps: Column) -> Drawn:
        """Return the numbers of the rows at `slots` [R].

        Args:
            slots: [R].
            table: Keys and sub-environments by slot.
            env_steps: [E] env steps since each sub-environment's start.
        """
        if self._version == table.version and len(env_steps) == len(self._first):
            drawn = self._drawn_ahead(slots, table, env_steps - self._first)
            if drawn is not None:
                return drawn
        self._misses += 1
        if self._misses == 1 or table.used > _SLOTS_PER_ROW * len(slots):
            return self.draw(table.keys[slots], env_steps[table.env_indices[slots]], self.width)
        self._draw_block(table, env_steps)
        first: Drawn = self._block[0].take(slots, axis=0)
        return first

    def draw_ahead(self, table: TrajectoryTable, env_steps: Column) -> None:
        """Draw `AHEAD` env steps of all sub-environments, from this one on; each is its own slot."""
        self._draw_block(table, env_steps)
        self._lay_out()

    def ahead(self, env_steps: Column) -> Drawn:
        """Return what `draw_ahead` has drawn for these env steps [E] of all sub-environments."""
        # One look-up in the block as rows [AHEAD * E, width], which is less work than two indices for each.
        places = env_steps * len(env_steps)
        places -= self._origin
        drawn: Drawn = self._rows.take(places, axis=0)
        return drawn

    def _drawn_ahead(self, slots: Column, table: TrajectoryTable, ahead: Column) -> Drawn | None:
        """Return what the block holds for env steps [E] after its first; None if that is not in it."""
        if len(ahead) <= _FEW:
            steps = ahead.tolist()
            first, last = min(steps), max(steps)
        else:
            first, last = int(np.minimum.reduce(ahead)), int(np.maximum.reduce(ahead))
        if first < 0 or last >= AHEAD:
            return None
        if first == last:
            together: Drawn = self._block[first].take(slots, axis=0)
            return together
        scattered: Drawn = self._block[ahead[table.env_indices[slots]], slots]
        return scattered

    def _draw_block(self, table: TrajectoryTable, env_steps: Column) -> None:
        """Draw for all slots in use, for this env step and the following ones."""
        self._misses = 0
        self._version = table.version
        self._first = env_steps.copy()
        keys, steps = table.keys[: table.used], env_steps[table.env_indices[: table.used]]
        self._block = self.draw(keys[None, :], steps[None, :] + np.arange(AHEAD)[:, None], self.width)

    def _lay_out(self) -> None:
        count = len(self._first)
        self._rows = self._block.reshape(-1, self.width)
        self._origin = self._first * count - np.arange(count)
