"""RLlink's frames over TCP: eight ASCII digits and a body, in both directions.

Each connection handles one body after the other. Nothing is read from a peer that does not read its replies, and little
from one whose last body is still being handled.
"""

from __future__ import annotations

import asyncio
import math
from typing import cast

from menv.serving.limits import MOST_BEFORE_TOKEN, Limits
from menv.serving.protocol import HEADER_BYTES, BadMessageError, body_bytes, frame
from menv.serving.transports.access import BACKLOG, Access
from menv.serving.transports.server import (
    LINGER_S,
    MAX_DISCARDED,
    Connection,
    Handler,
    Peer,
    SessionProtocol,
    Transport,
)

_FEW = 8
"""Bodies of one connection after which others get their turn."""
_RECEIVED_BYTES = 1 << 16
_BODY_BYTES = 4_096
"""This many bytes of a body count as one more body."""


class TcpTransport(Transport):
    """Listens for RLlink clients over TCP.

    Requests are handled in their order; replies are sent as they become ready. Port 0 chooses a free one.
    """

    _server: asyncio.Server | None = None

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        # Shared by all connections: each copies what it has received at once. A buffer for each `recv` takes longer
        # to allocate than a short message to read. asyncio's TLS reads one record after the other into slices of it,
        # which are copies unless it is a view.
        self.received = memoryview(bytearray(_RECEIVED_BYTES))

    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        """Bind and begin to accept; see `Transport.start`."""
        tls = access.tls()
        listening = self._bind(handler, limits, access)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: TcpConnection(self), sock=listening, ssl=tls, backlog=BACKLOG,
            ssl_handshake_timeout=None if tls is None else limits.handshake_s,
            ssl_shutdown_timeout=None if tls is None else LINGER_S,
        )  # fmt: skip
        host, port = listening.getsockname()[:2]
        return host, port

    async def stop(self) -> None:
        """Close the port, then all connections, with a moment for unsent replies."""
        if self._server is not None:
            self._server.close()
        await self._end_all()


class TcpConnection(Connection, asyncio.BufferedProtocol):
    """One RLlink client."""

    def __init__(self, listener: TcpTransport) -> None:
        self._listener, self._limits = listener, listener.limits
        self._session: SessionProtocol | None = None
        self._data = bytearray()
        self._in_body = False
        # Whether a body is being handled, or others have their turn.
        self._busy = False
        # Whether the peer leaves its replies unread, and whether it has left.
        self._unread = self._gone = False
        # After a refusal, how many bytes may still come.
        self._discard: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().__init__(cast(asyncio.Transport, transport))
        # Created once: a session recognises the connection by the identity of `reply`.
        self._reply_fn, self.farewell = self._reply, self._too_slow
        self._listener.add(self)
        if self.refused:
            self._refuse(self._listener.refusal)
            return
        peer = Peer.at("tcp", transport.get_extra_info("peername"))
        try:
            self._session = self._listener.handler.open(peer, None)
        except Exception as fault:
            self._fail(fault)

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True
        if not self._busy:
            self._end()

    def _end(self) -> None:
        self._listener.remove(self)
        session, self._session = self._session, None
        if session is not None:
            session.lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.received

    def buffer_updated(self, nbytes: int) -> None:
        if self._discard is None:
            self._data += self._listener.received[:nbytes]
            self._handle()
            return
        self._discard -= nbytes
        if self._discard < 0:
            self.transport.close()

    def pause_writing(self) -> None:
        self._unread = True

    def resume_writing(self) -> None:
        self._unread = False
        self._handle()

    def _handle(self) -> None:
        """Handle a few bodies; whatever has to be waited for calls this again."""
        session, count = self._session, 0
        if session is None:
            return
        try:
            while len(self._data) >= HEADER_BYTES and not (self._busy or self._unread):
                body = self._next_body(session)
                if body is None:
                    break
                work = session.received(body, self._reply_fn, self.transport.close)
                self._idle()
                count += 1 + len(body) // _BODY_BYTES
                if work is not None:
                    self._busy = True
                    if session.admitted:
                        self.expect(math.inf)
                    work.add_done_callback(self._go_on)
                elif count >= _FEW:
                    self._busy = True
                    asyncio.get_running_loop().call_soon(self._go_on)
        except BadMessageError as error:
            self._refuse(f"{error.code}: {error.text}")
        except Exception as fault:
            self._fail(fault)
        # Where nothing is read, clients wait for the system's acknowledgment before they send the next message.
        if self._unread or (self._busy and len(self._data) > _RECEIVED_BYTES):
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _go_on(self, _: asyncio.Future[None] | None = None) -> None:
        self._busy = False
        if self._gone:
            self._end()
            return
        self._idle()
        self._handle()

    def _next_body(self, session: SessionProtocol) -> bytes | None:
        """Return the next body, whose header is here, if all of it has come."""
        data = self._data
        if self.transport.is_closing():
            return None
        size = body_bytes(data[:HEADER_BYTES], self._limits.max_body)
        if size > MOST_BEFORE_TOKEN and not session.admitted:
            raise BadMessageError(
                "not_allowed",
                f"a body of more than {MOST_BEFORE_TOKEN} bytes before the token, expected the token first",
            )
        end = HEADER_BYTES + size
        if len(data) < end:
            if session.admitted and not self._in_body:
                self.expect(self._limits.handshake_s)
            self._in_body = True
            return None
        self._in_body = False
        body = bytes(data[HEADER_BYTES:end])
        del data[:end]
        return body

    def _reply(self, body: bytes) -> None:
        if self.transport.is_closing() or self._discard is not None:
            return
        if self.transport.get_write_buffer_size() > self._limits.max_unsent:
            self.transport.abort()
            return
        self.transport.write(frame(body))
        self._idle()

    def _idle(self) -> None:
        # Until it has shown the token, a peer has the time of a new connection.
        if self._session is not None and self._session.admitted and not self._in_body:
            self.expect(self._limits.idle_s)

    def _too_slow(self) -> bytes:
        why = "a body was not whole" if self._in_body else "nothing came"
        return frame(
            self._listener.handler.refused(
                f"too_slow: {why} in time; see Limits.handshake_s and Limits.idle_s"
            )
        )

    def _fail(self, fault: Exception) -> None:
        self._listener.faults.add(fault)
        self.transport.close()

    def _refuse(self, why: str) -> None:
        """Tell the peer why the connection ends.

        Closing with unread bytes would reset the connection and lose the reason, so what still comes is dropped for a
        moment.
        """
        self.transport.write(frame(self._listener.handler.refused(why)))
        self.farewell = None
        self._discard = MAX_DISCARDED * self._limits.max_body
        self._data.clear()
        self.expect(LINGER_S)
        if self.transport.can_write_eof():
            self.transport.write_eof()
