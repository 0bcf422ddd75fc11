"""Connections of a client to a policy server, over HTTP or TCP.

`connect` opens one for an address; `ClientSession` uses it and replaces it when it fails. A connection carries message
bodies and does not read them. After a `TransportError` the session connects again.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from menv.errors import ConfigError
from menv.serving.protocol import (
    MOST_BODY_BYTES,
    BadMessageError,
    Frames,
    frame,
)

SCHEMES = ("http", "https", "tcp", "tcps")
_ENCRYPTED = ("https", "tcps")
_PATH = "/rllink"
_LAST_LATIN_1 = 0xFF

TransportError = (OSError, http.client.HTTPException)
"""What a connection raises where it fails; `except` takes the tuple."""


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """Where a server is; `path` is used by HTTP."""

    scheme: str
    host: str
    port: int
    tls: bool
    path: str = _PATH

    @property
    def authority(self) -> str:
        """Host and port as HTTP headers write them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}{'s' * self.tls}://{self.authority}"


def read_address(text: str) -> ClientAddress:
    """Parse an address such as "http://localhost:9900"; raises ConfigError for anything else."""
    if not isinstance(text, str):
        raise _wrong_address(":".join(map(str, text)) if isinstance(text, tuple) else str(text))
    try:
        parts = urlsplit(text)
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError:
        raise _wrong_address(text) from None
    # urlsplit reads "localhost:" as a scheme.
    if "://" not in text or parts.scheme not in SCHEMES or not parts.hostname or not port:
        raise _wrong_address(text)
    if parts.username or parts.query or parts.fragment:
        raise _wrong_address(text.rpartition("@")[2])
    path = parts.path if parts.path not in ("", "/") else _PATH
    words = parts.hostname + path
    if not (path.isascii() and words.isprintable() and " " not in words):
        raise _wrong_address(text)
    tls = parts.scheme in _ENCRYPTED
    return ClientAddress(parts.scheme[:-1] if tls else parts.scheme, parts.hostname, port, tls, path)


def check_token(token: object, address: ClientAddress) -> None:
    """Refuse a token that no transport can send, without quoting it."""
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
    if address.scheme != "tcp" and any(ord(one) > _LAST_LATIN_1 for one in token):
        raise ConfigError(
            f"PolicyClient: token has characters that the headers of {address.scheme} cannot hold, expected those of "
            "Latin-1; give the server a token of letters and digits"
        )


def _wrong_address(text: str) -> ConfigError:
    known = text.partition("://")[0] in SCHEMES and "://" in text
    rest = text.partition("://")[2] if "://" in text else text
    meant = text if known else f"http://{rest or 'localhost:9900'}"
    return ConfigError(
        f"PolicyClient: address {text!r:.80}, expected scheme, host and port, the scheme one of "
        f"{', '.join(SCHEMES)}; write {'http://localhost:9900' if known else meant!r:.80}, for instance"
    )


MOST_ANSWER_BYTES = 1 << 30
"""Limit for HTTP bodies; a menv server sends nothing longer."""


def open_socket(address: ClientAddress, timeout: float) -> socket.socket:
    """Return a connected socket, with TLS if the address asks for it. `timeout` bounds each later read and write."""
    opened = socket.create_connection((address.host, address.port), timeout)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not address.tls:
            return opened
        # It trusts this machine's authorities and the file in SSL_CERT_FILE.
        return ssl.create_default_context().wrap_socket(opened, server_hostname=address.host)
    except BaseException:
        opened.close()
        raise


def close_socket(connected: socket.socket) -> None:
    """Close a socket and wake a thread that reads from it."""
    # close() alone would not wake that thread.
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
    connected.close()


_MIN_BYTES_PER_S = 1000
"""Bytes a second; an answer that arrives faster may exceed the timeout."""


class ReadDeadline:
    """Bounds the time of one answer: the timeout, plus a second for every 1,000 bytes received.

    A socket's own timeout starts again with every byte, so a slow server would never reach it.
    """

    def __init__(self, timeout: float) -> None:
        self._until = time.monotonic() + timeout

    def received(self, count: int) -> None:
        """Count received bytes; raises TimeoutError when the deadline has passed."""
        self._until += count / _MIN_BYTES_PER_S
        if time.monotonic() > self._until:
            raise TimeoutError


class BoundedResponse(http.client.HTTPResponse):
    """An HTTP response whose headers and body keep a `ReadDeadline`."""

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None) -> None:
        super().__init__(sock, debuglevel, method)
        timeout = sock.gettimeout()
        assert timeout is not None
        self.fp = io.BufferedReader(_BoundedReader(self.fp.detach(), ReadDeadline(timeout)))


class _BoundedReader(io.RawIOBase):
    def __init__(self, inner: io.RawIOBase, deadline: ReadDeadline) -> None:
        self._inner, self._deadline = inner, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._inner.readinto(buffer)
        self._deadline.received(count or 0)
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()


_FRAME_DIGITS = 8
_NOT_ENCRYPTED = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


def check_first_bytes(address: ClientAddress, data: bytes) -> None:
    """Raise ConfigError if the first bytes of a server belong to another protocol than the address names."""
    digits = data[:_FRAME_DIGITS]
    if address.scheme == "tcp" and data.startswith(b"HTTP/"):
        raise _wrong_scheme(address, "speaks HTTP", "http")
    # Digits alone may also be a truncated frame of the right protocol.
    if address.scheme != "tcp" and len(digits) == _FRAME_DIGITS and digits.isdigit():
        raise _wrong_scheme(address, "speaks RLlink over TCP", "tcp")
    if not address.tls and data[:1] in (b"\x15", b"\x16") and data[1:2] == b"\x03":
        raise _wrong_scheme(address, "encrypts", address.scheme, tls=True)


def check_tls_error(address: ClientAddress, error: OSError) -> None:
    """Raise ConfigError if a TLS failure is permanent: an invalid certificate, or a server without TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        raise ConfigError(
            f"PolicyClient: {address} shows a certificate that does not hold ({error.verify_message.rstrip('.')}), "
            "expected one that is valid now, for this host, and from an authority that is trusted here; name the file "
            "of its authority in the variable SSL_CERT_FILE"
        ) from error
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_ENCRYPTED:
        raise _wrong_scheme(address, "does not encrypt", address.scheme, tls=False) from error


def _wrong_scheme(address: ClientAddress, found: str, *schemes: str, tls: bool | None = None) -> ConfigError:
    ending = "s" if (address.tls if tls is None else tls) else ""
    better = " or ".join(f"{scheme}{ending}://{address.authority}" for scheme in schemes)
    return ConfigError(
        f"PolicyClient: {address} has the wrong scheme (the server there {found}), expected the server's; write "
        f"{better}"
    )


_CHUNK = 1 << 16


class TcpClientConnection:
    """RLlink's frames on a socket."""

    answers_all = False

    def __init__(self, address: ClientAddress, timeout: float) -> None:
        self._address, self._timeout = address, timeout
        self._bodies: list[bytes] = []
        self._frames = Frames(MOST_BODY_BYTES)
        self._socket = open_socket(address, timeout)

    def send(self, body: bytes) -> None:
        self._socket.sendall(frame(body))

    def receive(self) -> bytes:
        deadline = ReadDeadline(self._timeout)
        while not self._bodies:
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("the server ended the connection")
            try:
                self._bodies = self._frames.feed(data)
            except BadMessageError as error:
                check_first_bytes(self._address, data)
                raise ConnectionAbortedError(f"the server sent no frame ({error.text})") from error
            if not self._bodies:
                deadline.received(len(data))
        return self._bodies.pop(0)

    def close(self) -> None:
        close_socket(self._socket)


_MSGPACK = "application/msgpack"
_PROXY_STATUSES = (502, 503, 504)


class HttpClientConnection:
    """A POST for each body, on a connection that stays open."""

    answers_all = True

    def __init__(self, address: ClientAddress, token: str | None, timeout: float, name: str) -> None:
        where: Any = {"host": address.host, "port": address.port, "timeout": timeout}
        if address.tls:
            # Programs often replace the default context by one that trusts every server.
            where["context"] = ssl.create_default_context()
        make = http.client.HTTPSConnection if address.tls else http.client.HTTPConnection
        self._http = make(**where)
        self._address = address
        self._headers = {"Content-Type": _MSGPACK, "menv-session": name}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._http.response_class = BoundedResponse
        # No automatic reconnect: the session decides what to send on a new connection.
        self._http.connect()
        self._http.auto_open = 0

    def send(self, body: bytes) -> None:
        self._http.request("POST", self._address.path, body, self._headers)

    def receive(self) -> bytes:
        try:
            with contextlib.closing(self._http.getresponse()) as response:
                return _body_of(response)
        except http.client.BadStatusLine as error:
            check_first_bytes(self._address, str(error).encode("latin-1", "replace"))
            raise

    def close(self) -> None:
        if self._http.sock is not None:
            close_socket(self._http.sock)
        self._http.close()


def _body_of(response: http.client.HTTPResponse) -> bytes:
    # Truncated headers would read as an empty body.
    if not (response.length or response.chunked):
        raise ConnectionResetError("the response broke off, or is none of a server of menv")
    if (response.length or 0) > MOST_ANSWER_BYTES:
        raise ConnectionResetError(f"a response of {response.length} bytes is none of a server of menv")
    # With a size, read() would accept a truncated body; without one it raises.
    body = response.read(MOST_ANSWER_BYTES if response.chunked else None)
    # A full menv server answers with an ERROR message.
    if response.status in _PROXY_STATUSES and not body.startswith(b'{"type":"ERROR"'):
        raise ConnectionResetError(f"status {response.status} of a proxy, whose server is away")
    if not body:
        raise ConnectionResetError("an empty response is none of a server of menv")
    return body


ClientConnection: TypeAlias = TcpClientConnection | HttpClientConnection
"""Used by one thread at a time; `close` may come from any thread and wakes a waiting one.

`answers_all` is True where the server answers every body. Failures are a `TransportError`.
"""


def connect(address: ClientAddress, token: str | None, timeout: float, name: str) -> ClientConnection:
    """Open a connection; `name` identifies the conversation over HTTP.

    Raises a `TransportError` where no server answers, ConfigError for a wrong token or scheme.
    """
    try:
        if address.scheme == "tcp":
            return TcpClientConnection(address, timeout)
        return HttpClientConnection(address, token, timeout, name)
    except OSError as error:
        check_tls_error(address, error)
        raise
