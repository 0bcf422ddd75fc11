"""Vacated: places that removed policies have left among those of their kind, until others may have them.

`menv.algorithms.population` keeps one. Agents whose episodes began before a policy was removed go on with it, and are
bound to its place by number: here and in workers, to their last row. Which episodes run it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from menv.loop.cohort import Cohort


@dataclass(slots=True)
class _Place:
    """One place.

    Attributes:
        cohort: Whose it is.
        index: Its number there.
        named_by: Ids of the episodes that may go on with it; None as long as nobody has looked since it was left.
    """

    cohort: Cohort
    index: int
    named_by: set[int] | None = None


class Vacated:
    """The places that nobody has."""

    def __init__(self) -> None:
        self._places: list[_Place] = []

    def __bool__(self) -> bool:
        return bool(self._places)

    def leave(self, cohort: Cohort, index: int) -> None:
        """Note that the policy number `index` of a cohort is removed."""
        self._places.append(_Place(cohort, index))

    def look(self, running: Iterable[int]) -> None:
        """Take note of the episodes that run between two fragments, when no other row is held than theirs."""
        now = set(running)
        for place in self._places:
            place.named_by = now if place.named_by is None else place.named_by & now

    def take(self, fits: Callable[[Cohort, int], bool]) -> tuple[Cohort, int] | None:
        """Return a place that another policy may have, and forget it; None where there is none.

        Args:
            fits: Whether a place of a cohort is what is looked for.
        """
        for place in self._places:
            if place.named_by is not None and not place.named_by and fits(place.cohort, place.index):
                self._places.remove(place)
                return place.cohort, place.index
        return None
