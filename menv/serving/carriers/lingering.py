"""Lingering: the end of a run of the server's loop, in which it waits a little for others.

`Server.run` makes one and `Server.pause` begins it. It knows neither peers nor what is waited for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import monotonic

_let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class Lingering:
    """Stops a loop once nobody is waited for any more. Everything is called in the loop.

    It never sleeps: a wait of the selector takes a whole millisecond at least.

    Args:
        loop: The loop, which runs.
        look: Looks at the sockets.
        seconds: The most that it takes.
        done: Whether nobody is waited for any more; asked at the beginning and after every look at the sockets.
        last: Called at the end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        look: Callable[[], object],
        seconds: float,
        done: Callable[[], bool],
        last: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._look_at_sockets = look
        self._seconds = seconds
        self._done = done
        self._last = last
        self._until: float | None = None
        self._next: asyncio.Handle | None = None
        self._looking = False

    def begin(self) -> None:
        """Wait from now on; nothing happens if that has begun."""
        if self._until is not None:
            return
        self._until = monotonic() + self._seconds
        # A look that goes on asks when it is over.
        if not self._looking:
            if self._done():
                self._end()
            else:
                self._next = self._loop.call_soon(self.look)

    def look(self) -> None:
        """Look at the sockets; once it has begun, see whether those are there who are waited for."""
        self._looking = True
        self._look_at_sockets()
        self._looking = False
        if self._until is None:
            return
        if self._done() or monotonic() >= self._until:
            self._end()
        else:
            # Whom it waits for may need this very processor.
            _let_others_run()
            self._next = self._loop.call_soon(self.look)

    def cancel(self) -> None:
        """Look no more."""
        if self._next is not None:
            self._next.cancel()

    def _end(self) -> None:
        self._last()
        self._loop.stop()
