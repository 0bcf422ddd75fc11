"""HTTP: a Starlette application under uvicorn.

`POST /rllink` has one body in the request and one in the response. `GET /health` and `GET /metrics` are for operators.
uvicorn bounds neither the connections nor the time until a request is whole, so its protocol is extended by a
`Connection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from menv.errors import MissingExtraError
from menv.serving.limits import Limits
from menv.serving.transports.access import BACKLOG, Access, bearer
from menv.serving.transports.server import (
    FLUSH_S,
    LINGER_S,
    MAX_DISCARDED,
    Connection,
    Handler,
    Peer,
    SessionProtocol,
    Transport,
)

try:
    import h11
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
    from uvicorn import Config, Server
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtraError(
        "HttpTransport: the packages starlette and uvicorn are not installed; run: pip install 'menv-rl[serve]'"
    ) from error

_SESSION = re.compile(r"(?:[0-9a-fA-F]{2}){16,64}")


class HttpTransport(Transport):
    """Listens for HTTP clients.

    Requests with the same value of the header `menv-session` (16 to 64 random bytes in hexadecimal, chosen by the
    client) share a session; a request without it has a session for itself. If the server has a token, every request
    shows it in the header `Authorization: Bearer`. Bodies need `Content-Length`. Port 0 chooses a free port.

    Attributes:
        app: The Starlette application; add middleware before the server starts.
        sessions: HTTP sessions by name, in the order of their last activity.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.sessions: dict[str | None, HttpSession] = {}
        self._serving: asyncio.Task[None] | None = None
        self.app = Starlette(
            routes=[
                Route("/rllink", self._rllink, methods=["POST"]),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={_Refusal: cast(Any, self._refuse)},
        )
        self.app.router.redirect_slashes = False

    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        """Bind and begin to accept; see `Transport.start`."""
        tls = access.tls()
        config = Config(
            self.app, loop="none", http=cast(Any, partial(_HttpProtocol, self)), ws="none", lifespan="off",
            log_config=None, proxy_headers=False, server_header=False, date_header=False,
            timeout_keep_alive=math.ceil(limits.idle_s) + 1, timeout_graceful_shutdown=1, backlog=BACKLOG,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )  # fmt: skip
        if access.allowed_origins:
            self.app.add_middleware(
                CORSMiddleware,
                allow_origins=access.allowed_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type", "menv-session"],
            )
        listening = self._bind(handler, limits, access)
        server = self._server = Server(config)
        serving = self._serving = asyncio.get_running_loop().create_task(server.serve([listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.001)
        if serving.done():
            await serving
        host, port = listening.getsockname()[:2]
        return host, port

    async def stop(self) -> None:
        """Close the port, all connections and all sessions; requests that wait for a reply get none."""
        for session in self.sessions.values():
            for connection in session.users:
                connection.answer(None)
        # Replies that were just made are written.
        await asyncio.sleep(FLUSH_S / 10)
        await self._end_all()
        if self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])
        await self._end_all()
        for session in list(self.sessions.values()):
            self._end(session)

    async def respond(self, connection: HttpConnection, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the ASGI application of a connection."""
        scope["connection"] = connection
        connection.expect(self.limits.handshake_s)
        try:
            await self.app(scope, receive, send)
        except Exception as fault:
            self.faults.add(fault)
            connection.transport.abort()
        finally:
            connection.expect(self.limits.idle_s)

    async def _health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _metrics(self, request: Request) -> Response:
        self._check_access(request.headers)
        return Response(self.handler.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _rllink(self, request: Request) -> Response:
        connection: HttpConnection = request.scope["connection"]
        headers = request.headers
        if connection.refused:
            raise _Refusal(503, self.refusal)
        token, name = self._check_access(headers), headers.get("menv-session")
        if name is not None and not _SESSION.fullmatch(name):
            raise _Refusal(
                400, "malformed: the header menv-session is not 16 to 64 random bytes as hexadecimal digits"
            )
        if "transfer-encoding" in headers:
            raise _Refusal(
                411, "malformed: a body in chunks, expected the header Content-Length; send it whole"
            )
        if int(headers.get("content-length", "0")) > self.limits.max_body:
            why = f"too_large: a body of more than {self.limits.max_body} bytes; see Limits.max_body"
            raise _Refusal(413, why)
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response()
        return await self._exchange(connection, name, token, body)

    async def _exchange(
        self, connection: HttpConnection, name: str | None, token: str | None, body: bytes
    ) -> Response:
        session = self._session_of(connection, name, token)
        replied = connection.replied = asyncio.get_running_loop().create_future()
        closes = responded = False

        def close() -> None:
            nonlocal closes
            closes = True
            connection.answer(None)
            if responded:
                self._end(session)

        try:
            connection.expect(math.inf)
            session.server_session.received(body, connection.answer, close)
            answer = await replied
        except Exception:
            closes = True
            raise
        finally:
            responded = True
            connection.replied = None
            session.last_active = asyncio.get_running_loop().time()
            if name is None or closes:
                self._end(session)
        connection.expect(self.limits.idle_s)
        if answer is None:
            connection.transport.abort()
            return Response()
        return _response(200, answer, closes)

    def _session_of(self, connection: HttpConnection, name: str | None, token: str | None) -> HttpSession:
        """Return the session called `name`, a new one if there is none.

        A new session replaces the one that has been idle longest among those without a connection. There always is
        one, because each connection uses at most one session.
        """
        self.leave(connection)
        session = self.sessions.pop(name, None)
        if session is None:
            unused = [one for one in self.sessions.values() if not one.users]
            if name is not None and len(self.sessions) >= self.limits.max_connections and unused:
                self._end(unused[0])
            peer = Peer.at("http", connection.transport.get_extra_info("peername"))
            session = HttpSession(name, self.handler.open(peer, token))
        if name is not None:
            self.sessions[name] = session
        session.last_active = asyncio.get_running_loop().time()
        session.users.add(connection)
        connection.session = session
        return session

    def leave(self, connection: HttpConnection) -> None:
        """The connection leaves the session of its last request."""
        if connection.session is not None:
            connection.session.users.discard(connection)

    def _end(self, session: HttpSession) -> None:
        """End a session; the next request with its name begins another."""
        if session.over:
            return
        session.over = True
        self.sessions.pop(session.name, None)
        try:
            session.server_session.lost()
        except Exception as fault:
            self.faults.add(fault)

    def _end_late_sessions(self) -> None:
        """End sessions that have been idle for too long; sooner if no connection uses them."""
        now = asyncio.get_running_loop().time()
        for session in list(self.sessions.values()):
            most = self.limits.idle_s if session.users else min(self.limits.handshake_s, self.limits.idle_s)
            if now - session.last_active > most and not any(user.replied for user in session.users):
                self._end(session)

    def _check_access(self, headers: Headers) -> str | None:
        access = self.access
        if why := access.stranger(headers.get("origin"), headers.get("host")):
            raise _Refusal(403, why)
        token = bearer(headers.get("authorization"))
        if not access.admits(token):
            raise _Refusal(
                401,
                "not_allowed: expected the server's token in the header Authorization: Bearer "
                "(menv serve --token-file)",
            )
        return token if access.token is not None else None

    async def _refuse(self, request: Request, refusal: _Refusal) -> Response:
        # Closing with unread bytes would reset the connection and lose the response.
        left = MAX_DISCARDED * self.limits.max_body
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(LINGER_S):
                async for part in request.stream():
                    left -= len(part)
                    if left < 0:
                        break
        return _response(refusal.status, self.handler.refused(refusal.why), closes=True)


class HttpConnection(Connection):
    """A connection, and the session of its last request.

    Attributes:
        session: The session.
        replied: Gets the reply to a request that waits for it, None if there will be none.
    """

    session: HttpSession | None = None
    replied: asyncio.Future[bytes | None] | None = None

    def answer(self, body: bytes | None) -> None:
        """Reply to the request that waits, if there is one."""
        if self.replied is not None and not self.replied.done():
            self.replied.set_result(body)


class _H11Connection(h11.Connection):
    """Reads no bodies in chunks: each chunk, which may be a byte, would cost as much time as a small request."""

    _in_chunks = False

    def next_event(self) -> Any:
        event = h11.NEED_DATA if self._in_chunks else super().next_event()
        if isinstance(event, h11.Request):
            self._in_chunks = any(name == b"transfer-encoding" for name, _ in event.headers)
        return event


class _HttpProtocol(H11Protocol):
    """uvicorn's protocol with a bounded number of connections, which have bounded time."""

    def __init__(self, listener: HttpTransport, **settings: Any) -> None:
        super().__init__(**settings)
        self.conn = _H11Connection(h11.SERVER)
        self._listener = listener

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._connection = HttpConnection(transport)
        self._listener.add(self._connection)
        self.app = cast(Any, partial(self._listener.respond, self._connection))

    def connection_lost(self, error: Exception | None) -> None:
        # With an error, uvicorn would keep the connection in memory until its timer runs out.
        super().connection_lost(None)
        self._listener.remove(self._connection)
        self._listener.leave(self._connection)
        self._connection.answer(None)


@dataclass(eq=False, slots=True)
class HttpSession:
    """A session that outlives its requests and may span several connections of one client.

    Attributes:
        name: Value of the header `menv-session`; None for a session of one request.
        last_active: When the last request began or ended.
        users: Connections whose last request was in this session.
    """

    name: str | None
    server_session: SessionProtocol
    last_active: float = 0.0
    users: set[HttpConnection] = field(default_factory=set)
    over: bool = False


class _Refusal(Exception):  # noqa: N818
    """A request that is refused before it reaches a session."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


def _response(status: int, body: bytes, closes: bool) -> Response:
    return Response(body, status, {"connection": "close"} if closes else None, "application/json")
