"""Exceptions of ours that cost a peer its connection: counted, and the last few kept to be looked at."""

from __future__ import annotations

import traceback
from collections import deque

_KEPT = 10


class Faults:
    """What went wrong on our side. Written in the serving thread, read from any."""

    def __init__(self) -> None:
        self.count = 0
        """How many there were."""
        self._kept: deque[BaseException] = deque(maxlen=_KEPT)

    @property
    def kept(self) -> list[BaseException]:
        """The last ten exceptions, oldest first, with their tracebacks."""
        return list(self._kept)

    def add(self, error: BaseException) -> None:
        """Note one."""
        # The frames' variables hold connections and whole bodies, which must not live on here.
        traceback.clear_frames(error.__traceback__)
        self.count += 1
        self._kept.append(error)
