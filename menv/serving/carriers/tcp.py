"""RLlink's frames over TCP: eight digits and a body, in both directions."""

from __future__ import annotations

import asyncio

from menv.serving.carriers.listener import Listener
from menv.serving.carriers.stream_connection import StreamConnection
from menv.serving.wire.framing import Frames, frame


class TcpTransport(Listener):
    """Listens for clients that speak RLlink over TCP.

    Requests that were sent without waiting are handled in their order; replies go out as they come.

    Args:
        port: 0 takes one that is free.
    """

    reads_together = True

    def _connection(self) -> asyncio.Protocol:
        return _TcpConnection(self)

    def _full(self) -> bytes:
        return frame(self.handler.refused(self._why_full()))


class _TcpConnection(StreamConnection):
    kind = "tcp"

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._frames = Frames(listener.limits.max_body)
        self._only_body = self._frames.only

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._start_talking(None)

    def _feed(self, data: bytes) -> list[bytes]:
        return self._frames.feed(data)

    def _completed(self) -> list[bytes]:
        return self._frames.completed

    def _in_the_middle(self) -> bool:
        return self._frames.pending > 0

    def _send(self, body: bytes) -> None:
        self._write(frame(body))
