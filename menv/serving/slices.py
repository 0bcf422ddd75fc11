"""Slices: long work of the loop, a few milliseconds at a time, so that everybody else is heard in between.

Sessions hand in work; it knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter

Work = Iterator[object]
Then = Callable[[Exception | None], None]

SLICE_S = 0.001
"""Seconds of work before others have their turn."""
_SHORT_S = 0.0005
"""Work that takes less is not counted."""


class Slices:
    """Works of one loop, which take turns. Everything is called in the loop's thread."""

    def __init__(self) -> None:
        self._works: deque[tuple[Work, Then]] = deque()
        # Whether this round of the loop has had its slice.
        self._tired = False

    def run(self, work: Work, then: Then) -> None:
        """Do work: at once, as far as it goes in a slice, unless this round has had its slice; the rest later.

        Args:
            work: Each step of it should be short.
            then: Called when it is done, with what it raised; perhaps before this returns.
        """
        if self._tired:
            self._works.append((work, then))
        else:
            self._go_on(work, then)

    def drop(self, work: Work) -> None:
        """Do no more of some work; nobody is told."""
        self._works = deque(one for one in self._works if one[0] is not work)

    def _turn(self) -> None:
        self._tired = False
        if self._works:
            self._go_on(*self._works.popleft())

    def _go_on(self, work: Work, then: Then) -> None:
        start = perf_counter()
        raised: Exception | None = None
        done = False
        try:
            for _ in work:
                if perf_counter() - start > SLICE_S:
                    break
            else:
                done = True
        except Exception as error:
            raised, done = error, True
        if not done:
            self._works.append((work, then))
        if self._works or perf_counter() - start > _SHORT_S:
            self._tired = True
            asyncio.get_running_loop().call_soon(self._turn)
        if done:
            then(raised)
