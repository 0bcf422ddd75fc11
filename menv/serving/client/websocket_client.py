"""A client's connection over WebSocket. The package `websockets` does the protocol, this module the socket.

So one thread reads and writes it, like any other connection: an encrypted socket on which one thread writes while
another reads may, in some versions of Python, keep what was written to itself for ever. `client_connection` opens it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

from menv.errors import ConfigError, MissingExtraError
from menv.serving.client.client_address import ClientAddress
from menv.serving.client.client_socket import MOST_ANSWER_BYTES, end_socket, lost, open_socket
from menv.serving.client.pace import Pace
from menv.serving.client.wrong_scheme import look_at_bytes, look_at_status
from menv.serving.wire.bad_message import Code
from menv.serving.wire.dialect import Dialect
from menv.serving.wire.messages import Error, encode

_CHUNK = 1 << 16
_GOING_AWAY, _TOO_LARGE = 1001, 1009
_UNWELCOME = (401, 403)
_UNHEARD = logging.Logger("menv.serving.client.websocket", logging.CRITICAL)
"""What goes wrong is raised, not logged; this one is nobody's child and has no handler."""


class WebSocketClientConnection:
    """A binary message for each body; see `ClientConnection`."""

    answers_all = False

    def __init__(self, address: ClientAddress, token: str | None, timeout: float) -> None:
        try:
            from websockets.client import ClientProtocol
            from websockets.uri import parse_uri
        except ImportError as error:
            raise MissingExtraError(
                "PolicyClient: WebSocket needs websockets, which is not installed; pip install 'menv[serve]', "
                "or take an address that begins with http:// or tcp://"
            ) from error
        uri = parse_uri(f"ws{'s' * address.tls}://{address.authority}{address.path}")
        self._protocol = ClientProtocol(uri, max_size=MOST_ANSWER_BYTES, logger=_UNHEARD)
        self._bodies: list[bytes] = []
        self._fragments: list[bytes] = []
        self._is_told = False
        # Whoever closes may be another thread than the one that sends.
        self._writing = threading.Lock()
        self._timeout = timeout
        # What came before the answer to the handshake, which may be in another protocol.
        self._first = b""
        # Bytes that were read last.
        self._came = 0
        self._socket = open_socket(address, timeout)
        try:
            self._shake_hands(address, token)
        except BaseException:
            end_socket(self._socket)
            raise

    def send(self, body: bytes) -> None:
        """Send a message; see `ClientConnection`."""
        try:
            with self._writing:
                self._protocol.send_binary(body)
                self._flush()
        except Exception as error:
            # The package says in words of its own that the connection has ended.
            raise lost(error) from error

    def receive(self) -> bytes:
        """Return the next message; see `ClientConnection`."""
        pace = Pace(self._timeout)
        while not self._bodies:
            if self._protocol.close_expected():
                return self._last_word()
            frames = self._read()
            said = sum(map(self._take, frames))
            if not self._bodies:
                # Nobody waits longer for somebody who only says that he is there.
                pace.took(self._came if said or not frames else 0)
        return self._bodies.pop(0)

    def close(self) -> None:
        """End the connection, also for a thread that waits for a message."""
        with contextlib.suppress(Exception), self._writing:
            self._protocol.send_close(_GOING_AWAY)
            self._flush()
        end_socket(self._socket)

    def _shake_hands(self, address: ClientAddress, token: str | None) -> None:
        """Ask to be let in, and wait for the answer.

        Raises:
            ConfigError: The server lets nobody in with this token.
            ConnectionError: It does not answer, or wants no WebSocket.
        """
        protocol = self._protocol
        request = protocol.connect()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        try:
            protocol.send_request(request)
            self._flush()
        except OSError as error:
            raise lost(error) from error
        answer, pace = None, Pace(self._timeout)
        while answer is None and protocol.handshake_exc is None:
            # Messages may have come with the answer.
            answer, *frames = self._read() or [None]
            pace.took(self._came)
            for frame in frames:
                self._take(frame)
        why = protocol.handshake_exc
        if why is None:
            return
        status = getattr(answer, "status_code", None)
        if status is None:
            look_at_bytes(address, self._first)
            raise ConnectionResetError("the server ended the connection before it answered")
        if status in _UNWELCOME:
            raise ConfigError(
                f"PolicyClient: {address} refuses ({why}), expected to be let in; check token and address"
            ) from why
        look_at_status(address, status)
        raise ConnectionRefusedError(f"the server lets no WebSocket in ({why})") from why

    def _last_word(self) -> bytes:
        """Return the ERROR that other carriers send where a message was too large; here the farewell tells it.

        Raises:
            ConnectionError: The connection ended for another reason, or this was said already.
        """
        end, was_told, self._is_told = self._protocol.close_rcvd, self._is_told, True
        if was_told or end is None or end.code != _TOO_LARGE:
            raise ConnectionResetError("the server ended the connection")
        why = f"a body that the server does not take ({end.reason}); see Limits.max_body"
        return encode(Error(code=Code.TOO_LARGE, message=why), Dialect.MSGPACK)

    def _read(self) -> list[Any]:
        """Return what the next bytes hold: the answer to the handshake, or frames; waits for bytes.

        Raises:
            ConnectionError: None come any more, or not in time.
        """
        protocol = self._protocol
        try:
            data = self._socket.recv(_CHUNK)
            self._came = len(data)
            self._first = self._first or data
            if data:
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
            events: list[Any] = protocol.events_received()
            with self._writing:
                # A pong, or the answer to a farewell.
                self._flush()
        except Exception as error:
            raise lost(error) from error
        if not data and not events and protocol.handshake_exc is None:
            raise ConnectionResetError("the server ended the connection")
        return events

    def _take(self, frame: Any) -> bool:
        """Take a frame in, and return whether it is a part of a message and nothing about the connection."""
        from websockets.frames import Opcode

        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return False
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            self._bodies.append(b"".join(self._fragments))
            self._fragments.clear()
        return True

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            # Nothing stands for the end, which `close` sees to.
            if data:
                self._socket.sendall(data)
