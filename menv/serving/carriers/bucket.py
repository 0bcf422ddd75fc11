"""How fast one connection may go: so many a second, with a second's worth at once."""

from __future__ import annotations


class Bucket:
    """Tells when the next one may pass. Clocks are the caller's.

    Args:
        rate: How many a second.
    """

    __slots__ = ("_booked", "_each", "_span")

    def __init__(self, rate: float) -> None:
        self._each = 1.0 / rate
        self._span = max(1.0, self._each)
        self._booked = 0.0

    def wait(self, now: float) -> float:
        """Let one pass if it may, and return 0; otherwise return in how many seconds it may.

        Args:
            now: Seconds of any clock that only goes forward.
        """
        if self._booked < now:
            # Nearly always nothing is used up.
            self._booked = now + self._each
            return 0.0
        # `_booked` is the time up to which the rate is used up: every one moves it on by its share.
        ahead = self._booked - now - self._span
        if ahead > -self._each / 2:
            return ahead + self._each
        self._booked += self._each
        return 0.0
