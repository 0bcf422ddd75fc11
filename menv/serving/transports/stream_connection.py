"""`StreamConnection`: a connection that carries a stream of bodies; TCP and WebSocket derive from it.

Each connection handles a few bodies at a time, then others get their turn. Nothing is read from a peer that does not
read its replies, sends too fast, or has bodies waiting.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import cast

from menv.serving.codec import BadMessageError
from menv.serving.limits import TokenBucket
from menv.serving.transports.listener import LINGER_S, MAX_DISCARDED, Listener, close_half
from menv.serving.transports.transport import Peer, SessionProtocol

_SLICE_BODIES = 32
"""Bodies that are handled before other connections get their turn."""
_SLICE_S = 0.0005
"""Seconds after which a slice ends in any case."""
_BODY_BYTES = 500
"""This many bytes of a body count as one more body."""
_PARSE_COST = 8
"""Parsing bytes counts as this many bodies."""


class StreamConnection(asyncio.Protocol):
    """A connection.

    Attributes:
        kind: `Peer.transport`.
        slice_bytes: Most bytes that are parsed at once.
    """

    kind = ""
    slice_bytes = 65_536

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._session: SessionProtocol | None = None
        self._bodies: deque[bytes] = deque()
        # `_unparsed` is parsed up to `_parsed_to`.
        self._unparsed, self._parsed_to = b"", 0
        self._bucket = TokenBucket(listener.limits.max_rate)
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

    @abstractmethod
    def _parse(self, data: bytes) -> list[bytes]:
        """Parse bytes; return the bodies that they complete, or raise `BadMessageError`."""

    def _completed(self) -> list[bytes]:
        """Bodies that were complete before `_parse` raised."""
        return []

    @abstractmethod
    def _is_partial(self) -> bool:
        """Return whether a body or a handshake is incomplete."""

    @abstractmethod
    def _send(self, body: bytes) -> None:
        """Write one body."""

    def _send_close(self) -> None:
        """Write the last bytes of the protocol, if any."""

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reader = self._listener.reader
        # Created once: a session recognises the connection by the identity of `reply`.
        self._reply_fn, self._close_fn = self._reply, self._close
        if self._reader is not None:
            self._reader.begin(self._transport, self)
        self._listener.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        """End the session after all bodies are handled."""
        self._gone, self._paused, self._idle = True, False, False
        if self._reader is not None:
            self._reader.end(self._transport)
        self._listener.closed(self)
        self._listener.shut_down(self._transport)
        if self._ending:
            self._finish()
            return
        # Bodies that the peer sent before it closed are handled in slices, as always.
        self._listener.draining[self] = None
        if not self._scheduled:
            self._run_slice()

    def data_received(self, data: bytes) -> None:
        if self._ending or self._close_reason is not None:
            self._discard(len(data))
            return
        self._last_active = monotonic()
        self._unparsed, self._parsed_to = self._unparsed[self._parsed_to :] + data, 0
        if not self._scheduled:
            self._run_slice()

    def eof_received(self) -> bool:
        """The peer sends no more, but may read replies."""
        # A peer may send all requests, close its half, and read the replies. TLS connections have no halves.
        if self._ending or not self._transport.can_write_eof() or not self._is_unanswered():
            return False
        self._half_closed, self._idle = True, False
        self._listener.make_evictable(self)
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
        if self._reader is not None:
            self._reader.end(self._transport)
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._ending, self._idle = True, False
        self._transport.abort()
        if self._gone:
            self._finish()

    def _open_session(self, token: str | None) -> None:
        peer = Peer.at(self.kind, self._transport.get_extra_info("peername"))
        try:
            self._session = self._listener.handler.open(peer, token)
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()

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
                self._bodies.extend(self._parse_slice(self._next_slice()))
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
        self._listener.draining.pop(self, None)
        session, self._session = self._session, None
        if session is not None:
            del self._reply_fn, self._close_fn
            try:
                session.lost()
            except Exception as fault:
                self._listener.faults.add(fault)

    def _next_slice(self) -> bytes:
        begin, self._parsed_to = self._parsed_to, self._parsed_to + self.slice_bytes
        data = self._unparsed[begin : self._parsed_to]
        if self._parsed_to >= len(self._unparsed):
            self._unparsed, self._parsed_to = b"", 0
        return data

    def _parse_slice(self, data: bytes) -> Sequence[bytes]:
        try:
            bodies = self._parse(data)
        except BadMessageError as error:
            self._close_reason = f"{error.code}: {error.text}"
            bodies = self._completed()
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()
            return []
        if bodies:
            self._keep_place()
        if self._close_reason is not None:
            self._unparsed = b""
        elif not self._is_partial():
            self._partial_since = None
        elif bodies or self._partial_since is None:
            self._partial_since = self._last_active
        return bodies

    def _keep_place(self) -> None:
        """Keep the place from now on, once the peer has sent a body and shown the token, if any."""
        if self._unproven and self._session is not None and self._session.admitted:
            self._unproven = False
            self._listener.keep(self)

    def _is_too_fast(self, now: float) -> bool:
        """Return whether the next body has to wait; the connection then pauses."""
        wait = self._bucket.wait(now)
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
            if self._reader is None:
                (self._transport.pause_reading if pause else self._transport.resume_reading)()
            elif pause:
                self._reader.end(self._transport)
            else:
                self._reader.begin(self._transport, self)

    def _reply(self, body: bytes) -> None:
        if self._ending or self._transport.is_closing():
            return
        if self._paused and self._transport.get_write_buffer_size() > self._limits.max_unsent:
            self.abort()
            return
        self._unanswered -= 1
        self._last_active = monotonic()
        self._send(body)
        if self._half_closed and not self._is_unanswered():
            self._transport.close()

    def _refuse(self, why: str) -> None:
        if self._ending or self._transport.is_closing():
            return
        try:
            self._send(self._listener.handler.refused(why))
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
        if not self._gone:
            self._send_close()
        self._ending, self._idle = True, False
        if self._gone:
            return
        self._update_reading()
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._listener.make_evictable(self)
        if not close_half(self._transport):
            return
        rest = self._transport.get_write_buffer_size()
        linger = self._limits.handshake_s if rest else LINGER_S
        asyncio.get_running_loop().call_later(linger, self._transport.abort)

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > MAX_DISCARDED * self._limits.max_body:
            self._transport.abort()
