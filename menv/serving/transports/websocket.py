"""WebSocket: one message is one body. JSON is sent as text, msgpack as binary; both are accepted as either.

The package `websockets` implements the protocol without sockets, so slices, limits and timeouts come from
`StreamConnection`, and no task runs per connection.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from menv.errors import MissingExtraError
from menv.serving.transports.access import bearer
from menv.serving.transports.listener import Listener, http_request_reply, tcp_frame_reply, unavailable
from menv.serving.transports.stream_connection import StreamConnection

try:
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Request, Response
    from websockets.protocol import State
    from websockets.server import ServerProtocol
except ImportError as error:
    raise MissingExtraError(
        "WebSocketTransport: the package websockets is not installed, expected it for this transport; "
        "run: pip install 'menv-rl[serve]'"
    ) from error


class WebSocketTransport(Listener):
    """Listens for WebSocket clients at the path `/rllink` or `/`, on another port than HTTP.

    A client sends its token in the header `Authorization: Bearer` or in GET_CONFIG, because a web page cannot set
    headers of a WebSocket. Port 0 chooses a free port.
    """

    reads_together = True

    def _connection(self) -> asyncio.Protocol:
        return WebSocketConnection(self)

    def _full_response(self) -> bytes:
        return unavailable(self.handler.refused(self._full_reason()))


_PATHS = ("/", "/rllink")
_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_JSON = b"{ \t\r\n"
_GOING_AWAY, _POLICY_VIOLATION = 1001, 1008
_SILENT_LOGGER = logging.Logger("menv.serving.transports.websocket", logging.CRITICAL)
"""Has no parent and no handler: faults of peers are reported to the peers, not logged."""


class WebSocketConnection(StreamConnection):
    """One WebSocket client."""

    kind = "websocket"
    # Parsing short frames is ten times slower than for TCP.
    slice_bytes = 8_192

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._protocol = ServerProtocol(max_size=listener.limits.max_body, logger=_SILENT_LOGGER)
        self._fragments: bytearray | None = None
        self._between_frames = False
        self._is_new = True

    def _parse(self, data: bytes) -> list[bytes]:
        bodies: list[bytes] = []
        if self._is_new:
            self._is_new = False
            self._reject_other_protocol(data)
        # Parse the handshake line by line: the package must not see the following bytes before it is answered.
        while data and self._protocol.state is State.CONNECTING and self._close_reason is None:
            end = data.find(b"\n") + 1 or len(data)
            self._feed(data[:end], bodies)
            data = data[end:]
        if data and self._close_reason is None:
            self._feed(data, bodies)
        return bodies

    def _reject_other_protocol(self, data: bytes) -> None:
        refused = self._listener.handler.refused
        reply = tcp_frame_reply(data, "WebSocket", "ws", refused) or http_request_reply(data, refused)
        if reply is not None:
            self._transport.write(reply)
            self._close_reason = ""

    def _feed(self, data: bytes, bodies: list[bytes]) -> None:
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._between_frames = bool(events)
        for event in events:
            if isinstance(event, Request):
                self._answer_handshake(event)
            elif isinstance(event, Frame) and event.opcode in _DATA:
                self._add_frame(event, bodies)
        self._flush()

    def _add_frame(self, frame: Frame, bodies: list[bytes]) -> None:
        if frame.fin and self._fragments is None:
            bodies.append(bytes(frame.data))
            return
        if self._fragments is None:
            self._fragments = bytearray()
        self._fragments += frame.data
        if frame.fin:
            bodies.append(bytes(self._fragments))
            self._fragments = None

    def _is_partial(self) -> bool:
        # The last bytes made no event, so they are a part of one.
        return self._session is None or self._fragments is not None or not self._between_frames

    def _send(self, body: bytes) -> None:
        if self._protocol.state is not State.OPEN:
            return
        if body and body[0] in _JSON:
            self._protocol.send_text(body)
        else:
            self._protocol.send_binary(body)
        self._flush()

    def _send_close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(_POLICY_VIOLATION)
            self._flush()

    def hang_up(self) -> None:
        """Send a close frame after all replies, then close."""
        if not self._ending and self._protocol.state is State.OPEN:
            self._protocol.send_close(_GOING_AWAY)
            self._flush()
        super().hang_up()

    def eof_received(self) -> bool:
        # WebSocket connections have no halves.
        return False

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
        if self._protocol.close_expected():
            self._close_reason = ""

    def _answer_handshake(self, request: Request) -> None:
        protocol, handler = self._protocol, self._listener.handler
        token = bearer(_header(request, "Authorization"))
        status, why = self._check_request(request, token)
        if why:
            protocol.send_response(self._rejection(status, handler.refused(why)))
            return
        protocol.send_response(protocol.accept(request))
        if protocol.state is State.OPEN:
            self._open_session(token if self._listener.access.token is not None else None)

    def _check_request(self, request: Request, token: str | None) -> tuple[HTTPStatus, str | None]:
        access = self._listener.access
        if request.path.partition("?")[0] not in _PATHS:
            return HTTPStatus.NOT_FOUND, "not_allowed: nothing is at this path, expected /rllink"
        if token is not None and not access.admits(token):
            return (
                HTTPStatus.UNAUTHORIZED,
                "not_allowed: the token in the header Authorization is not the right one",
            )
        return HTTPStatus.FORBIDDEN, access.stranger(_header(request, "Origin"), _header(request, "Host"))

    def _rejection(self, status: HTTPStatus, body: bytes) -> Response:
        response = self._protocol.reject(status, "")
        response.body = body
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body)))):
            del response.headers[name]
            response.headers[name] = value
        return response


def _header(request: Request, name: str) -> str | None:
    """Return a header's value; values of a repeated header are joined, which makes them invalid."""
    values = request.headers.get_all(name)
    return ", ".join(values) if values else None
