"""What is looked up for the rows of a poll: which cohort answers which of them.

`menv.loop.sampler` asks for every poll; while the same agents wait, nothing is looked up again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from menv.loop.block import Block
from menv.loop.cohort import Cohort
from menv.loop.slot_table import SlotTable
from menv.segments import Column


@dataclass(slots=True)
class Layout:
    """Look-ups for the rows of one slots array, valid for one version of the slot table.

    Attributes:
        slots: [R].
        version: Of the table.
        blocks: The number of a cohort and its rows.
    """

    slots: Column
    version: int
    blocks: list[tuple[int, Block]]


def look_up(slots: Column, table: SlotTable, cohorts: list[Cohort]) -> Layout:
    """Group rows [R] by cohort and look up what their answers need."""
    numbers = table.cohorts[slots]
    first = int(numbers[0])
    if len(cohorts) == 1 or (numbers == first).all():
        blocks = [(first, _block(slots, None, table, cohorts))]
    else:
        blocks = [
            (int(number), _block(slots, np.flatnonzero(numbers == number), table, cohorts))
            for number in np.flatnonzero(np.bincount(numbers))
        ]
    return Layout(slots, table.version, blocks)


def _block(slots: Column, places: Column | None, table: SlotTable, cohorts: list[Cohort]) -> Block:
    """Return the look-ups for the rows at `places`."""
    mine = slots if places is None else slots[places]
    only = len(cohorts[int(table.cohorts[mine[0]])].policy_ids) == 1
    which: Column | int = 0
    if not only:
        which = table.policies[mine]
        # Whoever is handed the same array again may know that nothing in it has changed.
        which.flags.writeable = False
    return Block(mine, which, table.env_indices[mine], slice(0, 0), places=places)
