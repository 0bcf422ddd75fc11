"""Pace: how slowly an answer may come. A socket's own timeout begins anew with every byte, and alone would never bind.

Each connection of a client makes one for an answer that does not come at once. It knows no protocol.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

_SLOWEST = 1000
"""Bytes a second; an answer that comes faster may take longer than the timeout."""


class Pace:
    """Bounds the time of one answer: the timeout, and a second more for every 1,000 bytes that have come.

    Args:
        timeout: Seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._until = time.monotonic() + timeout

    def took(self, count: int) -> None:
        """Note that bytes have come, and that more are waited for.

        Raises:
            ConnectionError: It takes too long.
        """
        self._until += count / _SLOWEST
        if time.monotonic() > self._until:
            raise ConnectionAbortedError("no answer in time")


class PacedResponse(http.client.HTTPResponse):
    """A response, also its headers, that keeps pace within the timeout of its socket."""

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None) -> None:
        super().__init__(sock, debuglevel, method)
        timeout = sock.gettimeout()
        assert timeout is not None
        self.fp = io.BufferedReader(_PacedReader(self.fp.detach(), Pace(timeout)))


class _PacedReader(io.RawIOBase):
    """Reads what another reader reads, and closes it."""

    def __init__(self, inner: io.RawIOBase, pace: Pace) -> None:
        self._inner, self._pace = inner, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._inner.readinto(buffer)
        self._pace.took(count or 0)
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()
