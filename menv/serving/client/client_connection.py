"""A client's connection to a server: bodies there and back, over HTTP, TCP or WebSocket.

`client_link` opens them and closes them when they fail. They know no messages, but for the refusal that a WebSocket
ends with. Whatever goes wrong on the way is a `ConnectionError`, for which there is one cure: to connect again.
"""

from __future__ import annotations

import contextlib
import http.client
import secrets
from typing import Protocol

from menv.serving.client.client_address import ClientAddress
from menv.serving.client.client_socket import MOST_ANSWER_BYTES, encryption, end_socket, lost, open_socket
from menv.serving.client.pace import Pace, PacedResponse
from menv.serving.client.websocket_client import WebSocketClientConnection
from menv.serving.client.wrong_scheme import look_at_bytes, look_at_encryption
from menv.serving.wire.bad_message import BadMessageError
from menv.serving.wire.framing import MOST_BODY_BYTES, Frames, frame

_CHUNK = 1 << 16
"""Bytes read at once: for more, each look at the socket takes fresh memory from the system, even if little has come."""
_MSGPACK = "application/msgpack"
_OF_PROXIES = (502, 503, 504)


class ClientConnection(Protocol):
    """One connection, used by one thread at a time.

    Attributes:
        answers_all: Whether every body is answered, also those that need no answer.
    """

    answers_all: bool

    def send(self, body: bytes) -> None:
        """Send a body.

        Raises:
            ConnectionError: It cannot be sent.
        """

    def receive(self) -> bytes:
        """Return the next body; waits for it.

        Raises:
            ConnectionError: None comes any more, or not in time.
        """

    def close(self) -> None:
        """End the connection."""


def new_session_name() -> str:
    """Return a name for a conversation over HTTP, which goes over several connections."""
    return secrets.token_hex(16)


def connect(address: ClientAddress, token: str | None, timeout: float, name: str) -> ClientConnection:
    """Return a connection.

    Args:
        address: Of the server.
        token: What HTTP and WebSocket show in a header.
        timeout: Seconds that anything may take.
        name: Of the conversation, over HTTP.

    Raises:
        ConnectionError: Nobody answers there.
        ConfigError: The server lets nobody in with this token, or speaks in another way than the address says.
        MissingExtraError: WebSocket needs a package that is not installed.
    """
    try:
        if address.scheme == "tcp":
            return TcpClientConnection(address, timeout)
        if address.scheme == "http":
            return HttpClientConnection(address, token, timeout, name)
        return WebSocketClientConnection(address, token, timeout)
    except OSError as error:
        look_at_encryption(address, error)
        raise lost(error) from error


class TcpClientConnection:
    """RLlink's frames on a socket."""

    answers_all = False

    def __init__(self, address: ClientAddress, timeout: float) -> None:
        self._address, self._timeout = address, timeout
        self._socket = open_socket(address, timeout)
        self._frames = Frames(MOST_BODY_BYTES)
        self._bodies: list[bytes] = []

    def send(self, body: bytes) -> None:
        """Send a body; see `ClientConnection`."""
        try:
            self._socket.sendall(frame(body))
        except OSError as error:
            raise lost(error) from error

    def receive(self) -> bytes:
        """Return the next body; see `ClientConnection`."""
        pace: Pace | None = None
        while not self._bodies:
            try:
                data = self._socket.recv(_CHUNK)
            except OSError as error:
                raise lost(error) from error
            if not data:
                raise ConnectionResetError("the server ended the connection")
            try:
                self._bodies = self._frames.feed(data)
            except BadMessageError as error:
                look_at_bytes(self._address, data)
                raise ConnectionAbortedError(f"the server sent no frame ({error.text})") from error
            if not self._bodies:
                pace = pace or Pace(self._timeout)
                pace.took(len(data))
        return self._bodies.pop(0)

    def close(self) -> None:
        """End the connection, also for a thread that waits for a body."""
        end_socket(self._socket)


class HttpClientConnection:
    """A POST for each body, on a connection that is kept."""

    answers_all = True

    def __init__(self, address: ClientAddress, token: str | None, timeout: float, name: str) -> None:
        if address.tls:
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.host, address.port, timeout=timeout, context=encryption()
            )
        else:
            self._http = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
        self._address, self._path = address, address.path
        self._headers = {"Content-Type": _MSGPACK, "menv-session": name}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._http.response_class = PacedResponse
        # A connection that ended was one conversation's; the link decides what is sent on a new one.
        self._http.connect()
        self._http.auto_open = 0

    def send(self, body: bytes) -> None:
        """Send a request; see `ClientConnection`."""
        try:
            self._http.request("POST", self._path, body, self._headers)
        except (OSError, http.client.HTTPException) as error:
            raise lost(error) from error

    def receive(self) -> bytes:
        """Return the body of the response; see `ClientConnection`."""
        try:
            with contextlib.closing(self._http.getresponse()) as response:
                return _body_of(response)
        except http.client.BadStatusLine as error:
            look_at_bytes(self._address, str(error).encode("latin-1", "replace"))
            raise lost(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise lost(error) from error

    def close(self) -> None:
        """End the connection, also for a thread that waits for a response."""
        if self._http.sock is not None:
            end_socket(self._http.sock)
        self._http.close()


def _body_of(response: http.client.HTTPResponse) -> bytes:
    """Return the whole body of a response.

    Raises:
        ConnectionError: It breaks off, or is that of a proxy whose server is away.
    """
    # Where headers break off the rest would pass for an empty body, and only chunks tell their end otherwise.
    if not (response.length or response.chunked):
        raise ConnectionResetError("the response broke off, or is none of a server of menv")
    if (response.length or 0) > MOST_ANSWER_BYTES:
        raise ConnectionResetError(f"a response of {response.length} bytes is none of a server of menv")
    # Told how much, it would take a part that broke off for all that was announced.
    body = response.read(MOST_ANSWER_BYTES if response.chunked else None)
    # A server of menv that has no room says so in a message.
    if response.status in _OF_PROXIES and not body.startswith(b'{"type":"ERROR"'):
        raise ConnectionResetError(f"status {response.status} of a proxy, whose server is away")
    if not body:
        raise ConnectionResetError("an empty response is none of a server of menv")
    return body
