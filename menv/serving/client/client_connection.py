"""A client's connection to a server: bodies there and back, over HTTP, TCP or WebSocket.

`client_link` opens them and closes them when they fail. They know no messages, but for the refusal that a WebSocket
ends with. Whatever goes wrong on the way is a `ConnectionError`, for which there is one cure: to connect again.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import logging
import secrets
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from menv.errors import ConfigError, MissingExtraError
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat
from menv.serving.protocol import MOST_BODY_BYTES, Error, Frames, encode, frame

# SEAM menv.serving.client.client_address
# Where a server is, as people write it: "http://localhost:9900". Clients read addresses with it; it opens
# nothing.
#
# It also looks at the token that is to be shown there.


SCHEMES = ("http", "https", "tcp", "tcps", "ws", "wss")
_ENCRYPTED = ("https", "tcps", "wss")
_PATH = "/rllink"
_LAST_OF_HEADERS = 0xFF


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """A server's address.

    Attributes:
        scheme: "http", "tcp" or "ws".
        host: Name or number.
        port: The port.
        tls: Whether the connection is encrypted.
        path: Of HTTP and WebSocket.
    """

    scheme: str
    host: str
    port: int
    tls: bool
    path: str = _PATH

    @property
    def authority(self) -> str:
        """Host and port, as headers name them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}{'s' * self.tls}://{self.authority}"


def read_address(text: str) -> ClientAddress:
    """Return the address that a text names.

    Raises:
        ConfigError: It names none; the message says what to write.
    """
    if not isinstance(text, str):
        raise _wrong_address(":".join(map(str, text)) if isinstance(text, tuple) else str(text))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _wrong_address(text) from None
    # Of "localhost:9900" the part before the colon would pass for a scheme.
    if "://" not in text or parts.scheme not in SCHEMES or not parts.hostname or not port:
        raise _wrong_address(text)
    if parts.username or parts.query or parts.fragment:
        raise _wrong_address(text.rpartition("@")[2])
    path = parts.path if parts.path not in ("", "/") else _PATH
    if not _is_name(parts.hostname) or not (path.isascii() and path.isprintable() and " " not in path):
        raise _wrong_address(text)
    tls = parts.scheme in _ENCRYPTED
    return ClientAddress(parts.scheme[:-1] if tls else parts.scheme, parts.hostname, port, tls, path)


def check_token(token: object, address: ClientAddress) -> None:
    """Refuse a token that cannot be shown to a server, without telling what it is.

    Raises:
        ConfigError: It cannot.
    """
    if token is None:
        return
    if not isinstance(token, str):
        raise ConfigError(
            f"PolicyClient: token is a {type(token).__name__}, expected the server's, a text, or None; write str(...) "
            "of a number"
        )
    if token != token.strip() or not token.isprintable():
        raise ConfigError(
            "PolicyClient: token has white space around it, or line breaks or the like in it, expected the server's "
            "alone; write token.strip() of what a file holds"
        )
    if address.scheme != "tcp" and any(ord(one) > _LAST_OF_HEADERS for one in token):
        raise ConfigError(
            f"PolicyClient: token has characters that the headers of {address.scheme} cannot hold, expected those of "
            "Latin-1; give the server a token of letters and digits"
        )


def _is_name(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable() and " " not in host


def _wrong_address(text: str) -> ConfigError:
    known = text.partition("://")[0] in SCHEMES and "://" in text
    rest = text.partition("://")[2] if "://" in text else text
    meant = text if known else f"http://{rest or 'localhost:9900'}"
    return ConfigError(
        f"PolicyClient: address {text!r:.80}, expected scheme, host and port, the scheme one of "
        f"{', '.join(SCHEMES)}; write {'http://localhost:9900' if known else meant!r:.80}, for instance"
    )


# SEAM menv.serving.client.client_socket
# A client's socket: opening it, encrypted or not, ending it, and what it means when it fails.
#
# The connections of `client_connection` and `websocket_client` stand on it. It knows no protocol.


MOST_ANSWER_BYTES = 1 << 30
"""Of HTTP and WebSocket, where frames do not count; what is longer comes from no server of menv."""


def open_socket(address: ClientAddress, timeout: float) -> socket.socket:
    """Return a socket that is connected, and encrypted if the address says so.

    Args:
        address: Of the server.
        timeout: Seconds that connecting, and any reading or writing later, may take.

    Raises:
        OSError: Nobody answers there, or not as agreed.
    """
    opened = socket.create_connection((address.host, address.port), timeout)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return encryption().wrap_socket(opened, server_hostname=address.host) if address.tls else opened
    except BaseException:
        opened.close()
        raise


def end_socket(connected: socket.socket) -> None:
    """Close a socket, also for a thread that waits for what comes from it."""
    # Closing alone would leave that thread waiting.
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
    connected.close()


def encryption() -> ssl.SSLContext:
    """Return what trusts the authorities of this machine, and those in the file that SSL_CERT_FILE names."""
    return ssl.create_default_context()


def lost(error: Exception) -> ConnectionError:
    """Return any failure on the way as one kind of error."""
    if isinstance(error, ConnectionError):
        return error
    if isinstance(error, TimeoutError):
        return ConnectionAbortedError("no answer in time")
    return ConnectionAbortedError(str(error) or type(error).__name__)


# SEAM menv.serving.client.pace
# Pace: how slowly an answer may come. A socket's own timeout begins anew with every byte, and alone would
# never bind.
#
# Each connection of a client makes one for an answer that does not come at once. It knows no protocol.


_SLOWEST = 1000
"""Bytes a second; an answer that comes faster may take longer than the timeout."""


class ReadDeadline:
    """Bounds the time of one answer: the timeout, and a second more for every 1,000 bytes that have come.

    Args:
        timeout: Seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._until = time.monotonic() + timeout

    def took(self, count: int) -> None:
        """Note that bytes have come, and that more are waited for.

        Raises:
            ConnectionError: It takes too long.
        """
        self._until += count / _SLOWEST
        if time.monotonic() > self._until:
            raise ConnectionAbortedError("no answer in time")


class PacedResponse(http.client.HTTPResponse):
    """A response, also its headers, that keeps pace within the timeout of its socket."""

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None) -> None:
        super().__init__(sock, debuglevel, method)
        timeout = sock.gettimeout()
        assert timeout is not None
        self.fp = io.BufferedReader(_PacedReader(self.fp.detach(), ReadDeadline(timeout)))


class _PacedReader(io.RawIOBase):
    """Reads what another reader reads, and closes it."""

    def __init__(self, inner: io.RawIOBase, pace: ReadDeadline) -> None:
        self._inner, self._pace = inner, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._inner.readinto(buffer)
        self._pace.took(count or 0)
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()


# SEAM menv.serving.client.wrong_scheme
# What shows that an address has the wrong scheme, or a certificate that nobody trusts: waiting would change
# nothing.
#
# The connections of a client ask it about what they cannot read. It opens nothing.


_FRAME_DIGITS = 8
_NOT_ENCRYPTED = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")

_TIME = "one that is valid now; renew the server's, or set the clock of this machine, whichever is wrong"
_HOST = (
    "one for this host; write the host as the certificate names it, or give the server one that names it so"
)
_TRUST = "one from an authority that is trusted here; name its file in the variable SSL_CERT_FILE"
_CURES = {9: _TIME, 10: _TIME, 62: _HOST, 64: _HOST}
"""What is expected and what to do, by OpenSSL's numbers: not yet valid, expired, another name, another address."""


def look_at_bytes(address: ClientAddress, data: bytes) -> None:
    """Look at the first bytes that a server sent and that the scheme's protocol does not know.

    Raises:
        ConfigError: They belong to another protocol.
    """
    digits = data[:_FRAME_DIGITS]
    if address.scheme == "tcp" and data.startswith(b"HTTP/"):
        raise _wrong(address, "speaks HTTP or WebSocket", "http", "ws")
    # Of the address's own protocol there may be a part that broke off.
    if address.scheme != "tcp" and len(digits) == _FRAME_DIGITS and digits.isdigit():
        raise _wrong(address, "speaks RLlink over TCP", "tcp")
    if not address.tls and data[:1] in (b"\x15", b"\x16") and data[1:2] == b"\x03":
        raise _wrong(address, "encrypts", address.scheme, tls=True)


def look_at_status(address: ClientAddress, status: int | None) -> None:
    """Look at how a server refused to speak WebSocket.

    Raises:
        ConfigError: It never will.
    """
    if status == 405:
        raise _wrong(address, "speaks HTTP and no WebSocket", "http")


def look_at_encryption(address: ClientAddress, error: OSError) -> None:
    """Look at why a connection could not be encrypted.

    Raises:
        ConfigError: It never will be.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        raise ConfigError(
            f"PolicyClient: {address} shows a certificate that does not hold ({error.verify_message.rstrip('.')}), "
            f"expected {_CURES.get(error.verify_code, _TRUST)}"
        ) from error
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_ENCRYPTED:
        raise _wrong(address, "does not encrypt", address.scheme, tls=False) from error


def _wrong(address: ClientAddress, found: str, *schemes: str, tls: bool | None = None) -> ConfigError:
    ending = "s" if (address.tls if tls is None else tls) else ""
    better = " or ".join(f"{scheme}{ending}://{address.authority}" for scheme in schemes)
    return ConfigError(
        f"PolicyClient: {address} has the wrong scheme (the server there {found}), expected the server's; write "
        f"{better}"
    )


# SEAM menv.serving.client.websocket_client
# A client's connection over WebSocket. The package `websockets` does the protocol, this module the socket.
#
# So one thread reads and writes it, like any other connection: an encrypted socket on which one thread writes
# while
# another reads may, in some versions of Python, keep what was written to itself for ever. `client_connection`
# opens it.


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
        pace = ReadDeadline(self._timeout)
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
        answer, pace = None, ReadDeadline(self._timeout)
        while answer is None and protocol.handshake_exc is None:
            # Messages may have come with the answer.
            answer, *frames = self._read() or [None]
            pace.took(self._came)
            for each in frames:
                self._take(each)
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
        return encode(Error(code=ErrorCode.TOO_LARGE, message=why), WireFormat.MSGPACK)

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
        pace: ReadDeadline | None = None
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
                pace = pace or ReadDeadline(self._timeout)
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
