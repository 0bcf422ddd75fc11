"""HTTP: POST /rllink with one body in the request and one in the response, implemented with Starlette and uvicorn.

uvicorn's connections run in the server's event loop, but are accepted by `Listener`: uvicorn's own server would handle
signals, wait for clients that stay connected, and not count connections that have sent nothing yet.
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
from typing import Any, cast

from menv.errors import MissingExtraError
from menv.serving.limits import Limits, TokenBucket
from menv.serving.transports.access import bearer
from menv.serving.transports.listener import LINGER_S, MAX_DISCARDED, Listener, tcp_frame_reply, unavailable
from menv.serving.transports.transport import ErrorLog, Handler, Peer, SessionProtocol

try:
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route, Router
    from starlette.types import Receive, Scope, Send
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState
except ImportError as error:
    raise MissingExtraError(
        "HttpTransport: the packages starlette and uvicorn are not installed, expected them for this transport; "
        "run: pip install 'menv-rl[serve]'"
    ) from error

Headers = list[tuple[bytes, bytes]]

_JSON = b"{ \t\r\n"
_SESSION = re.compile(r"(?:[0-9a-fA-F]{2}){16,64}")
_HEADERS = (b"authorization", b"content-length", b"host", b"menv-session", b"origin")
_PREFLIGHT = (
    (b"access-control-allow-methods", b"POST"),
    (b"access-control-allow-headers", b"authorization, content-type, menv-session"),
    (b"access-control-max-age", b"600"),
)
"""Answer to the preflight request of a browser."""
_SILENT_LOGGER = logging.Logger("menv.serving.transports.http", logging.CRITICAL)
"""Has no parent and no handler: faults of peers are reported to the peers, not logged."""


class HttpTransport(Listener):
    """Listens for HTTP clients; also the ASGI application behind the path `/rllink`.

    Requests with the same value of the header `menv-session` (16 to 64 random bytes in hexadecimal, chosen by the
    client) share a session; a request without it has a session for itself. If the server has a token, every request
    shows it in the header `Authorization: Bearer`.

    Attributes:
        sessions: Sessions with a name.
    """

    sessions: HttpSessions

    def _prepare(self) -> None:
        self.sessions = HttpSessions(self.handler, self.limits, self.faults)
        self._state = ServerState()
        # With these values of `log_config` and `access_log` uvicorn configures no logger.
        self._config = Config(
            Router(
                [
                    Route("/rllink", cast(Any, self), methods=["POST", "OPTIONS"]),
                    Route("/health", self._health),
                    Route("/metrics", self._metrics),
                ],
                redirect_slashes=False,
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
        """Close the port, all connections and all sessions."""
        await super().stop()
        if not hasattr(self, "sessions"):
            return
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.sessions.end_all()

    def _connection(self) -> asyncio.Protocol:
        return HttpConnection(self, self._config, self._state)

    def _full_response(self) -> bytes:
        return unavailable(self.handler.refused(self._full_reason()))

    def _sweep(self, now: float) -> None:
        self.sessions.sweep(now)

    async def _health(self, request: Request) -> Response:
        request.state.connection.request_complete()
        return PlainTextResponse("ok\n")

    async def _metrics(self, request: Request) -> Response:
        try:
            self._check_access(_headers(request.scope))
        except _Refusal as refusal:
            return Response(self.handler.refused(refusal.why), refusal.status, media_type="application/json")
        request.state.connection.request_complete()
        return Response(self.handler.metrics(), media_type="text/plain; version=1.0.0; charset=utf-8")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpConnection = scope["state"]["connection"]
        try:
            headers = _headers(scope)
            # A page may read a response only if the response has these headers.
            page = headers.get(b"origin")
            allowed = _cors_headers(page) if page and page in self.access.allowed_origins else []
            if scope["method"] == "OPTIONS":
                await self._answer_preflight(connection, headers, allowed, receive, send)
            else:
                await self._answer(connection, headers, allowed, receive, send)
        except Exception as fault:
            self.faults.add(fault)
            connection.abort()

    async def _answer_preflight(
        self,
        connection: HttpConnection,
        headers: dict[bytes, str],
        allowed: Headers,
        receive: Receive,
        send: Send,
    ) -> None:
        if why := self.access.stranger(headers.get(b"origin"), headers.get(b"host")):
            await self._refuse(_Refusal(403, why), connection, allowed, receive, send)
            return
        connection.response_started()
        headers_out = [(b"allow", b"POST, OPTIONS"), *allowed, *(_PREFLIGHT if allowed else ())]
        await send({"type": "http.response.start", "status": 204, "headers": headers_out})
        await send({"type": "http.response.body", "body": b""})
        connection.response_sent()

    async def _answer(
        self,
        connection: HttpConnection,
        headers: dict[bytes, str],
        allowed: Headers,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            token = self._check_access(headers)
            name = _session_name(headers)
            body = await self._body(headers, receive)
        except _Refusal as refusal:
            await self._refuse(refusal, connection, allowed, receive, send)
            return
        if body is not None:
            connection.request_complete()
            await self._exchange(connection, name, token, body, allowed, send)

    async def _exchange(
        self,
        connection: HttpConnection,
        name: str | None,
        token: str | None,
        body: bytes,
        allowed: Headers,
        send: Send,
    ) -> None:
        loop = asyncio.get_running_loop()
        sessions = self.sessions
        session = sessions.of(connection, name, loop.time(), token)
        exchange = _Exchange(loop.create_future(), partial(sessions.end, session), allowed)
        connection.replied = exchange.replied
        session.busy += 1
        try:
            while wait := session.bucket.wait(loop.time()):
                await asyncio.sleep(wait)
            session.server_session.received(body, exchange.reply, exchange.close)
            await exchange.replied
            await self._respond(exchange, connection, send)
        except Exception:
            exchange.closes = True
            raise
        finally:
            connection.replied, exchange.responded = None, True
            session.busy -= 1
            session.last_active = loop.time()
            if name is None or exchange.closes:
                sessions.end(session)

    async def _respond(self, exchange: _Exchange, connection: HttpConnection, send: Send) -> None:
        body = exchange.replied.result()
        if body is None:
            connection.abort()
            return
        connection.response_started()
        await send(_start(200, body, exchange.closes, exchange.allowed))
        await send({"type": "http.response.body", "body": body})
        connection.response_sent()

    def _check_access(self, headers: dict[bytes, str]) -> str | None:
        access = self.access
        if why := access.stranger(headers.get(b"origin"), headers.get(b"host")):
            raise _Refusal(403, why)
        token = bearer(headers.get(b"authorization"))
        if not access.admits(token):
            raise _Refusal(
                401, "not_allowed: expected the server's token in the header Authorization: Bearer"
            )
        return token if access.token is not None else None

    async def _body(self, headers: dict[bytes, str], receive: Receive) -> bytes | None:
        """Return the request's body; None if the peer has disconnected."""
        most = self.limits.max_body
        if int(headers.get(b"content-length", "0")) > most:
            raise _Refusal(413, f"too_large: a body of more than {most} bytes; see Limits.max_body")
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message["body"])
            size += len(parts[-1])
            if size > most:
                raise _Refusal(413, f"too_large: a body of more than {most} bytes; see Limits.max_body")
            if not message["more_body"]:
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _refuse(
        self, refusal: _Refusal, connection: HttpConnection, allowed: Headers, receive: Receive, send: Send
    ) -> None:
        """Respond with an ERROR, then read on for a moment: closing at once could lose the response."""
        body = self.handler.refused(refusal.why)
        connection.response_started()
        await send(_start(refusal.status, body, True, allowed))
        await send({"type": "http.response.body", "body": body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._discard(receive), LINGER_S)
        await send({"type": "http.response.body", "body": b""})

    async def _discard(self, receive: Receive) -> None:
        left = MAX_DISCARDED * self.limits.max_body
        while left > 0:
            message = await receive()
            if message["type"] == "http.disconnect" or not message["more_body"]:
                return
            left -= len(message["body"])


class HttpConnection(H11Protocol):
    """One connection, which carries one request after the other. h11 is used because it bounds the size of headers.

    Attributes:
        session: Session of the last request with a name.
        bucket: Rate limit of requests without a name.
        replied: Resolves to the reply of the current request, or to None if the peer is gone; None between requests.
    """

    def __init__(self, listener: HttpTransport, config: Config, state: ServerState) -> None:
        loop = asyncio.get_running_loop()
        # The scope of every request has a copy of this dict, from which `__call__` gets its connection.
        super().__init__(config, state, {"connection": self}, loop)
        self.logger = _SILENT_LOGGER
        self.access_log = False
        self._listener = listener
        self._limits = listener.limits
        self.session: HttpSession | None = None
        self.bucket = TokenBucket(listener.limits.max_rate)
        self.replied: asyncio.Future[bytes | None] | None = None
        self._clock = loop.time
        self._waits_since: float | None = self._clock()
        """When the current incomplete request began; None if there is none."""
        self._sends_since: float | None = None
        self._last_active = self._clock()
        self._is_new = True

    @property
    def peer(self) -> Peer:
        return Peer.at("http", self.client)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._listener.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            # After a reset uvicorn does not cancel it, and it would keep this connection in memory.
            self.timeout_keep_alive_task.cancel()
        self._listener.closed(self)
        self._listener.shut_down(self.transport)
        self._listener.sessions.release(self)
        if self.replied is not None and not self.replied.done():
            self.replied.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._last_active = self._clock()
        if self._waits_since is None:
            self._waits_since = self._last_active
        if self._is_new:
            self._is_new = False
            reply = tcp_frame_reply(data, "HTTP", "http", self._listener.handler.refused)
            if reply is not None:
                self.transport.write(reply)
                self.transport.close()
        if self.transport.is_closing():
            return
        super().data_received(data)

    def request_complete(self) -> None:
        """The whole request has arrived; the peer waits for its response."""
        self._waits_since = None
        self._listener.keep(self)

    def response_started(self) -> None:
        """The response is being sent."""
        self._sends_since = self._clock()

    def response_sent(self) -> None:
        """The response has been sent."""
        self._sends_since = self._waits_since = None
        self._last_active = self._clock()

    def look(self, now: float) -> None:
        """Close the connection if the peer is too slow."""
        limits = self._limits
        if self._sends_since is not None:
            late = now - self._sends_since > limits.idle_s
        elif self.replied is not None:
            late = False
        elif self._waits_since is not None:
            late = now - self._waits_since > limits.handshake_s
        else:
            late = now - self._last_active > limits.idle_s
        if late:
            self.abort()

    def hang_up(self) -> None:
        """Close the connection after the current response."""
        if not self.transport.is_closing():
            self.shutdown()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()


class HttpSession:
    """A session that outlives its requests and may span several connections of one client.

    Attributes:
        name: Value of the header `menv-session`; None for a session of one request.
        last_active: When the last request began or ended.
        busy: Requests that wait for their reply.
        users: Connections whose last request was in this session.
    """

    __slots__ = ("bucket", "busy", "last_active", "name", "over", "server_session", "users")

    def __init__(self, server_session: SessionProtocol, bucket: TokenBucket, name: str | None) -> None:
        self.server_session = server_session
        self.bucket = bucket
        self.name = name
        self.last_active = 0.0
        self.busy = 0
        self.users = 0
        self.over = False


class HttpSessions:
    """All named sessions of an HTTP transport, at most `max_connections`.

    A new session replaces the one that has been idle longest among those without a connection. There always is one,
    because each connection uses at most one session.
    """

    def __init__(self, handler: Handler, limits: Limits, faults: ErrorLog) -> None:
        self._handler = handler
        self._limits = limits
        self._faults = faults
        # In the order of their last activity.
        self._all: dict[str, HttpSession] = {}

    def of(self, user: HttpConnection, name: str | None, now: float, token: str | None) -> HttpSession:
        """Return the session called `name`, a new one if there is none, as the session that `user` uses now."""
        if name is None:
            return HttpSession(self._handler.open(user.peer, token), user.bucket, None)
        session = self._all.pop(name, None)
        if session is None:
            self._make_room()
            session = HttpSession(
                self._handler.open(user.peer, token), TokenBucket(self._limits.max_rate), name
            )
        self._all[name] = session
        session.last_active = now
        if user.session is not session:
            self.release(user)
            user.session = session
            session.users += 1
        return session

    def release(self, user: HttpConnection) -> None:
        """The connection is closed, or uses another session."""
        if user.session is not None:
            user.session.users -= 1
            user.session = None

    def end(self, session: HttpSession) -> None:
        """End a session; the next request with its name begins another."""
        if session.over:
            return
        session.over = True
        if session.name is not None:
            self._all.pop(session.name, None)
        try:
            session.server_session.lost()
        except Exception as fault:
            self._faults.add(fault)

    def sweep(self, now: float) -> None:
        """End sessions that have been idle for too long; sooner if no connection uses them."""
        for session in list(self._all.values()):
            idle_for = now - session.last_active
            if idle_for <= min(self._limits.handshake_s, self._limits.idle_s):
                return
            if not session.busy and (not session.users or idle_for > self._limits.idle_s):
                self.end(session)

    def end_all(self) -> None:
        for session in list(self._all.values()):
            self.end(session)

    def _make_room(self) -> None:
        if len(self._all) < self._limits.max_connections:
            return
        for session in self._all.values():
            if not session.users:
                self.end(session)
                return


class _Refusal(Exception):  # noqa: N818
    """A request that is refused before it reaches a session."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


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


def _headers(scope: Scope) -> dict[bytes, str]:
    """Return the headers in use; values of a repeated header are joined, which makes them invalid."""
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in _HEADERS:
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


def _cors_headers(page: str) -> Headers:
    return [(b"access-control-allow-origin", page.encode("latin-1")), (b"vary", b"Origin")]


def _start(status: int, body: bytes, closes: bool, allowed: Headers) -> dict[str, object]:
    kind = b"application/json" if body[:1] in _JSON else b"application/msgpack"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *allowed]
    if closes:
        headers.append((b"connection", b"close"))
    return {"type": "http.response.start", "status": status, "headers": headers}
