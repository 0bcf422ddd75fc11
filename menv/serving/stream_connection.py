"""One connection that carries a stream of bodies, whatever their frames: TCP and WebSocket are two kinds of it.

A peer gets a few bodies handled at a time, then others have their turn. What it sends is not read while it leaves
its replies unread, goes too fast, or has bodies waiting. Knows no protocol; subclasses know theirs.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from typing import cast

from menv.serving.bad_message import BadMessageError
from menv.serving.bucket import Bucket
from menv.serving.listener import LINGER_S, Listener
from menv.serving.transport import Conversation, Peer

_TURN = 32
"""Bodies handled before others have their turn."""
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
        self._conversation: Conversation | None = None
        self._bodies: deque[bytes] = deque()
        self._unfed = b""
        self._bucket = Bucket(listener.limits.max_rate)
        self._owed = 0
        self._ending = False
        self._discarded = 0
        self._last_words = self._half_closed = self._gone = False
        self._throttled = self._scheduled = self._paused = self._reading_paused = False
        self._clock = asyncio.get_running_loop().time
        self._heard = self._paused_since = self._clock()
        # Set from the start, because a first body is awaited.
        self._partial_since: float | None = self._heard

    @abstractmethod
    def _feed(self, data: bytes) -> list[bytes]:
        """Take bytes apart; return the bodies that they complete.

        Raises:
            BadMessageError: The peer does not keep to the protocol.
        """

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
        self._listener.joined(self)

    def connection_lost(self, error: Exception | None) -> None:
        """End, once everything that came has been handled."""
        self._gone, self._paused = True, False
        self._listener.left(self)
        # What the peer sent before it went is taken in, in turns as always.
        if not self._scheduled:
            self._take_turn()

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        if self._ending:
            self._discard(len(data))
            return
        self._heard = self._clock()
        self._unfed = self._unfed + data if self._unfed else data
        if not self._scheduled:
            self._take_turn()

    def eof_received(self) -> bool:
        """Take note that the peer sends no more."""
        # Somebody may send all its requests, close its half, and read the replies. TLS has no halves.
        if self._ending or not self._transport.can_write_eof() or not self._is_owed():
            return False
        self._half_closed = True
        self._listener.gives_way(self)
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
        return True

    def pause_writing(self) -> None:
        """Take note that the peer does not read its replies."""
        self._paused = True
        self._paused_since = self._clock()

    def resume_writing(self) -> None:
        """Take note that it reads them again."""
        self._paused = False
        self._go_on()

    # What the listener calls.

    def look(self, now: float) -> None:
        """End the connection if the peer has taken too long."""
        if self._ending:
            return
        if self._paused:
            if now - self._paused_since > self._limits.idle_s:
                self.abort()
        elif self._partial_since is not None and self._reads():
            if now - self._partial_since > self._limits.handshake_s:
                self._refuse(
                    f"timeout: a body was not whole after {self._limits.handshake_s:g} s; see Limits.handshake_s"
                )
        elif now - self._heard > self._limits.idle_s:
            self._refuse(f"timeout: nothing came for {self._limits.idle_s:g} s; see Limits.idle_s")

    def hang_up(self) -> None:
        """End it once everything written has been sent."""
        self._ending = True
        self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        self._ending = True
        self._transport.abort()

    # What goes on in between.

    def _start_talking(self, token: str | None) -> None:
        host, port = (self._transport.get_extra_info("peername") or ("unknown", 0))[:2]
        try:
            self._conversation = self._listener.handler.open(Peer(self.kind, f"{host}:{port}"), token)
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()

    def _reads(self) -> bool:
        return not (self._throttled or self._paused or self._scheduled)

    def _is_owed(self) -> bool:
        return bool(self._owed or self._bodies or self._unfed)

    def _take_turn(self) -> None:
        """Handle what is there, until the turn is over or the peer has to be waited for."""
        self._scheduled = False
        self._handle_some()
        if self._ending or not (self._bodies or self._unfed):
            self._come_to_an_end()
        self._settle_reading()

    def _handle_some(self) -> None:
        budget = _TURN
        while (self._bodies or self._unfed) and not (self._ending or self._paused or self._throttled):
            if budget <= 0:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._take_turn)
                break
            if self._bodies:
                budget -= 1
                self._hand_over()
            else:
                budget -= _SLICE
                self._take_apart()

    def _come_to_an_end(self) -> None:
        """Do what had to wait until everything received was handled."""
        if self._last_words:
            self._close()
        conversation = self._conversation
        if self._gone and conversation is not None:
            self._conversation = None
            try:
                conversation.lost()
            except Exception as fault:
                self._listener.faults.add(fault)

    def _take_apart(self) -> None:
        data, self._unfed = self._unfed[: self.slice_bytes], self._unfed[self.slice_bytes :]
        try:
            bodies = self._feed(data)
        except BadMessageError as error:
            self._refuse(f"{error.code}: {error.text}")
            return
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()
            return
        if not self._in_the_middle():
            self._partial_since = None
        elif bodies or self._partial_since is None:
            self._partial_since = self._heard
        self._bodies.extend(bodies)

    def _hand_over(self) -> None:
        wait = self._bucket.wait(self._clock())
        if wait:
            self._throttled = True
            asyncio.get_running_loop().call_later(wait, self._end_throttle)
            return
        body = self._bodies.popleft()
        conversation = self._conversation
        if conversation is None:
            return
        self._owed += 1
        try:
            conversation.received(body, self._reply, self._close)
        except Exception as fault:
            self._listener.faults.add(fault)
            self.abort()

    def _end_throttle(self) -> None:
        self._throttled = False
        self._go_on()

    def _go_on(self) -> None:
        if self._partial_since is not None:
            # The time in which we did not read is not the peer's.
            self._partial_since = self._clock()
        if not self._scheduled:
            self._take_turn()

    def _settle_reading(self) -> None:
        pause = not (self._ending or self._reads())
        if pause != self._reading_paused and not self._gone:
            self._reading_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _reply(self, body: bytes) -> None:
        if self._ending or self._gone:
            return
        if self._paused and self._transport.get_write_buffer_size() > self._limits.max_unsent:
            self.abort()
            return
        self._owed -= 1
        self._heard = self._clock()
        self._send(body)
        if self._half_closed and not self._is_owed():
            self._transport.close()

    def _refuse(self, why: str) -> None:
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
        self._ending = True
        if self._gone:
            return
        self._settle_reading()
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._listener.gives_way(self)
        try:
            self._transport.write_eof()
        except OSError:
            # The peer has reset the connection, and nobody has told us yet.
            self._transport.abort()
            return
        rest = self._transport.get_write_buffer_size()
        linger = self._limits.handshake_s if rest else LINGER_S
        asyncio.get_running_loop().call_later(linger, self._transport.abort)

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > self._limits.max_body:
            self._transport.abort()
