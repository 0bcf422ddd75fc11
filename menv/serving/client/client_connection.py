"""A client's connection to a server: bodies there and back, over HTTP, TCP or WebSocket.

`client_link` opens them and closes them when they fail. They know no messages. Whatever goes wrong on the way is a
`ConnectionError`, for which there is one cure: to connect again.
"""

from __future__ import annotations

import contextlib
import http.client
import secrets
import socket
import ssl
from typing import Any, Protocol

from menv.errors import ConfigError, MissingExtraError
from menv.serving.client.client_address import ClientAddress
from menv.serving.wire.bad_message import BadMessageError
from menv.serving.wire.framing import MOST_BODY_BYTES, Frames, frame

_CHUNK = 1 << 18
_OPEN_S = 5.0
"""Seconds for the handshake of a WebSocket, which is tried again then: encrypted ones were seen that never end, though
both sides wait for each other."""
_CLOSE_S = 1.0
_UNWELCOME = (401, 403)
_MSGPACK = "application/msgpack"


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
        ConfigError: The server lets nobody in with this token.
        MissingExtraError: WebSocket needs a package that is not installed.
    """
    kinds: dict[str, Any] = {"http": HttpClientConnection, "ws": WebSocketClientConnection}
    try:
        if address.scheme == "tcp":
            return TcpClientConnection(address, timeout)
        opened: ClientConnection = kinds[address.scheme](address, token, timeout, name)
    except OSError as error:
        raise _lost(error) from error
    return opened


class TcpClientConnection:
    """RLlink's frames on a socket."""

    answers_all = False

    def __init__(self, address: ClientAddress, timeout: float) -> None:
        self._socket = socket.create_connection((address.host, address.port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            self._socket = _context().wrap_socket(self._socket, server_hostname=address.host)
        self._frames = Frames(MOST_BODY_BYTES)
        self._bodies: list[bytes] = []

    def send(self, body: bytes) -> None:
        """Send a body; see `ClientConnection`."""
        try:
            self._socket.sendall(frame(body))
        except OSError as error:
            raise _lost(error) from error

    def receive(self) -> bytes:
        """Return the next body; see `ClientConnection`."""
        while not self._bodies:
            try:
                data = self._socket.recv(_CHUNK)
            except OSError as error:
                raise _lost(error) from error
            if not data:
                raise ConnectionResetError("the server ended the connection")
            try:
                self._bodies = self._frames.feed(data)
            except BadMessageError as error:
                raise ConnectionAbortedError(f"the server sent no frame ({error.text})") from error
        return self._bodies.pop(0)

    def close(self) -> None:
        """End the connection, also for a thread that waits for a body."""
        _end(self._socket)


class HttpClientConnection:
    """A POST for each body, on a connection that is kept."""

    answers_all = True

    def __init__(self, address: ClientAddress, token: str | None, timeout: float, name: str) -> None:
        if address.tls:
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.host, address.port, timeout=timeout, context=_context()
            )
        else:
            self._http = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
        self._path = address.path
        self._headers = {"Content-Type": _MSGPACK, "menv-session": name}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        # A connection that ended was one conversation's; the link decides what is sent on a new one.
        self._http.connect()
        self._http.auto_open = 0

    def send(self, body: bytes) -> None:
        """Send a request; see `ClientConnection`."""
        try:
            self._http.request("POST", self._path, body, self._headers)
        except (OSError, http.client.HTTPException) as error:
            raise _lost(error) from error

    def receive(self) -> bytes:
        """Return the body of the response; see `ClientConnection`."""
        try:
            with contextlib.closing(self._http.getresponse()) as response:
                # Where headers break off the rest would pass for an empty body.
                if not response.length:
                    raise ConnectionResetError("the response broke off, or is none of a server of menv")
                return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _lost(error) from error

    def close(self) -> None:
        """End the connection, also for a thread that waits for a response."""
        if self._http.sock is not None:
            _end(self._http.sock)
        self._http.close()


class WebSocketClientConnection:
    """A binary message for each body."""

    answers_all = False

    def __init__(self, address: ClientAddress, token: str | None, timeout: float, name: str) -> None:
        try:
            from websockets.exceptions import InvalidHandshake, WebSocketException
            from websockets.sync.client import connect as open_websocket
        except ImportError as error:
            raise MissingExtraError(
                "PolicyClient: WebSocket needs websockets, which is not installed; pip install 'menv[serve]', "
                "or take an address that begins with http:// or tcp://"
            ) from error
        self._timeout = timeout
        self._errors = (OSError, EOFError, WebSocketException)
        try:
            # As a context manager, because newer versions connect no earlier.
            self._opened = open_websocket(
                f"ws{'s' * address.tls}://{address.authority}{address.path}",
                additional_headers=None if token is None else {"Authorization": f"Bearer {token}"},
                compression=None,
                open_timeout=min(timeout, _OPEN_S),
                close_timeout=_CLOSE_S,
                max_size=None,
                ssl=_context() if address.tls else None,
            )
            self._websocket = self._opened.__enter__()
        except InvalidHandshake as error:
            if getattr(getattr(error, "response", None), "status_code", None) in _UNWELCOME:
                raise ConfigError(
                    f"PolicyClient: {address} refuses ({error}), expected to be let in; check token and address"
                ) from error
            raise ConnectionRefusedError(f"the server lets no WebSocket in ({error})") from error
        except self._errors as error:
            # Cut before the handshake was over; encrypted, that is no OSError.
            raise _lost(error) from error

    def send(self, body: bytes) -> None:
        """Send a message; see `ClientConnection`."""
        try:
            self._websocket.send(body)
        except self._errors as error:
            raise _lost(error) from error

    def receive(self) -> bytes:
        """Return the next message; see `ClientConnection`."""
        try:
            message = self._websocket.recv(self._timeout)
        except self._errors as error:
            raise _lost(error) from error
        return message.encode() if isinstance(message, str) else message

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(*self._errors):
            self._opened.__exit__(None, None, None)


def _end(connected: socket.socket) -> None:
    # Closing alone would leave a thread waiting that reads from it.
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
    connected.close()


def _context() -> ssl.SSLContext:
    """Return what trusts the authorities of this machine, and those in the file that SSL_CERT_FILE names."""
    return ssl.create_default_context()


def _lost(error: Exception) -> ConnectionError:
    """Return any failure on the way as one kind of error."""
    if isinstance(error, ConnectionError):
        return error
    if isinstance(error, TimeoutError):
        return ConnectionAbortedError("no answer in time")
    return ConnectionAbortedError(str(error) or type(error).__name__)
