"""RLlink's frames over TCP: eight ASCII digits and a body, in both directions."""

from __future__ import annotations

import asyncio
from os import write
from time import monotonic

from menv.serving.protocol import FEW, HEADER_BYTES, HEADERS, Frames, frame
from menv.serving.transports.listener import Listener
from menv.serving.transports.stream_connection import StreamConnection


class TcpTransport(Listener):
    """Listens for RLlink clients over TCP.

    Requests are handled in their order; replies are sent as they become ready. Port 0 chooses a free one.
    """

    reads_together = True

    def _connection(self) -> asyncio.Protocol:
        return _TcpConnection(self)

    def _full_response(self) -> bytes:
        return frame(self.handler.refused(self._full_reason()))


class _TcpConnection(StreamConnection):
    kind = "tcp"

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._frames = Frames(listener.limits.max_body)
        self._few = min(FEW, listener.limits.max_body + 1)
        # The socket for writes without asyncio; -1 if that is impossible now.
        self._fd = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._use_socket()
        self._open_session(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._fd = -1
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        # The usual case: one whole body, and nothing else is pending.
        size = len(data) - HEADER_BYTES
        if (
            not self._idle
            or not 0 <= size < self._few
            or not data.startswith(HEADERS[size])
            or self._session is None
        ):
            super().data_received(data)
            return
        body = data[HEADER_BYTES:]
        self._last_active = now = monotonic()
        if self._bucket.wait(now):
            self._bodies.append(body)
            self._idle = False
        else:
            self._unanswered += 1
            try:
                held = self._session.received(body, self._reply_fn, self._close_fn)
                if held is not None:
                    self._hold_until(held)
            except Exception as fault:
                self._listener.faults.add(fault)
                self.abort()
        if not self._idle:
            self._run_slice()

    def _parse(self, data: bytes) -> list[bytes]:
        return self._frames.feed(data)

    def _completed(self) -> list[bytes]:
        return self._frames.completed

    def _is_partial(self) -> bool:
        return self._frames.pending > 0

    def _use_socket(self) -> None:
        """Write to the socket without asyncio, if asyncio reads nothing and has nothing to write."""
        if self._reader is not None and not self._gone and not self._transport.get_write_buffer_size():
            self._fd = self._transport.get_extra_info("socket").fileno()

    def _reply(self, body: bytes) -> None:
        size = len(body)
        if not self._idle or self._fd < 0 or size >= FEW:
            super()._reply(body)
            return
        # The usual case: a short reply, and nothing else is pending.
        self._unanswered -= 1
        self._last_active = monotonic()
        self._write(HEADERS[size] + body)

    def _send(self, body: bytes) -> None:
        if self._fd < 0:
            self._use_socket()
        data = frame(body)
        if self._fd < 0:
            self._transport.write(data)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        """Write bytes; nothing else waits to be written."""
        try:
            sent = write(self._fd, data)
        except OSError:
            sent = 0
        if sent < len(data):
            # asyncio writes the rest, and closes the connection on an error.
            self._fd = -1
            self._transport.write(data[sent:])
