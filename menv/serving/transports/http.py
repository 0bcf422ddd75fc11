"""HTTP: a Starlette application under uvicorn.

`POST /rllink` has one body in the request and one in the response. `GET /health` and `GET /metrics` are for operators.
`ListeningSocket` bounds what uvicorn does not: connections without a request, and the time that they may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from weakref import WeakSet

from menv.errors import MissingExtraError
from menv.serving.limits import Limits
from menv.serving.protocol import frame
from menv.serving.transports.access import Access, bearer
from menv.serving.transports.transport import (
    MAX_DISCARDED,
    Arrival,
    Handler,
    Listener,
    Peer,
    SessionProtocol,
    Transport,
)

try:
    import h11
    from starlette.applications import Starlette
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import Message, Receive, Scope, Send
    from uvicorn import Config, Server
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtraError(
        "HttpTransport: the packages starlette and uvicorn are not installed; run: pip install 'menv-rl[serve]'"
    ) from error

LINGER_S = 1.0
"""Seconds that a refused peer has to read the reason."""
_JSON = b"{ \t\r\n"
_SESSION = re.compile(r"(?:[0-9a-fA-F]{2}){16,64}")
_HEADERS = (b"authorization", b"content-length", b"host", b"menv-session", b"origin")
_MAX_PIECES = 64
"""Pieces of a body in the chunked encoding, and further ones of `_PIECE_BYTES` bytes on average."""
_PIECE_BYTES = 1_024


class HttpTransport(Listener):
    """Listens for HTTP clients.

    Requests with the same value of the header `menv-session` (16 to 64 random bytes in hexadecimal, chosen by the
    client) share a session; a request without it has a session for itself. If the server has a token, every request
    shows it in the header `Authorization: Bearer`. Port 0 chooses a free port.

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
                Route("/rllink", cast(Any, _Endpoint(self, self._rllink)), methods=["POST"]),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ]
        )

        self.app.router.redirect_slashes = False

    async def start(self, handler: Handler, limits: Limits, access: Access) -> tuple[str, int]:
        """Bind and begin to accept; see `Transport.start`."""
        tls = access.tls()
        config = Config(
            self._bounded, interface="asgi3", loop="none", http=cast(Any, partial(_HttpProtocol, self)),
            ws="none", lifespan="off",
            log_config=None, log_level=None, proxy_headers=False, server_header=False,
            date_header=False, timeout_keep_alive=math.ceil(limits.idle_s) + 1, timeout_graceful_shutdown=0,
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
        listening.answer_first = self._answer_first
        server = self._server = Server(config)
        loop = asyncio.get_running_loop()
        _LOOPS.add(loop)
        for name in ("uvicorn.error", "uvicorn.access"):
            logging.getLogger(name).addFilter(_is_of_another_server)
        serving = self._serving = loop.create_task(server.serve([listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.001)
        if serving.done():
            await serving
        host, port = listening.getsockname()[:2]
        return host, port

    async def stop(self) -> None:
        """Close the port, all connections and all sessions."""
        if self.listening is None:
            return
        await self._accept_no_more()
        arrivals = list(self.listening.arrivals.values())
        if self._serving is not None:
            self._server.should_exit = True
            for arrival in arrivals:
                # Requests that wait for a reply get none.
                arrival.on_close()
            await asyncio.wait([self._serving])
        await self._cut_all()
        for session in list(self.sessions.values()):
            self._end(session)

    def _answer_first(self, data: bytes) -> bytes | None:
        # No HTTP request begins with a digit. A client that sends a frame of TCP waits for one.
        if not data[:1].isdigit():
            return None
        why = "bad_frame: this port speaks HTTP, expected no frame of TCP; let the address begin with http://"
        return frame(self.handler.refused(why))

    # ASGI applications.

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Bound the time and the number of requests, around the application."""
        assert self.listening is not None
        arrival = self.listening.arrivals.get((scope["client"], scope["server"]))
        if arrival is None:
            # It is closed already, or gives way to another connection.
            return

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(self.limits.idle_s if arrival.kept else self.limits.handshake_s):
                    await send(message)
            except TimeoutError:
                arrival.cut()

        scope["arrival"] = arrival
        arrival.begin()
        try:
            if arrival.refused:
                most = self.limits.max_connections
                why = f"too_many: {most} peers are connected, expected fewer; see Limits.max_connections"
                await self._refuse(_Refusal(503, why), scope, receive, send_in_time)
                return
            await self.app(scope, receive, send_in_time)
        except Exception as fault:
            self.faults.add(fault)
            arrival.cut()
        finally:
            arrival.end()

    async def _health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _metrics(self, request: Request) -> Response:
        try:
            self._check_access(_headers(request.scope["headers"]))
        except _Refusal as refusal:
            return Response(self.handler.refused(refusal.why), refusal.status, media_type="application/json")
        return Response(self.handler.metrics(), media_type="text/plain; version=1.0.0; charset=utf-8")

    async def _rllink(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope["headers"])
        try:
            token = self._check_access(headers)
            name = _session_name(headers)
            async with asyncio.timeout(self.limits.handshake_s):
                body = await self._body(headers, scope["arrival"], receive)
        except _Refusal as refusal:
            await self._refuse(refusal, scope, receive, send)
        except TimeoutError:
            why = (
                f"too_slow: a body was not whole after {self.limits.handshake_s:g} s; see Limits.handshake_s"
            )
            await self._refuse(_Refusal(408, why), scope, receive, send)
        else:
            if body is not None:
                scope["arrival"].kept = True
                await self._exchange(scope["arrival"], name, token, body, send)

    async def _exchange(
        self, arrival: Arrival, name: str | None, token: str | None, body: bytes, send: Send
    ) -> None:
        loop = asyncio.get_running_loop()
        replied: asyncio.Future[bytes | None] = loop.create_future()
        closes = responded = False

        def reply(body: bytes | None) -> None:
            if not replied.done():
                replied.set_result(body)

        def close() -> None:
            nonlocal closes
            closes = True
            reply(None)
            if responded:
                self._end(session)

        def leave() -> None:
            session.users.discard(arrival)
            reply(None)

        # It may have been in another session.
        arrival.on_close()
        session = self._session_of(arrival, name, token)
        arrival.on_close = leave
        session.busy += 1
        try:
            while wait := arrival.bucket.wait(loop.time()):
                await asyncio.sleep(wait)
            session.server_session.received(body, reply, close)
            answer = await replied
            if answer is None or arrival.broken:
                arrival.cut()
                return
            await send(_start(200, answer, closes))
            await send({"type": "http.response.body", "body": answer})
        except Exception:
            closes = True
            raise
        finally:
            responded = True
            session.busy -= 1
            session.last_active = loop.time()
            if name is None or closes:
                self._end(session)

    def _session_of(self, arrival: Arrival, name: str | None, token: str | None) -> HttpSession:
        """Return the session called `name`, a new one if there is none.

        A new session replaces the one that has been idle longest among those without a connection. There always is
        one, because each connection uses at most one session.
        """
        session = self.sessions.pop(name, None)
        if session is None:
            unused = [one for one in self.sessions.values() if not one.users]
            if name is not None and len(self.sessions) >= self.limits.max_connections and unused:
                self._end(unused[0])
            session = HttpSession(name, self.handler.open(Peer.at("http", arrival.key[0]), token))
        if name is not None:
            self.sessions[name] = session
        session.last_active = asyncio.get_running_loop().time()
        session.users.add(arrival)
        return session

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

    def _end_slow(self, now: float) -> None:
        """End sessions that have been idle for too long; sooner if no connection uses them."""
        for session in list(self.sessions.values()):
            idle_for = now - session.last_active
            if idle_for <= min(self.limits.handshake_s, self.limits.idle_s):
                return
            if not session.busy and (not session.users or idle_for > self.limits.idle_s):
                self._end(session)

    def _check_access(self, headers: dict[bytes, str]) -> str | None:
        access = self.access
        if why := access.stranger(headers.get(b"origin"), headers.get(b"host")):
            raise _Refusal(403, why)
        token = bearer(headers.get(b"authorization"))
        if not access.admits(token):
            raise _Refusal(
                401,
                "not_allowed: expected the server's token in the header Authorization: Bearer "
                "(menv serve --token-file)",
            )
        return token if access.token is not None else None

    async def _body(self, headers: dict[bytes, str], arrival: Arrival, receive: Receive) -> bytes | None:
        """Return the request's body; None if the peer has disconnected."""
        most = self.limits.max_body
        body, size, more = bytearray(), int(headers.get(b"content-length", "0")), True
        while more or size > most:
            if size > most:
                raise _Refusal(413, f"too_large: a body of more than {most} bytes; see Limits.max_body")
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            if arrival.scattered:
                raise _Refusal(413, _SCATTERED)
            body += message["body"]
            size, more = len(body), message["more_body"]
        return bytes(body)

    async def _refuse(self, refusal: _Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond with an ERROR, then read on for a moment: closing at once could lose the response."""
        body = self.handler.refused(refusal.why)
        arrival: Arrival = scope["arrival"]
        arrival.kept = False
        await send(_start(refusal.status, body, True))
        await send({"type": "http.response.body", "body": body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._discard(receive)
        await send({"type": "http.response.body", "body": b""})

    async def _discard(self, receive: Receive) -> None:
        left = MAX_DISCARDED * self.limits.max_body
        while left > 0:
            message = await receive()
            if message["type"] == "http.disconnect" or not message["more_body"]:
                return
            left -= len(message["body"])


_LOOPS: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def _is_of_another_server(_: logging.LogRecord) -> bool:
    """Whether uvicorn logs something for another server of this program: what peers do wrong here is not logged."""
    return asyncio._get_running_loop() not in _LOOPS


class _Endpoint:
    """An ASGI application; Starlette would take a function for one of a request."""

    def __init__(self, transport: Transport, app: Callable[[Scope, Receive, Send], Any]) -> None:
        self._transport = transport
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as fault:
            self._transport.faults.add(fault)
            scope["arrival"].cut()


_SCATTERED = (
    f"too_many: a body in more than {_MAX_PIECES} pieces of less than {_PIECE_BYTES} bytes on average, expected larger "
    "ones; send it whole, with Content-Length"
)


class _HttpConnection(h11.Connection):
    """Reads nothing after too many pieces of one body, because each costs as much time as a small request.

    Args:
        admits: Whether a request with these headers shows the token; others may have one piece.
    """

    def __init__(self, admits: Callable[[Iterable[tuple[bytes, bytes]]], bool]) -> None:
        super().__init__(h11.SERVER)
        self.scattered = False
        self._admits = admits
        self._most = self._pieces = self._size = 0

    def next_event(self) -> Any:
        event = h11.NEED_DATA if self.scattered else super().next_event()
        if isinstance(event, h11.Request):
            self._most, self._pieces, self._size = _MAX_PIECES if self._admits(event.headers) else 1, 0, 0
        elif isinstance(event, h11.Data):
            self._pieces += event.chunk_start
            self._size += len(event.data)
            self.scattered = self._pieces > self._most + self._size // _PIECE_BYTES
        return event


class _HttpProtocol(H11Protocol):
    """Drops the rest of a body that has too many pieces; `HttpTransport` refuses the request."""

    conn: _HttpConnection

    def __init__(self, listener: HttpTransport, **settings: Any) -> None:
        super().__init__(**settings)
        self._listener = listener
        self.conn = _HttpConnection(
            lambda headers: listener.access.admits(bearer(_headers(headers).get(b"authorization")))
        )

    def data_received(self, data: bytes) -> None:
        if self.conn.scattered:
            return
        super().data_received(data)
        arrival = self._listener.arrival(self.transport) if self.conn.scattered else None
        if arrival is not None:
            arrival.scattered = True


@dataclass(eq=False, slots=True)
class HttpSession:
    """A session that outlives its requests and may span several connections of one client.

    Attributes:
        name: Value of the header `menv-session`; None for a session of one request.
        last_active: When the last request began or ended.
        busy: Requests that wait for their reply.
        users: Connections whose last request was in this session.
    """

    name: str | None
    server_session: SessionProtocol
    last_active: float = 0.0
    busy: int = 0
    users: set[Arrival] = field(default_factory=set)
    over: bool = False


class _Refusal(Exception):  # noqa: N818
    """A request that is refused before it reaches a session."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


def _headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """Return the headers in use; values of a repeated header are joined, which makes them invalid."""
    found: dict[bytes, str] = {}
    for name, value in headers:
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


def _start(status: int, body: bytes, closes: bool) -> dict[str, Any]:
    kind = b"application/json" if body[:1] in _JSON else b"application/msgpack"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    if closes:
        headers.append((b"connection", b"close"))
    return {"type": "http.response.start", "status": status, "headers": headers}
