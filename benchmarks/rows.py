"""What a benchmark is: one row of the table, how much work it may do, and what it found.

`workloads` holds the rows, `report` prints them. Nothing here measures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much work a row may do."""

    repeats: int = 5
    """Times that the floor and our rate are measured, in alternation."""
    seconds: float = 0.7
    """Rough length of one such measurement."""
    quick: bool = False
    """Whether processes run once, for a moment, to see that they run at all."""

    def steps(self, per_second: float) -> int:
        """Return how many steps fill one measurement at an expected rate."""
        return max(1, int(self.seconds * per_second))

    def seeds(self, count: int) -> range:
        """Return the seeds of the processes that a row starts."""
        return range(1 if self.quick else count)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a row measured.

    Attributes:
        value: In the row's unit; infinite if the goal was not reached.
        floors: Steps per second of the bare loop, one per repeat.
        rates: Ours, or whatever each run yielded.
        note: Anything worth knowing.
    """

    value: float
    floors: Sequence[float] = ()
    rates: Sequence[float] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        name: For `--only`.
        text: The workload in words.
        unit: Of `peer`, `reach` and `aim`; "x bare" is a share of the bare loop.
        reach: What has to be met, None if the row only has an aim.
        aim: What would be fine.
        measure: Does it.
        peer: The best of today's other libraries, None if unknown.
        at_most: Whether less is better.
    """

    name: str
    text: str
    unit: str
    reach: float | None
    aim: float
    measure: Callable[[Effort], Finding]
    peer: float | None = None
    at_most: bool = False

    def met(self, value: float, bar: float | None) -> bool:
        """Return whether `value` is as good as `bar`; no bar is never met."""
        if bar is None:
            return False
        return value <= bar if self.at_most else value >= bar


def alternate(floor: Callable[[], float], ours: Callable[[], float], repeats: int) -> Finding:
    """Measure both rates in alternation, so that a machine that slows down slows down both.

    Returns:
        The ratio of the medians, ours by the floor's.
    """
    floors, rates = [], []
    for _ in range(repeats):
        floors.append(floor())
        rates.append(ours())
    return Finding(value=statistics.median(rates) / statistics.median(floors), floors=floors, rates=rates)


def median_seconds(seconds: Sequence[float]) -> Finding:
    """Return the median of several runs; a run that missed its goal counts as infinitely long."""
    missed = sum(math.isinf(one) for one in seconds)
    return Finding(
        value=statistics.median(seconds),
        rates=seconds,
        note=f"{missed} of {len(seconds)} runs missed the goal" if missed else "",
    )
