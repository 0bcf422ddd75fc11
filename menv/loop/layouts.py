"""What is looked up for the rows of a poll: which cohort answers which of them.

`menv.loop.row_loop` asks for every poll; while the same agents wait, nothing is looked up again.
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
    if len(cohorts) == 1:
        return Layout(slots, table.version, [(0, _block(slots, None, table, cohorts[0]))])
    numbers = table.cohorts[slots]
    first = int(numbers[0])
    if (numbers == first).all():
        blocks = [(first, _block(slots, None, table, cohorts[first]))]
    else:
        blocks = [
            (int(number), _block(slots, np.flatnonzero(numbers == number), table, cohorts[number]))
            for number in np.flatnonzero(np.bincount(numbers))
        ]
    return Layout(slots, table.version, blocks)


def _block(slots: Column, places: Column | None, table: SlotTable, cohort: Cohort) -> Block:
    mine = slots if places is None else slots[places]
    which: Column | int = 0
    if len(cohort.policy_ids) > 1:
        which = table.policies[mine]
        # Whoever is handed the same array again may know that nothing in it has changed.
        which.flags.writeable = False
    return Block(mine, which, table.env_indices[mine], slice(0, 0), places=places)
