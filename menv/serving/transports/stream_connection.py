"""One connection that carries a stream of bodies, whatever their frames: TCP and WebSocket are two kinds of it.

A peer gets a few bodies handled at a time, then others have their turn. What it sends is not read while it leaves
its replies unread, goes too fast, or has bodies waiting. Knows no protocol; subclasses know theirs.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import cast

from menv.serving.codec import BadMessageError
from menv.serving.transports.listener import LINGER_S, MOST_DISCARDED, Listener, close_half
from menv.serving.transports.transport import Peer, SessionProtocol, TokenBucket

_TURN = 32
"""Bodies handled before others have their turn."""
_TURN_S = 0.0005
"""Seconds after which a turn ends in any case."""
_WEIGHT = 500
"""Bytes of a body that count for one more."""
_SLICE = 8
"""How many bodies taking bytes apart counts for."""


class StreamConnection(asyncio.Protocol):
    """A connection; its listener makes one for each peer.

    Args:
        listener: Whose it is.
    """

    kind = ""
    """`Peer.transport`."""
    slice_bytes = 65_536
    """The most bytes taken apart at once."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._conversation: SessionProtocol | None = None
        self._bodies: deque[bytes] = deque()
        # Bytes that were read and not yet taken apart begin at `_fed`.
        self._unfed, self._fed = b"", 0
        self._bucket = TokenBucket(listener.limits.max_rate)
        self._owed = 0
        self._ending = False
        self._discarded = 0
        self._half_closed = self._gone = False
        self._silent = True
        # Why the connection ends once everything received is handled; "" if that need not be said.
        self._farewell: str | None = None
        self._throttled = self._scheduled = self._paused = self._reading_paused = False
        # Whether nothing is under way, so that a whole body may be handed over as it comes.
        self._at_rest = False
        # Whether the conversation still has to do with a body.
        self._held = False
        # The loop's clock, without the way through the loop.
        self._heard = self._paused_since = monotonic()
        # Set from the start, because a first body is awaited.
        self._partial_since: float | None = self._heard

    @abstractmethod
    def _feed(self, data: bytes) -> list[bytes]:
        """Take bytes apart; return the bodies that they complete.

        Raises:
            BadMessageError: The peer does not keep to the protocol.
        """

    def _completed(self) -> list[bytes]:
        return []

    @abstractmethod
    def _in_the_middle(self) -> bool:
        """Return whether a body, or a handshake, has begun and is not whole."""

    @abstractmethod
    def _send(self, body: bytes) -> None:
        """Write one body."""

    def _say_goodbye(self) -> None:
        """Write whatever the protocol says at its end."""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._reader = self._listener.reader
        # Made once, because a conversation knows a peer's way back by it.
        self._back, self._end = self._reply, self._close
        if self._reader is not None:
            self._reader.begin(self._transport, self)
        self._listener.joined(self)

    def connection_lost(self, error: Exception | None) -> None:
        """End, once everything that came has been handled."""
        self._gone, self._paused, self._at_rest = True, False, False
        if self._reader is not None:
            self._reader.end(self._transport)
        self._listener.left(self)
        self._listener.let_go(self._transport)
        if self._ending:
            self._come_to_an_end()
            return
        # What the peer sent before it went is taken in, in turns as always.
        self._listener.finishing[self] = None
        if not self._scheduled:
            self._take_turn()

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        if self._ending or self._farewell is not None:
            self._discard(len(data))
            return
        self._heard = monotonic()
        self._unfed, self._fed = self._unfed[self._fed :] + data, 0
        if not self._scheduled:
            self._take_turn()

    def eof_received(self) -> bool:
        """Take note that the peer sends no more."""
        # Somebody may send all its requests, close its half, and read the replies. TLS has no halves.
        if self._ending or not self._transport.can_write_eof() or not self._is_owed():
            return False
        self._half_closed, self._at_rest = True, False
        self._listener.gives_way(self)
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
        return True

    def pause_writing(self) -> None:
        """Take note that the peer does not read its replies."""
        self._paused, self._at_rest = True, False
        self._paused_since = monotonic()

    def resume_writing(self) -> None:
        """Take note that it reads them again."""
        self._paused = False
        self._go_on()

    # What the listener calls.

    def look(self, now: float) -> None:
        """End the connection if the peer has taken too long."""
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
        elif now - self._heard > self._limits.idle_s:
            self._refuse(f"too_slow: nothing came for {self._limits.idle_s:g} s; see Limits.idle_s")

    def hang_up(self) -> None:
        """End it once everything written has been sent."""
        self._ending, self._at_rest = True, False
        if self._reader is not None:
            self._reader.end(self._transport)
        self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        self._ending, self._at_rest = True, False
        self._transport.abort()
        if self._gone:
            self._come_to_an_end()

    # What goes on in between.

    def _start_talking(self, token: str | None) -> None:
        peer = Peer.at(self.kind, self._transport.get_extra_info("peername"))
        try:
            self._conversation = self._listener.handler.open(peer, token)
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()

    def _reads(self) -> bool:
        return not (self._throttled or self._paused or self._held or self._scheduled)

    def _is_owed(self) -> bool:
        return bool(self._owed or self._bodies or self._unfed)

    def _take_turn(self) -> None:
        """Handle what is there, until the turn is over or the peer has to be waited for."""
        self._scheduled = False
        self._handle_some()
        if self._ending or not (self._bodies or self._unfed or self._held):
            self._come_to_an_end()
        self._settle_reading()
        idle = self._reads() and not (self._bodies or self._unfed or self._ending or self._gone)
        self._at_rest = idle and not self._silent and self._partial_since is None

    def _handle_some(self) -> None:
        budget, now = _TURN, monotonic()
        until = now + _TURN_S
        while (self._bodies or self._unfed) and not (
            self._ending or self._paused or self._throttled or self._held
        ):
            if budget <= 0 or now > until:
                self._scheduled = True
                self._listener.wait_for_turn(self._take_turn)
                break
            if not self._bodies:
                budget -= _SLICE
                self._bodies.extend(self._take_apart(self._next_slice()))
            elif not self._is_too_fast(now):
                body = self._bodies.popleft()
                budget -= 1 + len(body) // _WEIGHT
                self._hand_over(body)
            now = monotonic()

    def _come_to_an_end(self) -> None:
        farewell, self._farewell = self._farewell, None
        if farewell:
            self._refuse(farewell)
        elif farewell is not None:
            self._close()
        if not self._gone:
            return
        self._listener.finishing.pop(self, None)
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            del self._back, self._end
            try:
                conversation.lost()
            except Exception as fault:
                self._listener.faults.add(fault)

    def _next_slice(self) -> bytes:
        begin, self._fed = self._fed, self._fed + self.slice_bytes
        data = self._unfed[begin : self._fed]
        if self._fed >= len(self._unfed):
            self._unfed, self._fed = b"", 0
        return data

    def _take_apart(self, data: bytes) -> Sequence[bytes]:
        try:
            bodies = self._feed(data)
        except BadMessageError as error:
            self._farewell = f"{error.code}: {error.text}"
            bodies = self._completed()
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()
            return []
        if bodies:
            self._settle_in()
        if self._farewell is not None:
            self._unfed = b""
        elif not self._in_the_middle():
            self._partial_since = None
        elif bodies or self._partial_since is None:
            self._partial_since = self._heard
        return bodies

    def _settle_in(self) -> None:
        """Keep the place from now on, once the peer has said something and has shown the token, if there is one."""
        if self._silent and self._conversation is not None and self._conversation.admitted:
            self._silent = False
            self._listener.stays(self)

    def _is_too_fast(self, now: float) -> bool:
        """Return whether the next body has to wait; if so, everything waits for it."""
        wait = self._bucket.wait(now)
        if not wait:
            return False
        self._throttled = True
        asyncio.get_running_loop().call_later(wait, self._end_throttle)
        return True

    def _hand_over(self, body: bytes) -> None:
        conversation = self._conversation
        if conversation is None:
            return
        self._owed += 1
        try:
            held = conversation.received(body, self._back, self._end)
            if held is not None:
                self._wait_for(held)
            self._settle_in()
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()

    def _wait_for(self, held: asyncio.Future[None]) -> None:
        self._held, self._at_rest = True, False
        held.add_done_callback(self._end_hold)

    def _end_hold(self, _: asyncio.Future[None]) -> None:
        self._held = False
        self._heard = monotonic()
        self._go_on()

    def _end_throttle(self) -> None:
        self._throttled = False
        self._go_on()

    def _go_on(self) -> None:
        if self._partial_since is not None:
            # The time in which we did not read is not the peer's.
            self._partial_since = monotonic()
        if not self._scheduled:
            self._take_turn()

    def _settle_reading(self) -> None:
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
        self._owed -= 1
        self._heard = monotonic()
        self._send(body)
        if self._half_closed and not self._is_owed():
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
        """End the connection once everything written is sent.

        Closing while bytes of the peer lie unread would throw away what it was told: so half of the connection is
        closed, and what still comes is read and forgotten, for a moment.
        """
        if self._ending:
            return
        if not self._gone:
            self._say_goodbye()
        self._ending, self._at_rest = True, False
        if self._gone:
            return
        self._settle_reading()
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._listener.gives_way(self)
        if not close_half(self._transport):
            return
        rest = self._transport.get_write_buffer_size()
        linger = self._limits.handshake_s if rest else LINGER_S
        asyncio.get_running_loop().call_later(linger, self._transport.abort)

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > MOST_DISCARDED * self._limits.max_body:
            self._transport.abort()
