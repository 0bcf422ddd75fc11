"""RLlink's frames over TCP: eight ASCII digits and a body, in both directions.

Each connection handles a few bodies at a time, then others get their turn. Nothing is read from a peer that does not
read its replies, sends too fast, or has bodies waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import cast

from menv.serving.limits import Limits
from menv.serving.protocol import FEW, HEADER_BYTES, HEADERS, BadMessageError, Frames, frame
from menv.serving.transports.access import Access
from menv.serving.transports.transport import (
    Arrival,
    Handler,
    Listener,
    Peer,
    SessionProtocol,
)

LINGER_S = 1.0
"""Seconds that a refused or half-closed peer has to read the last replies."""
_MAX_DISCARDED = 4
"""Bodies of `max_body` bytes that are read and dropped meanwhile, so that closing does not reset the connection."""
_FLUSH_S = 0.2
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
        self.open: dict[TcpConnection, None] = {}
        self.stopping = False
        # Closed connections whose last bodies are still being handled are open, too.
        self._server: asyncio.Server | None = None
        # Slices of work of connections with many bodies; one runs per round of the loop.
        self._slices: deque[Callable[[], None]] = deque()

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

    def queue_slice(self, run_slice: Callable[[], None]) -> None:
        """Call `run_slice` in a later round of the loop, after the slices of other connections."""
        self._slices.append(run_slice)
        if len(self._slices) == 1:
            asyncio.get_running_loop().call_soon(self._run_next_slice)

    def _run_next_slice(self) -> None:
        run_slice = self._slices.popleft()
        if self._slices:
            asyncio.get_running_loop().call_soon(self._run_next_slice)
        run_slice()

    async def _wait_for_the_end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
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
        self._throttled = self._scheduled = self._paused = self._reading_paused = False
        # Whether nothing is pending, so that the next whole body goes straight to the session.
        self._idle = False
        # Whether the session is still busy with a body.
        self._held = False
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
        if self._ending:
            self._finish()
            return
        # Bodies that the peer sent before it closed are handled in slices, as always.
        if not self._scheduled:
            self._run_slice()

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
        self._paused_since = monotonic()

    def resume_writing(self) -> None:
        """The peer reads its replies again."""
        self._paused = False
        self._resume()

    # Called by the listener.

    def look(self, now: float) -> None:
        """Close the connection if the peer is too slow."""
        if self._ending or self._held:
            return
        if self._paused:
            if now - self._paused_since > self._limits.idle_s:
                self.abort()
        elif self._partial_since is not None and self._reads():
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
        if not self._scheduled:
            self._run_slice()

    def _reads(self) -> bool:
        return not (self._throttled or self._paused or self._held or self._scheduled)

    def _is_unanswered(self) -> bool:
        return bool(self._unanswered or self._bodies or self._unparsed)

    def _run_slice(self) -> None:
        """Handle bodies until the slice is used up or the peer has to be waited for."""
        self._scheduled = False
        self._handle_some()
        if self._ending or not (self._bodies or self._unparsed or self._held):
            self._finish()
        self._update_reading()
        idle = self._reads() and not (self._bodies or self._unparsed or self._ending or self._gone)
        self._idle = idle and not self._unproven and self._partial_since is None

    def _handle_some(self) -> None:
        budget, now = _SLICE_BODIES, monotonic()
        until = now + _SLICE_S
        while (self._bodies or self._unparsed) and not (
            self._ending or self._paused or self._throttled or self._held
        ):
            if budget <= 0 or now > until:
                self._scheduled = True
                self._listener.queue_slice(self._run_slice)
                break
            if not self._bodies:
                budget -= _PARSE_COST
                data, self._unparsed = self._unparsed, b""
                self._bodies.extend(self._parse(data))
            elif not self._is_too_fast(now):
                body = self._bodies.popleft()
                budget -= 1 + len(body) // _BODY_BYTES
                self._deliver(body)
            now = monotonic()

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

    def _is_too_fast(self, now: float) -> bool:
        """Return whether the next body has to wait; the connection then pauses."""
        wait = self._arrival.bucket.wait(now)
        if not wait:
            return False
        self._throttled = True
        asyncio.get_running_loop().call_later(wait, self._end_throttle)
        return True

    def _deliver(self, body: bytes) -> None:
        session = self._session
        if session is None:
            return
        self._unanswered += 1
        try:
            held = session.received(body, self._reply_fn, self._close_fn)
            if held is not None:
                self._hold_until(held)
            self._keep_place()
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()

    def _hold_until(self, held: asyncio.Future[None]) -> None:
        self._held, self._idle = True, False
        held.add_done_callback(self._end_hold)

    def _end_hold(self, _: asyncio.Future[None]) -> None:
        self._held = False
        self._last_active = monotonic()
        self._resume()

    def _end_throttle(self) -> None:
        self._throttled = False
        self._resume()

    def _resume(self) -> None:
        if self._partial_since is not None:
            # The peer is not late for the time in which we did not read.
            self._partial_since = monotonic()
        if not self._scheduled:
            self._run_slice()

    def _update_reading(self) -> None:
        pause = not (self._ending or self._reads())
        if pause != self._reading_paused and not self._gone:
            self._reading_paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

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
        self._update_reading()
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
        if self._discarded > _MAX_DISCARDED * self._limits.max_body:
            self._transport.abort()
