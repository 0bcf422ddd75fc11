"""An HTTP client's connection: uvicorn's, watched like every other connection of ours.

Imported when an HTTP transport starts. It is built on h11, also where httptools is installed: h11 bounds headers. It
does not know what requests mean.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from menv.serving.carriers.bucket import Bucket
from menv.serving.carriers.http_sessions import HttpSession
from menv.serving.carriers.plain_http import for_frames
from menv.serving.carriers.transport import Peer

if TYPE_CHECKING:
    from menv.serving.carriers.http import HttpTransport

_UNHEARD = logging.Logger("menv.serving.carriers.http", logging.CRITICAL)
"""What peers do wrong is told to them, not to a log; this one is nobody's child and has no handler."""


class HttpConnection(H11Protocol):
    """A connection; it carries one request after the other.

    Args:
        listener: Whose it is.
        config: uvicorn's, with the application in it.
        state: uvicorn's, of all connections.

    Attributes:
        session: Of its last request.
        bucket: How fast requests without a session may come.
        replied: Done when the request at hand has its reply; None while no request waits for one. Its result is
            None if there is nobody left to respond to.
    """

    def __init__(self, listener: HttpTransport, config: Config, state: ServerState) -> None:
        loop = asyncio.get_running_loop()
        # The scope of every request carries a copy of this, which leads the endpoint to its connection.
        super().__init__(config, state, {"connection": self}, loop)
        self.logger = _UNHEARD
        self.access_log = False
        self._listener = listener
        self._limits = listener.limits
        self.session: HttpSession | None = None
        self.bucket = Bucket(listener.limits.max_rate)
        self.replied: asyncio.Future[bytes | None] | None = None
        self._clock = loop.time
        self._waits_since: float | None = self._clock()
        """Since when a request has not been whole; None if none has begun."""
        self._sends_since: float | None = None
        self._heard = self._clock()
        self._is_new = True

    @property
    def peer(self) -> Peer:
        """Who is there."""
        return Peer.at("http", self.client)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._listener.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; a request that waits for its reply waits no longer."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            # After a reset uvicorn lets it run, and it would keep all of this in memory until it rings.
            self.timeout_keep_alive_task.cancel()
        self._listener.left(self)
        self._listener.let_go(self.transport)
        self._listener.sessions.release(self)
        if self.replied is not None and not self.replied.done():
            self.replied.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take bytes; uvicorn makes requests of them."""
        self._heard = self._clock()
        if self._waits_since is None:
            self._waits_since = self._heard
        if self._is_new:
            self._is_new = False
            told = for_frames(data, "HTTP", "http", self._listener.handler.refused)
            if told is not None:
                self.transport.write(told)
                self.transport.close()
        if self.transport.is_closing():
            return
        super().data_received(data)

    def request_is_whole(self) -> None:
        """Note that the peer has to do nothing but wait for its response."""
        self._waits_since = None
        self._listener.stays(self)

    def sends(self) -> None:
        """Note that the peer is sent its response."""
        self._sends_since = self._clock()

    def has_sent(self) -> None:
        """Note that the response was taken."""
        self._sends_since = self._waits_since = None
        self._heard = self._clock()

    def look(self, now: float) -> None:
        """End the connection if the peer has taken too long."""
        limits = self._limits
        if self._sends_since is not None:
            late = now - self._sends_since > limits.idle_s
        elif self.replied is not None:
            late = False
        elif self._waits_since is not None:
            late = now - self._waits_since > limits.handshake_s
        else:
            late = now - self._heard > limits.idle_s
        if late:
            self.abort()

    def hang_up(self) -> None:
        """End it once the response at hand, if any, has been sent."""
        if not self.transport.is_closing():
            self.shutdown()

    def abort(self) -> None:
        """End it at once."""
        self.transport.abort()
