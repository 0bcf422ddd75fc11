"""WebSocket: one message is one body. JSON goes out as text, anything else as binary; both are taken in."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from menv.errors import MissingExtraError
from menv.serving.transports.access import bearer
from menv.serving.transports.http import for_frames, for_requests, unavailable
from menv.serving.transports.listener import Listener
from menv.serving.transports.stream_connection import StreamConnection


class WebSocketTransport(Listener):
    """Listens for WebSocket clients at the path `/rllink`, or `/`.

    It has a port of its own beside HTTP's. A client shows its token in the header `Authorization: Bearer`, or in its
    GET_CONFIG, because a web page cannot set headers of a WebSocket.

    Args:
        port: 0 takes one that is free.
    """

    reads_together = True

    def _prepare(self) -> None:
        try:
            pass  # moved
        except ImportError as error:
            raise MissingExtraError(
                "WebSocketTransport: the package websockets is not installed, expected it for this transport; "
                "run: pip install 'menv[serve]'"
            ) from error
        self._connection_type = WebSocketConnection

    def _connection(self) -> asyncio.Protocol:
        return self._connection_type(self)

    def _full(self) -> bytes:
        return unavailable(self.handler.refused(self._why_full()))


# SEAM menv.serving.carriers.websocket_connection
# A WebSocket client's connection. The package `websockets` does the protocol without doing the sockets.
#
# So bodies, turns, limits and ends are those of every other stream, and no task runs for a connection.
# Imported when a
# WebSocket transport starts.


_PATHS = ("/", "/rllink")
_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_JSON = b"{ \t\r\n"
_GOING_AWAY, _POLICY_VIOLATION = 1001, 1008
_UNHEARD = logging.Logger("menv.serving.transports.websocket", logging.CRITICAL)
"""What peers do wrong is told to them, not to a log; this one is nobody's child and has no handler."""


class WebSocketConnection(StreamConnection):
    """One WebSocket client."""

    kind = "websocket"
    # A frame of a few bytes takes the package ten times as long as one of RLlink's.
    slice_bytes = 8_192

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._protocol = ServerProtocol(max_size=listener.limits.max_body, logger=_UNHEARD)
        self._fragments: bytearray | None = None
        self._stands_between = False
        self._is_new = True

    def _feed(self, data: bytes) -> list[bytes]:
        bodies: list[bytes] = []
        if self._is_new:
            self._is_new = False
            self._tell_a_stranger(data)
        # The package would read what follows a handshake before that is answered: so it gets line after line.
        while data and self._protocol.state is State.CONNECTING and self._farewell is None:
            end = data.find(b"\n") + 1 or len(data)
            self._take_in(data[:end], bodies)
            data = data[end:]
        if data and self._farewell is None:
            self._take_in(data, bodies)
        return bodies

    def _tell_a_stranger(self, data: bytes) -> None:
        refused = self._listener.handler.refused
        told = for_frames(data, "WebSocket", "ws", refused) or for_requests(data, refused)
        if told is not None:
            self._transport.write(told)
            self._farewell = ""

    def _take_in(self, data: bytes, bodies: list[bytes]) -> None:
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._stands_between = bool(events)
        for event in events:
            if isinstance(event, Request):
                self._answer_handshake(event)
            elif isinstance(event, Frame) and event.opcode in _DATA:
                self._take_frame(event, bodies)
        self._flush()

    def _take_frame(self, frame: Frame, bodies: list[bytes]) -> None:
        if frame.fin and self._fragments is None:
            bodies.append(bytes(frame.data))
            return
        if self._fragments is None:
            self._fragments = bytearray()
        self._fragments += frame.data
        if frame.fin:
            bodies.append(bytes(self._fragments))
            self._fragments = None

    def _in_the_middle(self) -> bool:
        # Bytes that made no event are a part of one; a ping in between makes one and is none of a body.
        return self._conversation is None or self._fragments is not None or not self._stands_between

    def _send(self, body: bytes) -> None:
        if self._protocol.state is not State.OPEN:
            return
        if body and body[0] in _JSON:
            self._protocol.send_text(body)
        else:
            self._protocol.send_binary(body)
        self._flush()

    def _say_goodbye(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(_POLICY_VIOLATION)
            self._flush()

    def hang_up(self) -> None:
        """End it, with a word, once everything written has been sent."""
        if not self._ending and self._protocol.state is State.OPEN:
            self._protocol.send_close(_GOING_AWAY)
            self._flush()
        super().hang_up()

    def eof_received(self) -> bool:
        """Take note that the peer sends no more."""
        # A WebSocket ends as a whole.
        return False

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
        if self._protocol.close_expected():
            self._farewell = ""

    def _answer_handshake(self, request: Request) -> None:
        protocol, handler = self._protocol, self._listener.handler
        token = bearer(_only(request, "Authorization"))
        status, why = self._look_at(request, token)
        if why:
            protocol.send_response(self._rejection(status, handler.refused(why)))
            return
        protocol.send_response(protocol.accept(request))
        if protocol.state is State.OPEN:
            self._start_talking(token if self._listener.access.token is not None else None)

    def _look_at(self, request: Request, token: str | None) -> tuple[HTTPStatus, str | None]:
        access = self._listener.access
        if request.path.partition("?")[0] not in _PATHS:
            return HTTPStatus.NOT_FOUND, "not_allowed: nothing is at this path, expected /rllink"
        if token is not None and not access.admits(token):
            return (
                HTTPStatus.UNAUTHORIZED,
                "not_allowed: the token in the header Authorization is not the right one",
            )
        return HTTPStatus.FORBIDDEN, access.stranger(_only(request, "Origin"), _only(request, "Host"))

    def _rejection(self, status: HTTPStatus, body: bytes) -> Response:
        response = self._protocol.reject(status, "")
        response.body = body
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body)))):
            del response.headers[name]
            response.headers[name] = value
        return response


def _only(request: Request, name: str) -> str | None:
    """Return a header's value; what comes several times is as wrong as a wrong value."""
    values = request.headers.get_all(name)
    return ", ".join(values) if values else None
