"""Block: rows of one cohort that wait together.

`menv.loop.row_loop` makes them, cohorts answer them. They hold numbers and look-ups, no observations but raw ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.base_env import Columns
from menv.ledger import Rows
from menv.nested import own_copy
from menv.segments import Column


@dataclass(slots=True)
class Block:
    """Rows of one cohort that wait together, and what was looked up for them.

    Attributes:
        slots: [R].
        which: [R] policy index, or one index for all.
        env_indices: [R].
        rows: Where they are in the cohort's ledger.
        raw: R raw observations, for policies that read them.
        places: [R] their places among all rows of the poll; None means all, in order.
        taken: R actions that callers chose themselves; None where the policies are asked.
    """

    slots: Column
    which: Column | int
    env_indices: Column
    rows: Rows
    raw: Any = None
    places: Column | None = None
    taken: list[Any] | None = None

    def part(self, chosen: npt.NDArray[np.bool_]) -> Block:
        """Return the rows that a mask selects."""
        rows = np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows
        which = self.which if isinstance(self.which, int) else self.which[chosen]
        raw = None if self.raw is None else [self.raw[place] for place in np.flatnonzero(chosen).tolist()]
        taken = None
        if self.taken is not None:
            taken = [self.taken[place] for place in np.flatnonzero(chosen).tolist()]
        return Block(self.slots[chosen], which, self.env_indices[chosen], rows[chosen], raw, taken=taken)

    def of(self, values: Any) -> Any:
        """Return the block's own of the values of all rows of its poll."""
        if self.places is None:
            return values
        if isinstance(values, np.ndarray):
            return values[self.places]
        if isinstance(values, Columns):
            return values.at(self.places)
        return [values[place] for place in self.places.tolist()]

    def copy(self) -> Block:
        """Return a block with the same look-ups, to be given rows of its own."""
        return Block(self.slots, self.which, self.env_indices, self.rows, self.raw, self.places)


def split(block: Block, taken: Mapping[int, Any]) -> list[Block]:
    """Return the rows of a block that policies answer, and those whose actions, by slot, callers chose themselves."""
    mine = np.array([slot in taken for slot in block.slots.tolist()], np.bool_)
    parts = []
    if not mine.all():
        parts.append(block.part(~mine))
    if mine.any():
        own = block.part(mine)
        own.taken = [taken[slot] for slot in own.slots.tolist()]
        parts.append(own)
    return parts


def set_aside(
    blocks: Sequence[tuple[int, Block]], closed: npt.NDArray[np.bool_]
) -> tuple[list[tuple[int, Block]], list[tuple[int, Block]]]:
    """Return the rows, by cohort number, of sub-environments that are open, and those of such that are `closed` [E]."""
    opened, shut = [], []
    for number, block in blocks:
        mine = closed[block.env_indices]
        if mine.any():
            rest = block.part(mine)
            if rest.raw is not None:
                # Environments may write into the arrays of a poll before these rows are answered.
                rest.raw = [own_copy(one) for one in rest.raw]
            shut.append((number, rest))
        if not mine.all():
            opened.append((number, block.part(~mine)))
    return opened, shut


def joined(
    blocks: Sequence[tuple[int, Block]], answers: Sequence[Any], slots: Column | None
) -> tuple[Column, Any]:
    """Return the slots [R] of several blocks and R answers, in the order of the poll's rows where that is known.

    Args:
        blocks: By cohort number.
        answers: Of each block.
        slots: [R] those of the poll whose rows the blocks are; None where they are rows of several.
    """
    flat = _in_a_row(answers)
    if slots is None:
        return np.concatenate([block.slots for _, block in blocks]), flat
    order = np.argsort(np.concatenate([block.places for _, block in blocks if block.places is not None]))
    if isinstance(flat, list):
        return slots, list(itemgetter(*order.tolist())(flat))
    ordered = flat[order]
    ordered.flags.writeable = flat.flags.writeable
    return slots, ordered


def _in_a_row(answers: Sequence[Any]) -> list[Any] | Column:
    """Return the answers of all blocks as one array where they are arrays of one kind, else as a list."""
    arrays = [part for part in answers if isinstance(part, np.ndarray)]
    if len(arrays) < len(answers) or len({(part.dtype, part.shape[1:]) for part in arrays}) > 1:
        return [action for part in answers for action in part]
    flat = np.concatenate(arrays)
    flat.flags.writeable = all(part.flags.writeable for part in arrays)
    return flat
