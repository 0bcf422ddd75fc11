"""RLlink's frames over TCP: eight ASCII digits and a body, in both directions.

Each connection handles a few bodies at a time, then others get their turn. Nothing is read from a peer that does not
read its replies, sends too fast, or has bodies waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import cast

from menv.serving.limits import MOST_BEFORE_TOKEN, Limits
from menv.serving.protocol import FEW, HEADER_BYTES, HEADERS, BadMessageError, Frames, frame
from menv.serving.transports.access import Access
from menv.serving.transports.transport import (
    FLUSH_S,
    MAX_DISCARDED,
    Arrival,
    Handler,
    Listener,
    Peer,
    SessionProtocol,
)

LINGER_S = 1.0
"""Seconds that a refused or half-closed peer has to read the last replies."""
_BACKLOG = 1024
_SLICE_BODIES = 32
"""Bodies that are handled before other connections get their turn."""
_SLICE_S = 0.0005
"""Seconds after which a slice ends in any case."""
_BODY_BYTES = 500
"""This many bytes of a body count as one more body."""
_PARSE_COST = 8
"""Parsing the bytes of one read counts as this many bodies."""


class TcpTransport(Listener):
    """Listens for RLlink clients over TCP.

    Requests are handled in their order; replies are sent as they become ready. Port 0 chooses a free one.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        # Closed connections whose last bodies are still being handled are open, too.
        self.open: dict[TcpConnection, None] = {}
        self.stopping = False
        self._server: asyncio.Server | None = None
        # Connections with many bodies handle some of them in turn, one in each round of the loop.
        self.turn = asyncio.Lock()

    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        """Bind and begin to accept; see `Transport.start`."""
        tls = access.tls()
        listening = self._bind(handler, limits, access)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: TcpConnection(self), sock=listening, ssl=tls, backlog=_BACKLOG,
            ssl_shutdown_timeout=None if tls is None else LINGER_S,
        )  # fmt: skip
        host, port = listening.getsockname()[:2]
        return host, port

    async def stop(self) -> None:
        """Close the port, then all connections, with a moment for unsent replies."""
        await self._accept_no_more()
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.open):
            connection.hang_up()
        await self._wait_for_the_end()
        for connection in list(self.open):
            connection.abort()
        await self._wait_for_the_end()
        # Some may still be in a TLS handshake.
        await self._cut_all()

    async def _wait_for_the_end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self.open:
                    await asyncio.sleep(0.005)

    def _end_slow(self, now: float) -> None:
        for connection in list(self.open):
            connection.look(now)


class TcpConnection(asyncio.Protocol):
    """One RLlink client."""

    _arrival: Arrival

    def __init__(self, listener: TcpTransport) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._session: SessionProtocol | None = None
        self._frames = Frames(listener.limits.max_body)
        self._few = min(FEW, listener.limits.max_body + 1)
        self._bodies: deque[bytes] = deque()
        self._unparsed = b""
        self._unanswered = 0
        self._ending = False
        self._discarded = 0
        self._half_closed = self._gone = False
        self._unproven = True
        # Why the connection closes after all bodies are handled; "" if the peer need not know.
        self._close_reason: str | None = None
        # Whether nothing is pending, so that the next whole body goes straight to the session.
        self._idle = False
        # The task that handles what takes longer; nothing is read meanwhile.
        self._work: asyncio.Task[None] | None = None
        # What it waits for: a body with which the session is busy, a peer that reads no replies or sends too fast.
        self._held: asyncio.Future[None] | None = None
        self._paused = False
        self._resumed = asyncio.Event()
        self._too_fast_for = 0.0
        # The loop's clock.
        self._last_active = self._paused_since = monotonic()
        # Time of the first byte of an incomplete body; set at the start, where the first body is awaited.
        self._partial_since: float | None = self._last_active

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Created once: a session recognises the connection by the identity of `reply`.
        self._reply_fn, self._close_fn = self._reply, self._close
        self._listener.open[self] = None
        arrival = self._listener.arrival(transport)
        if arrival is None or self._listener.stopping:
            # It is closed already, gives way to another connection, or comes too late.
            self.abort()
            return
        self._arrival = arrival
        arrival.begin()
        if arrival.refused:
            most = self._limits.max_connections
            self._refuse(f"too_many: {most} peers are connected, expected fewer; see Limits.max_connections")
            return
        try:
            self._session = self._listener.handler.open(
                Peer.at("tcp", transport.get_extra_info("peername")), None
            )
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """End the session after all bodies are handled."""
        self._gone, self._paused, self._idle = True, False, False
        self._resumed.set()
        if self._ending:
            if self._work is not None:
                self._work.cancel()
            self._finish()
        elif self._work is None:
            # Bodies that the peer sent before it closed are handled as always.
            self._handle()

    def data_received(self, data: bytes) -> None:
        # The usual case: one whole body, and nothing else is pending.
        size = len(data) - HEADER_BYTES
        if (
            not self._idle
            or not 0 <= size < self._few
            or not data.startswith(HEADERS[size])
            or self._session is None
        ):
            self._receive(data)
            return
        body = data[HEADER_BYTES:]
        self._last_active = now = monotonic()
        if self._arrival.bucket.wait(now):
            self._bodies.append(body)
        else:
            self._deliver(body)
            if self._held is None:
                return
        self._handle()

    def eof_received(self) -> bool:
        """The peer sends no more, but may read replies."""
        # A peer may send all requests, close its half, and read the replies. TLS connections have no halves.
        if self._ending or not self._transport.can_write_eof() or not self._is_unanswered():
            return False
        self._half_closed, self._idle = True, False
        self._arrival.kept = False
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
        return True

    def pause_writing(self) -> None:
        """The peer does not read its replies."""
        self._paused, self._idle = True, False
        self._resumed.clear()
        self._paused_since = monotonic()

    def resume_writing(self) -> None:
        """The peer reads its replies again."""
        self._paused = False
        self._resumed.set()
        if self._work is None:
            self._settle()

    # Called by the listener.

    def look(self, now: float) -> None:
        """Close the connection if the peer is too slow."""
        if self._ending or self._held is not None:
            return
        if self._paused:
            if now - self._paused_since > self._limits.idle_s:
                self.abort()
        elif self._partial_since is not None and self._work is None:
            if now - self._partial_since > self._limits.handshake_s:
                self._refuse(
                    f"too_slow: a body was not whole after {self._limits.handshake_s:g} s; see Limits.handshake_s"
                )
        elif now - self._last_active > self._limits.idle_s:
            self._refuse(f"too_slow: nothing came for {self._limits.idle_s:g} s; see Limits.idle_s")

    def hang_up(self) -> None:
        """Close the connection after all replies are sent."""
        self._ending, self._idle = True, False
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._ending, self._idle = True, False
        self._transport.abort()
        if self._gone:
            self._finish()

    def _receive(self, data: bytes) -> None:
        if self._ending or self._close_reason is not None:
            self._discard(len(data))
            return
        self._last_active = monotonic()
        self._unparsed += data
        if self._work is None:
            self._handle()

    def _is_unanswered(self) -> bool:
        return bool(self._unanswered or self._bodies or self._unparsed)

    def _handle(self) -> None:
        """Handle what has come, in a task if it takes longer than a slice."""
        if self._handle_some():
            self._settle()
        else:
            self._transport.pause_reading()
            self._idle = False
            self._work = asyncio.get_running_loop().create_task(self._handle_rest())

    async def _handle_rest(self) -> None:
        try:
            handled = False
            while not handled:
                if self._held is not None:
                    await asyncio.wait([self._held])
                    self._held, self._last_active = None, monotonic()
                elif self._paused:
                    await self._resumed.wait()
                elif self._too_fast_for:
                    await asyncio.sleep(self._too_fast_for)
                    self._too_fast_for = 0.0
                async with self._listener.turn:
                    await asyncio.sleep(0)
                    handled = self._handle_some()
        finally:
            self._work = None
        if self._partial_since is not None:
            # The peer is not late for the time in which nothing was read.
            self._partial_since = monotonic()
        self._settle()

    def _handle_some(self) -> bool:
        """Handle bodies for the time of a slice; return whether no body is left."""
        budget, now = _SLICE_BODIES, monotonic()
        until = now + _SLICE_S
        while not self._ending and (self._bodies or self._unparsed or self._held is not None):
            if self._paused or self._held is not None or budget <= 0 or now > until:
                return False
            if not self._bodies:
                budget -= _PARSE_COST
                data, self._unparsed = self._unparsed, b""
                self._bodies.extend(self._parse(data))
            elif wait := self._arrival.bucket.wait(now):
                self._too_fast_for = wait
                return False
            else:
                body = self._bodies.popleft()
                budget -= 1 + len(body) // _BODY_BYTES
                self._deliver(body)
            now = monotonic()
        return True

    def _settle(self) -> None:
        """Read on, now that all bodies are handled."""
        self._finish()
        most, session = MOST_BEFORE_TOKEN, self._session
        if session is not None and not session.admitted and self._frames.expected > most:
            self._refuse(
                f"not_allowed: a body of more than {most} bytes before the token, expected the token first"
            )
        if not self._gone:
            self._transport.resume_reading()
        busy = self._ending or self._gone or self._paused or self._unproven
        self._idle = not busy and self._partial_since is None

    def _finish(self) -> None:
        reason, self._close_reason = self._close_reason, None
        if reason:
            self._refuse(reason)
        elif reason is not None:
            self._close()
        if not self._gone:
            return
        self._listener.open.pop(self, None)
        session, self._session = self._session, None
        if session is not None:
            del self._reply_fn, self._close_fn
            try:
                session.lost()
            except Exception as fault:
                self._listener.faults.add(fault)

    def _parse(self, data: bytes) -> Sequence[bytes]:
        try:
            bodies: Sequence[bytes] = self._frames.feed(data)
        except BadMessageError as error:
            self._close_reason = f"{error.code}: {error.text}"
            bodies = self._frames.completed
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()
            return []
        if bodies:
            self._keep_place()
        if self._close_reason is not None:
            self._unparsed = b""
        elif not self._frames.pending:
            self._partial_since = None
        elif bodies or self._partial_since is None:
            self._partial_since = self._last_active
        return bodies

    def _keep_place(self) -> None:
        """Keep the place from now on, once the peer has sent a body and shown the token, if any."""
        if self._unproven and self._session is not None and self._session.admitted:
            self._unproven = False
            self._arrival.kept = True

    def _deliver(self, body: bytes) -> None:
        session = self._session
        if session is None:
            return
        self._unanswered += 1
        try:
            self._held = session.received(body, self._reply_fn, self._close_fn)
            self._keep_place()
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()

    def _reply(self, body: bytes) -> None:
        if self._ending or self._transport.is_closing():
            return
        if self._paused and self._transport.get_write_buffer_size() > self._limits.max_unsent:
            self.abort()
            return
        self._unanswered -= 1
        self._last_active = monotonic()
        self._transport.write(frame(body))
        if self._half_closed and not self._is_unanswered():
            self._transport.close()

    def _refuse(self, why: str) -> None:
        if self._ending or self._transport.is_closing():
            return
        try:
            self._transport.write(frame(self._listener.handler.refused(why)))
        except Exception as fault:
            self._listener.faults.add(fault)
        self._close()

    def _close(self) -> None:
        """Close the connection after all replies are sent.

        Closing with unread bytes would reset the connection and lose the replies. So one half is closed, and bytes
        that still come are dropped for a moment.
        """
        if self._ending:
            return
        self._ending, self._idle = True, False
        if self._gone:
            return
        self._transport.resume_reading()
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._arrival.kept = False
        try:
            self._transport.write_eof()
        except OSError:
            # Reset by the peer, which asyncio has not noticed yet.
            self._transport.abort()
            return
        rest = self._transport.get_write_buffer_size()
        linger = self._limits.handshake_s if rest else LINGER_S
        asyncio.get_running_loop().call_later(linger, self._transport.abort)

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > MAX_DISCARDED * self._limits.max_body:
            self._transport.abort()
