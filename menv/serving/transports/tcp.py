"""RLlink's frames over TCP: eight digits and a body, in both directions."""

from __future__ import annotations

import asyncio
from os import write
from time import monotonic

from menv.serving.protocol import FEW, HEADER_BYTES, HEADERS, Frames, frame
from menv.serving.transports.listener import Listener
from menv.serving.transports.stream_connection import StreamConnection


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
        self._few = min(FEW, listener.limits.max_body + 1)
        # Where to write without asyncio; -1 where that cannot be, or not now.
        self._fd = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._find_way()
        self._start_talking(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._fd = -1
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        # Nearly always a peer waits for the reply to its one body, and nothing else has to be done.
        size = len(data) - HEADER_BYTES
        if (
            not self._at_rest
            or not 0 <= size < self._few
            or not data.startswith(HEADERS[size])
            or self._conversation is None
        ):
            super().data_received(data)
            return
        body = data[HEADER_BYTES:]
        self._heard = now = monotonic()
        if self._bucket.wait(now):
            self._bodies.append(body)
            self._at_rest = False
        else:
            self._owed += 1
            try:
                held = self._conversation.received(body, self._back, self._end)
                if held is not None:
                    self._wait_for(held)
            except Exception as fault:
                self._listener.faults.add(fault)
                self.abort()
        if not self._at_rest:
            self._take_turn()

    def _feed(self, data: bytes) -> list[bytes]:
        return self._frames.feed(data)

    def _completed(self) -> list[bytes]:
        return self._frames.completed

    def _in_the_middle(self) -> bool:
        return self._frames.pending > 0

    def _find_way(self) -> None:
        """Write past asyncio from now on where it reads nothing itself and nothing that it was given waits."""
        if self._reader is not None and not self._gone and not self._transport.get_write_buffer_size():
            self._fd = self._transport.get_extra_info("socket").fileno()

    def _reply(self, body: bytes) -> None:
        size = len(body)
        if not self._at_rest or self._fd < 0 or size >= FEW:
            super()._reply(body)
            return
        # Nearly always nothing waits and nothing ends, and the peer can take all of it.
        self._owed -= 1
        self._heard = monotonic()
        data = HEADERS[size] + body
        try:
            sent = write(self._fd, data)
        except OSError:
            sent = 0
        if sent < len(data):
            self._leave_rest(data[sent:])

    def _send(self, body: bytes) -> None:
        if self._fd < 0:
            self._find_way()
        data = frame(body)
        if self._fd < 0:
            self._transport.write(data)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        """Write bytes before which none wait."""
        try:
            sent = write(self._fd, data)
        except OSError:
            sent = 0
        if sent < len(data):
            self._leave_rest(data[sent:])

    def _leave_rest(self, data: bytes) -> None:
        """Have asyncio write what could not be written; it finds out why, and ends the connection if it has to."""
        self._fd = -1
        self._transport.write(data)
