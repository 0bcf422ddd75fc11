"""HTTP: POST /rllink with one body, and one body as the response. Starlette and uvicorn do the protocol.

uvicorn's connections run in the serving thread's loop, accepted by our own listener: its server would wait for signals
and for clients that do not leave, and would not know connections that have sent nothing yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from menv.errors import MissingExtraError
from menv.serving.protocol import frame
from menv.serving.transports.access import bearer
from menv.serving.transports.listener import LINGER_S, MOST_DISCARDED, Listener
from menv.serving.transports.transport import ErrorLog, Handler, Limits, Peer, SessionProtocol, TokenBucket

# SEAM menv.serving.carriers.http_sessions
# Conversations over HTTP, which outlive a request and may go over several connections of one client.
#
# A client names its conversation in the header `menv-session`. The HTTP endpoint asks for it; a sweep ends
# what has not
# been heard of. Knows neither requests nor responses.


class HttpSession:
    """One conversation.

    Attributes:
        conversation: With whoever knows the header's value.
        bucket: How fast it may go.
        name: The header's value; None for a conversation of one request.
        heard: When the last request began or ended.
        busy: Requests that wait for their reply.
        users: Connections whose last request was this session's.
        over: Whether the conversation has ended.
    """

    __slots__ = ("bucket", "busy", "conversation", "heard", "name", "over", "users")

    def __init__(self, conversation: SessionProtocol, bucket: TokenBucket, name: str | None) -> None:
        self.conversation = conversation
        self.bucket = bucket
        self.name = name
        self.heard = 0.0
        self.busy = 0
        self.users = 0
        self.over = False


class SessionUser(Protocol):
    """A connection, as sessions see it."""

    session: HttpSession | None
    """That of its last request with a name."""
    bucket: TokenBucket
    """How fast its requests without a name may come."""

    @property
    def peer(self) -> Peer:
        """Who is there."""


class HttpSessions:
    """All conversations of one HTTP transport.

    There are at most `max_connections`. A new one takes the place of the one that was heard of the longest time ago
    among those that no open connection used last; there always is one, as each connection holds on to one.

    Args:
        handler: Starts conversations.
        limits: `handshake_s`, `idle_s` and `max_connections` of it.
        faults: For what conversations raise at their end.
    """

    def __init__(self, handler: Handler, limits: Limits, faults: ErrorLog) -> None:
        self._handler = handler
        self._limits = limits
        self._faults = faults
        # In the order in which they were heard of, the longest ago first.
        self._all: dict[str, HttpSession] = {}

    def of(self, user: SessionUser, name: str | None, now: float, token: str | None) -> HttpSession:
        """Return the session called `name`, a new one if there is none, and note that `user` goes on with it."""
        if name is None:
            return HttpSession(self._handler.open(user.peer, token), user.bucket, None)
        session = self._all.pop(name, None)
        if session is None:
            self._make_room()
            session = HttpSession(
                self._handler.open(user.peer, token), TokenBucket(self._limits.max_rate), name
            )
        self._all[name] = session
        session.heard = now
        if user.session is not session:
            self.release(user)
            user.session = session
            session.users += 1
        return session

    def release(self, user: SessionUser) -> None:
        """Note that `user` is gone, or goes on with another session."""
        if user.session is not None:
            user.session.users -= 1
            user.session = None

    def end(self, session: HttpSession) -> None:
        """End one; the next request of that name begins another."""
        if session.over:
            return
        session.over = True
        if session.name is not None:
            self._all.pop(session.name, None)
        try:
            session.conversation.lost()
        except Exception as fault:
            self._faults.add(fault)

    def sweep(self, now: float) -> None:
        """End those of which nothing was heard for too long; that is sooner where no connection is left either."""
        for session in list(self._all.values()):
            silent = now - session.heard
            if silent <= min(self._limits.handshake_s, self._limits.idle_s):
                return
            if not session.busy and (not session.users or silent > self._limits.idle_s):
                self.end(session)

    def end_all(self) -> None:
        """End every one."""
        for session in list(self._all.values()):
            self.end(session)

    def _make_room(self) -> None:
        if len(self._all) < self._limits.max_connections:
            return
        for session in self._all.values():
            if not session.users:
                self.end(session)
                return


# SEAM menv.serving.carriers.plain_http
# HTTP responses that are written by hand, for peers whose request is not even read, and what others are told.


def unavailable(body: bytes) -> bytes:
    """Return a response that says that there is no room, with `body` as its JSON."""
    return _response(b"503 Service Unavailable", body)


def for_frames(data: bytes, speaks: str, scheme: str, refused: Callable[[str], bytes]) -> bytes | None:
    """Return what a peer is told that sends frames of TCP to another port, None if it does not.

    Args:
        data: Its first bytes.
        speaks: What the port speaks.
        scheme: Of addresses of such ports.
        refused: Makes an ERROR of a reason; see `Handler.refused`.
    """
    # No request begins with a digit, and somebody who sends a frame waits for one.
    if not data[:1].isdigit():
        return None
    why = f"bad_frame: this port speaks {speaks}, expected no frame of TCP; let the address begin with {scheme}://"
    return frame(refused(why))


def for_requests(data: bytes, refused: Callable[[str], bytes]) -> bytes | None:
    """Return what a peer is told that asks a WebSocket port for something else; see `for_frames`."""
    if b"GET ".startswith(data[:4]):
        return None
    why = "not_allowed: this port speaks WebSocket, expected its handshake; let the address begin with ws://"
    return _response(b"426 Upgrade Required\r\nUpgrade: websocket", refused(why))


def _response(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (status, len(body), body)
    )


class HttpTransport(Listener):
    """Listens for HTTP clients.

    A request that names a conversation in the header `menv-session` (16 to 64 random bytes in hexadecimal, chosen
    by the client) goes on with it; one that names none is a conversation of its own. Where a token is needed, every
    request shows it in the header `Authorization: Bearer`.

    Args:
        port: 0 takes one that is free.

    Attributes:
        sessions: The conversations that are named.
    """

    sessions: HttpSessions

    def _prepare(self) -> None:
        try:
            from starlette.routing import Route, Router
            from uvicorn.config import Config
            from uvicorn.server import ServerState

            pass  # moved
            pass  # moved
        except ImportError as error:
            raise MissingExtraError(
                "HttpTransport: the packages starlette and uvicorn are not installed, expected them for this "
                "transport; run: pip install 'menv[serve]'"
            ) from error
        self.sessions = HttpSessions(self.handler, self.limits, self.faults)
        self._connection_type = HttpConnection
        self._state = ServerState()
        # `log_config` and `access_log` as they are here are those that touch no logger.
        self._config = Config(
            Router(
                [Route("/rllink", HttpEndpoint(self), methods=["POST", "OPTIONS"])], redirect_slashes=False
            ),
            loop="none",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=True,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=math.ceil(self.limits.idle_s) + 1,
        )
        self._config.load()

    async def stop(self) -> None:
        """Close the port, then all connections and conversations."""
        await super().stop()
        if not hasattr(self, "sessions"):
            return
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.sessions.end_all()

    def _connection(self) -> asyncio.Protocol:
        return self._connection_type(self, self._config, self._state)

    def _full(self) -> bytes:
        return unavailable(self.handler.refused(self._why_full()))

    def _swept(self, now: float) -> None:
        self.sessions.sweep(now)


# SEAM menv.serving.carriers.http_connection
# An HTTP client's connection: uvicorn's, watched like every other connection of ours.
#
# Imported when an HTTP transport starts. It is built on h11, also where httptools is installed: h11 bounds
# headers. It
# does not know what requests mean.


_UNHEARD = logging.Logger("menv.serving.transports.http", logging.CRITICAL)
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
        self.bucket = TokenBucket(listener.limits.max_rate)
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


# SEAM menv.serving.carriers.http_endpoint
# What answers POST /rllink: the request's body is one body, and so is the response's.
#
# An ASGI application, imported when an HTTP transport starts. Whom it lets in, `Access` says; what bodies
# mean, the
# conversation.


Headers = list[tuple[bytes, bytes]]

_JSON = b"{ \t\r\n"
_SESSION = re.compile(r"(?:[0-9a-fA-F]{2}){16,64}")
_INTERESTING = (b"authorization", b"content-length", b"host", b"menv-session", b"origin")
_MAY_SEND = (
    (b"access-control-allow-methods", b"POST"),
    (b"access-control-allow-headers", b"authorization, content-type, menv-session"),
    (b"access-control-max-age", b"600"),
)
"""What a browser is told that asks before it sends what a page wants to send."""


class _Refusal(Exception):  # noqa: N818
    """A request that no conversation gets to see."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class _Gone(Exception):  # noqa: N818
    """The peer has not waited."""


@dataclass(slots=True)
class _Exchange:
    """One request and its reply."""

    replied: asyncio.Future[bytes | None]
    end_session: Callable[[], None]
    allowed: Headers
    closes: bool = False
    responded: bool = False

    def reply(self, body: bytes) -> None:
        if not self.replied.done():
            self.replied.set_result(body)

    def close(self) -> None:
        self.closes = True
        if not self.replied.done():
            self.replied.set_result(None)
        if self.responded:
            self.end_session()


class HttpEndpoint:
    """The application behind the path.

    Args:
        listener: Whose it is.
    """

    def __init__(self, listener: HttpTransport) -> None:
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpConnection = scope["state"]["connection"]
        try:
            headers = _headers(scope)
            # What a page may read of a response, its browser finds in the headers of that.
            page = headers.get(b"origin")
            allowed = _for_page(page) if page and page in self._listener.access.allowed_origins else []
            if scope["method"] == "OPTIONS":
                await self._tell_browser(connection, headers, allowed, receive, send)
            else:
                await self._answer(connection, headers, allowed, receive, send)
        except _Gone:
            pass
        except Exception as fault:
            self._listener.faults.add(fault)
            connection.abort()

    async def _tell_browser(
        self,
        connection: HttpConnection,
        headers: dict[bytes, str],
        allowed: Headers,
        receive: Receive,
        send: Send,
    ) -> None:
        if why := self._listener.access.stranger(headers.get(b"origin"), headers.get(b"host")):
            await self._refuse(_Refusal(403, why), connection, allowed, receive, send)
            return
        connection.sends()
        told = [(b"allow", b"POST, OPTIONS"), *allowed, *(_MAY_SEND if allowed else ())]
        await send({"type": "http.response.start", "status": 204, "headers": told})
        await send({"type": "http.response.body", "body": b""})
        connection.has_sent()

    async def _answer(
        self,
        connection: HttpConnection,
        headers: dict[bytes, str],
        allowed: Headers,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            token = self._admit(headers)
            name = _session_name(headers)
            body = await self._body(headers, receive)
        except _Refusal as refusal:
            await self._refuse(refusal, connection, allowed, receive, send)
            return
        connection.request_is_whole()
        await self._converse(connection, name, token, body, allowed, send)

    async def _converse(
        self,
        connection: HttpConnection,
        name: str | None,
        token: str | None,
        body: bytes,
        allowed: Headers,
        send: Send,
    ) -> None:
        loop = asyncio.get_running_loop()
        sessions = self._listener.sessions
        session = sessions.of(connection, name, loop.time(), token)
        exchange = _Exchange(loop.create_future(), partial(sessions.end, session), allowed)
        connection.replied = exchange.replied
        session.busy += 1
        try:
            while wait := session.bucket.wait(loop.time()):
                await asyncio.sleep(wait)
            session.conversation.received(body, exchange.reply, exchange.close)
            await exchange.replied
            await self._respond(exchange, connection, send)
        except Exception:
            exchange.closes = True
            raise
        finally:
            connection.replied, exchange.responded = None, True
            session.busy -= 1
            session.heard = loop.time()
            if name is None or exchange.closes:
                sessions.end(session)

    async def _respond(self, exchange: _Exchange, connection: HttpConnection, send: Send) -> None:
        body = exchange.replied.result()
        if body is None:
            connection.abort()
            return
        connection.sends()
        await send(_start(200, body, exchange.closes, exchange.allowed))
        await send({"type": "http.response.body", "body": body})
        connection.has_sent()

    def _admit(self, headers: dict[bytes, str]) -> str | None:
        access = self._listener.access
        if why := access.stranger(headers.get(b"origin"), headers.get(b"host")):
            raise _Refusal(403, why)
        token = bearer(headers.get(b"authorization"))
        if not access.admits(token):
            raise _Refusal(
                401, "not_allowed: expected the server's token in the header Authorization: Bearer"
            )
        return token if access.token is not None else None

    async def _body(self, headers: dict[bytes, str], receive: Receive) -> bytes:
        most = self._listener.limits.max_body
        if int(headers.get(b"content-length", "0")) > most:
            raise _Refusal(413, f"too_large: a body of more than {most} bytes; see Limits.max_body")
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            parts.append(message["body"])
            size += len(parts[-1])
            if size > most:
                raise _Refusal(413, f"too_large: a body of more than {most} bytes; see Limits.max_body")
            if not message["more_body"]:
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _refuse(
        self, refusal: _Refusal, connection: HttpConnection, allowed: Headers, receive: Receive, send: Send
    ) -> None:
        """Respond with an ERROR, then read on for a moment: closing at once would throw the response away."""
        body = self._listener.handler.refused(refusal.why)
        connection.sends()
        await send(_start(refusal.status, body, True, allowed))
        await send({"type": "http.response.body", "body": body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._discard(receive), LINGER_S)
        await send({"type": "http.response.body", "body": b""})

    async def _discard(self, receive: Receive) -> None:
        left = MOST_DISCARDED * self._listener.limits.max_body
        while left > 0:
            message = await receive()
            if message["type"] == "http.disconnect" or not message["more_body"]:
                return
            left -= len(message["body"])


def _headers(scope: Scope) -> dict[bytes, str]:
    """Return the headers that matter; what comes several times is as wrong as a wrong value."""
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in _INTERESTING:
            text = value.decode("latin-1")
            found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _session_name(headers: dict[bytes, str]) -> str | None:
    name = headers.get(b"menv-session")
    if name is not None and not _SESSION.fullmatch(name):
        raise _Refusal(
            400, "malformed: the header menv-session is not 16 to 64 random bytes as hexadecimal digits"
        )
    return name


def _for_page(page: str) -> Headers:
    return [(b"access-control-allow-origin", page.encode("latin-1")), (b"vary", b"Origin")]


def _start(status: int, body: bytes, closes: bool, allowed: Headers) -> dict[str, object]:
    kind = b"application/json" if body[:1] in _JSON else b"application/msgpack"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *allowed]
    if closes:
        headers.append((b"connection", b"close"))
    return {"type": "http.response.start", "status": status, "headers": headers}
