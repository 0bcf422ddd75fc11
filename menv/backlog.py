"""Backlog: how many bytes of what a caller said still wait for the sampler.

The switchboard counts, under its lock; a serving session looks before it takes more.
"""

from __future__ import annotations

EACH = 1_000
"""What a turn or a piece costs beside its numbers."""


class Backlog:
    """A count, and that of all callers together of which it is a part.

    Args:
        total: The count of all; None for that one itself.

    Attributes:
        waiting: Bytes that came in and have not gone out. May be read from any thread.
        total: As given.
    """

    __slots__ = ("total", "waiting")

    def __init__(self, total: Backlog | None = None) -> None:
        self.waiting = 0
        self.total = total

    def add(self, size: int) -> None:
        """Count what comes in, or with a negative size what goes out."""
        self.waiting += size
        if (total := self.total) is not None:
            total.waiting += size
