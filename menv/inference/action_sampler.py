"""ActionSampler: the random numbers that actions are sampled with, generated ahead for blocks of env steps.

They depend on the agent's key and the env step alone, so they can be generated before they are needed: one block for
all slots serves many polls, whichever agents wait in them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from menv import rng
from menv.base_env import Column
from menv.rng import Keys

Noise = npt.NDArray[np.float32]

AHEAD = 64
"""Env steps that a block serves."""
# A block also covers slots of agents that do not wait; with more of them a block costs more than it saves.
_SLOTS_PER_ROW = 4
# Python finds the smallest of so few numbers faster than numpy.
_FEW = 100


class ActionSampler:
    """Gives [R, width] random numbers to R rows; `draw` is `rng.uniforms` or another function like it."""

    def __init__(self, draw: rng.Draw, width: int) -> None:
        self._draw = draw
        self._width = width
        self._version = -1
        self._first: Column = np.zeros(0, np.int64)
        self._block = np.zeros((0, 0, width), np.float32)
        self._misses = 0
        # The same block as rows, and what to subtract from an index into them.
        self._rows = self._block.reshape(-1, width)
        self._origin = self._first

    def rows(self, slots: Column, table: TrajectoryTable, env_steps: Column) -> Noise:
        """Return the numbers of the rows at `slots` [R], given [E] env steps since each sub-environment's start."""
        if self._version == table.version and len(env_steps) == len(self._first):
            ahead = env_steps - self._first
            if len(ahead) <= _FEW:
                steps = ahead.tolist()
                first, last = min(steps), max(steps)
            else:
                first, last = int(np.minimum.reduce(ahead)), int(np.maximum.reduce(ahead))
            if first >= 0 and last < AHEAD:
                if first == last:
                    together: Noise = self._block[first].take(slots, axis=0)
                    return together
                scattered: Noise = self._block[ahead[table.env_indices[slots]], slots]
                return scattered
        self._misses += 1
        if self._misses == 1 or table.used > _SLOTS_PER_ROW * len(slots):
            return self._draw(table.keys[slots], env_steps[table.env_indices[slots]], self._width)
        self._draw_block(table, env_steps)
        fresh: Noise = self._block[0].take(slots, axis=0)
        return fresh

    def draw_ahead(self, table: TrajectoryTable, env_steps: Column) -> None:
        """Generate a block of `AHEAD` env steps for all sub-environments, from this one on; each is its own slot."""
        self._draw_block(table, env_steps)
        count = len(self._first)
        self._rows = self._block.reshape(-1, self._width)
        self._origin = self._first * count - np.arange(count)

    def ahead(self, env_steps: Column) -> Noise:
        """Return the numbers of `draw_ahead` for these env steps [E] of all sub-environments."""
        # One look-up in the block as rows [AHEAD * E, width], which is less work than two indices for each.
        places = env_steps * len(env_steps)
        places -= self._origin
        found: Noise = self._rows.take(places, axis=0)
        return found

    def _draw_block(self, table: TrajectoryTable, env_steps: Column) -> None:
        self._misses = 0
        self._version = table.version
        self._first = env_steps.copy()
        keys, steps = table.keys[: table.used], env_steps[table.env_indices[: table.used]]
        self._block = self._draw(keys[None, :], steps[None, :] + np.arange(AHEAD)[:, None], self._width)


class SlotEntry(NamedTuple):
    """Index of the policy group, of the policy in it, of the sub-environment, and key of the agent's random numbers."""

    group: int
    policy: int
    env_index: int
    key: int


class TrajectoryTable:
    """The entries as columns, which have room for more slots than are in use.

    Attributes:
        groups: [slots] index of the policy group.
        policies: [slots] index of the policy in its group.
        env_indices: [slots] index of the sub-environment.
        keys: [slots] key of the agent's random numbers.
        returns: [slots] return of the agent episode so far.
        version: Grows whenever an entry changes; look-ups of an older version are stale.
        used: Slots up to the highest that was ever in use.
    """

    def __init__(self) -> None:
        self.version = 0
        self.used = 0
        self.groups: Column = np.zeros(64, np.int64)
        self.policies: Column = np.zeros(64, np.int64)
        self.env_indices: Column = np.zeros(64, np.int64)
        self.keys: Keys = np.zeros(64, np.uint64)
        self.returns: npt.NDArray[np.float64] = np.zeros(64, np.float64)
        self._entries: list[SlotEntry | None] = [None] * 64

    def entry(self, slot: int) -> SlotEntry:
        """Return the entry of a slot that is in use."""
        entry = self._entries[slot]
        assert entry is not None
        return entry

    def assign(self, slot: int, group: int, policy: int, env_index: int, key: int) -> None:
        """Begin an agent episode on a slot; its return starts at 0."""
        while slot >= len(self._entries):
            self._grow()
        self.returns[slot] = 0.0
        # As a rule the same agent begins its next episode on the slot.
        if self._entries[slot] == (group, policy, env_index, key):
            return
        self._entries[slot] = SlotEntry(group, policy, env_index, key)
        self.version += 1
        self.used = max(self.used, slot + 1)
        self.groups[slot], self.policies[slot], self.env_indices[slot] = group, policy, env_index
        self.keys[slot] = key

    def _grow(self) -> None:
        self._entries.extend([None] * len(self._entries))
        for name in ("groups", "policies", "env_indices", "keys", "returns"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros_like(column))))
