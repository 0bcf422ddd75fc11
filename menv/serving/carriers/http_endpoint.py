"""What answers POST /rllink: the request's body is one body, and so is the response's.

An ASGI application, imported when an HTTP transport starts. Whom it lets in, `Access` says; what bodies mean, the
conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from menv.serving.carriers.access import bearer
from menv.serving.carriers.http_connection import HttpConnection
from menv.serving.carriers.listener import LINGER_S, MOST_DISCARDED

if TYPE_CHECKING:
    from menv.serving.carriers.http import HttpTransport

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
