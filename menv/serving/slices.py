"""Slices: long work of the serving thread, a few milliseconds at a time, so that everybody else is heard in between.

Sessions hand in work; it knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter

Work = Iterator[object]
Then = Callable[[Exception | None], None]

SLICE_S = 0.003
"""Seconds of work before others have their turn."""


class Slices:
    """Works of one loop, which take turns. Everything is called in the loop's thread."""

    def __init__(self) -> None:
        self._works: deque[tuple[Work, Then]] = deque()

    def run(self, work: Work, then: Then) -> None:
        """Do work: at once, as far as it goes in a slice and nobody else waits, and the rest later.

        Args:
            work: Each step of it should be short.
            then: Called when it is done, with what it raised; perhaps before this returns.
        """
        if self._works:
            self._works.append((work, then))
        elif not self._advance(work, then):
            self._works.append((work, then))
            asyncio.get_running_loop().call_soon(self._turn)

    def drop(self, work: Work) -> None:
        """Do no more of some work; nobody is told."""
        self._works = deque(one for one in self._works if one[0] is not work)

    def _turn(self) -> None:
        """Go on with what waits longest; once a round of the loop."""
        if not self._works:
            return
        work, then = self._works.popleft()
        try:
            if not self._advance(work, then):
                self._works.append((work, then))
        finally:
            if self._works:
                asyncio.get_running_loop().call_soon(self._turn)

    @staticmethod
    def _advance(work: Work, then: Then) -> bool:
        """Do a slice of some work; return whether it is done."""
        end = perf_counter() + SLICE_S
        try:
            for _ in work:
                if perf_counter() > end:
                    return False
        except Exception as error:
            then(error)
            return True
        then(None)
        return True
