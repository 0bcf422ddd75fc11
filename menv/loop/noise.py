"""Random numbers for the rows of a cohort, drawn ahead for blocks of env steps.

A draw depends on the agent's key and the env step alone, so it can be made before it is needed: one
block for all slots serves many polls, whoever waits in them. `menv.loop.net_cohort` calls it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from menv import draws
from menv.loop.slot_table import SlotTable
from menv.segments import Column

Drawn = npt.NDArray[np.float32]

AHEAD = 64
"""Env steps that a block of draws serves."""
# Slots of agents that do not wait are drawn for as well; with more of them drawing ahead does not pay.
_SLOTS_PER_ROW = 4
# So many numbers Python itself compares in less time than numpy takes to be asked.
_FEW = 100


class Noise:
    """Gives [R, width] numbers for rows that wait.

    Args:
        draw: `draws.uniforms`, or another of its kind.
        width: Numbers per row.
    """

    def __init__(self, draw: draws.Draw, width: int) -> None:
        self.draw = draw
        self.width = width
        self._version = -1
        self._first: Column = np.zeros(0, np.int64)
        self._block = np.zeros((0, 0, width), np.float32)
        self._misses = 0
        # The same block as rows, and what to take off for a place in them.
        self._rows = self._block.reshape(-1, width)
        self._origin = self._first

    def rows(self, slots: Column, table: SlotTable, env_steps: Column) -> Drawn:
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

    def draw_ahead(self, table: SlotTable, env_steps: Column) -> None:
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

    def _drawn_ahead(self, slots: Column, table: SlotTable, ahead: Column) -> Drawn | None:
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

    def _draw_block(self, table: SlotTable, env_steps: Column) -> None:
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
