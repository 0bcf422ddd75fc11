"""A client's session with a policy server: its connections, the greeting, then one request after the other.

A connection, over HTTP or TCP, carries bodies and does not read them. `ClientSession` replaces one that fails and sends
the lost request again; the server recognises a message that it has already processed. `action_spaces`, `to_wire` and
`element_of` convert the application's values to and from messages.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import gymnasium as gym
import numpy as np
from msgspec import Raw

from menv.errors import (
    CallOrderError,
    ConfigError,
    ContractError,
    EpisodeError,
    MenvError,
    RefusedError,
    ServerGoneError,
)
from menv.inference.heads.head import in_a_line
from menv.serialization import space_from_json
from menv.serving.protocol import (
    EXTENSION,
    HEADER_BYTES,
    MOST_BODY_BYTES,
    Action,
    Answer,
    BadMessageError,
    Episodes,
    EpisodesAndGetState,
    EpisodeStarted,
    Error,
    ErrorCode,
    GetAction,
    GetConfig,
    GetPolicies,
    GetState,
    Ok,
    Ping,
    Policies,
    Pong,
    Request,
    SetConfig,
    SetState,
    StartEpisode,
    body_bytes,
    decode_answer,
    encode,
    frame,
    to_raw,
)
from menv.serving.value_readers import reader_of

SCHEMES = ("http", "https", "tcp", "tcps")
_ENCRYPTED = ("https", "tcps")
_PATH = "/rllink"

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

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}{'s' * self.tls}://{host}:{self.port}"


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


def _wrong_address(text: str) -> ConfigError:
    return ConfigError(
        f"PolicyClient: address {text!r:.80}, expected scheme, host and port, the scheme one of "
        f"{', '.join(SCHEMES)}; write 'http://localhost:9900', for instance"
    )


MOST_ANSWER_BYTES = 1 << 30
"""Limit for HTTP bodies; a menv server sends nothing longer."""


def close_socket(connected: socket.socket) -> None:
    """Close a socket and wake a thread that reads from it."""
    # close() alone would not wake that thread.
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
    connected.close()


_CHUNK = 1 << 16


class TcpClientConnection:
    """RLlink's frames on a socket."""

    answers_all = False

    def __init__(self, address: ClientAddress, timeout: float) -> None:
        self._socket = socket.create_connection((address.host, address.port), timeout)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                # It trusts this machine's authorities and the file in SSL_CERT_FILE.
                context = ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
        except BaseException:
            self._socket.close()
            raise

    def send(self, body: bytes) -> None:
        self._socket.sendall(frame(body))

    def receive(self) -> bytes:
        header = self._exactly(HEADER_BYTES)
        return self._exactly(body_bytes(header, MOST_BODY_BYTES))

    def close(self) -> None:
        close_socket(self._socket)

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            parts.append(self._socket.recv(min(count, _CHUNK)))
            if not parts[-1]:
                raise ConnectionResetError("the server ended the connection")
            count -= len(parts[-1])
        return b"".join(parts)


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
        self._headers = {"Content-Type": "application/json", "menv-session": name}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        # No automatic reconnect: the session decides what to send on a new connection.
        self._http.connect()
        self._http.auto_open = 0

    def send(self, body: bytes) -> None:
        self._http.request("POST", self._address.path, body, self._headers)

    def receive(self) -> bytes:
        with contextlib.closing(self._http.getresponse()) as response:
            if (response.length or 0) > MOST_ANSWER_BYTES:
                raise ConnectionResetError(
                    f"the response has {response.length} bytes, more than a menv server sends"
                )
            body = response.read()
        # A full menv server answers with an ERROR message; a proxy whose server is away does not.
        if not body or (response.status in _PROXY_STATUSES and not body.startswith(b'{"type":"ERROR"')):
            raise ConnectionResetError(f"status {response.status}, and no answer from a menv server")
        return body

    def close(self) -> None:
        if self._http.sock is not None:
            close_socket(self._http.sock)
        self._http.close()


ClientConnection: TypeAlias = TcpClientConnection | HttpClientConnection
"""Used by one thread at a time; `close` may come from any thread and wakes a waiting one.

`answers_all` is True where the server answers every body. Failures are a `TransportError`.
"""


def connect(address: ClientAddress, token: str | None, timeout: float, name: str) -> ClientConnection:
    """Open a connection; `name` identifies the conversation over HTTP.

    Raises a `TransportError` where no server answers, ConfigError for a certificate that does not hold.
    """
    try:
        if address.scheme == "tcp":
            return TcpClientConnection(address, timeout)
        return HttpClientConnection(address, token, timeout, name)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"PolicyClient: {address} shows a certificate that does not hold ({error.verify_message.rstrip('.')}), "
            "expected one that is valid now, for this host, and from an authority that is trusted here; name the file "
            "of its authority in the variable SSL_CERT_FILE"
        ) from error


_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_PING = encode(Ping())
_ANSWERS: dict[type[Any], type[Any]] = {
    StartEpisode: EpisodeStarted,
    GetAction: Action,
    GetPolicies: Policies,
    GetState: SetState,
    EpisodesAndGetState: SetState,
}
_MAX_QUOTED = 1000
_TEMPORARY = (ErrorCode.STOPPING, ErrorCode.TOO_MANY)
"""Refusals of a greeting that are temporary: the server is stopping or full."""


class SessionLostError(EpisodeError):
    """The server has discarded the session and its open episodes."""


class ClientSession:
    """One session, over one connection at a time; calls from several threads are serialized.

    `timeout` is the number of seconds without an answer, or without a server, after which a call fails. `session` is
    its id. `config` is the server's answer to the last greeting.
    """

    def __init__(
        self, address: ClientAddress, token: str | None = None, name: str | None = None, timeout: float = 60.0
    ) -> None:
        self._address, self._token, self._name, self.timeout = address, token, name, timeout
        self._lock = threading.RLock()
        self._connection: ClientConnection | None = None
        # A conversation over HTTP may use several connections.
        self._conversation = secrets.token_hex(16)
        self._closed = False
        self._process = os.getpid()
        self.config = SetConfig(env_steps_per_sample=0, force_on_policy=False)
        self.session: str | None = None
        self._ask_until_answered(_PING, in_new_session=True)

    def ask(self, request: Request, *, in_new_session: bool = False) -> Any:
        """Wait for the answer to a request, or until the server has `Episodes`, which it does not answer.

        With `in_new_session`, the request is also valid in a session that has just begun; otherwise a new session
        raises SessionLostError. Raises ServerGoneError without an answer in time, CallOrderError in a forked process,
        EpisodeError or RefusedError for a refusal, and ConfigError for an answer of another kind.
        """
        # Before the lock: in a forked process, a thread that does not exist there may hold it.
        self.check_open()
        with self._lock:
            body, answered = encode(request), type(request) is not Episodes
            answer = self._ask_until_answered(body, in_new_session, answered)
            if isinstance(answer, Error):
                raise _refusal(answer)
            self._require_answer(request, answer)
        return answer

    def close(self) -> None:
        """End the connection; the server keeps the session for a while."""
        self._closed = True
        if self._process != os.getpid():
            # A close message from here would end the parent's connection.
            return
        # Not under the lock: this wakes the thread that waits for an answer.
        if (connection := self._connection) is not None:
            connection.close()

    def check_open(self) -> None:
        """Raise if the session was closed (ServerGoneError) or the process was forked since (CallOrderError)."""
        if self._closed:
            raise ServerGoneError("PolicyClient: is closed, expected no further call; make another client")
        if self._process != os.getpid():
            raise CallOrderError(
                "PolicyClient: this process was forked from the one that has made it, and both would talk over one "
                "connection, expected a client for each process; make another here"
            )

    def _ask_until_answered(self, body: bytes, in_new_session: bool, answered: bool = True) -> Answer:
        end, pause = time.monotonic() + self.timeout, _FIRST_PAUSE_S
        while True:
            try:
                return self._attempt(body, in_new_session, answered)
            except ServerGoneError:
                raise
            except TransportError as error:
                why = error
            except BaseException:
                # E.g. Ctrl-C: the late answer must not be read as the next one.
                self._drop()
                raise
            self._drop()
            if time.monotonic() + pause > end:
                address = self._address
                # A TLS port drops plain connections without an answer.
                plain = address.scheme if self.session is None and not address.tls else None
                encrypted = f", or write {plain}s:// if it is encrypted" if plain else ""
                text = (
                    "no answer in time" if isinstance(why, TimeoutError) else str(why) or type(why).__name__
                )
                raise ServerGoneError(
                    f"PolicyClient: {address} does not answer ({text}), expected a server there within "
                    f"{self.timeout:g} s; start it, or give a longer timeout{encrypted}"
                ) from why
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _attempt(self, body: bytes, in_new_session: bool, answered: bool) -> Answer:
        self.check_open()
        try:
            if self._connection is None:
                self._connect(in_new_session)
            answer = self._exchange(body, answered)
        except BadMessageError as error:
            raise ConfigError(
                f"PolicyClient: {self._address} does not answer with messages ({error.text}), expected a "
                "menv server; check the address"
            ) from error
        if isinstance(answer, Error) and answer.code == ErrorCode.STOPPING:
            raise ConnectionResetError(answer.message)
        return answer

    def _exchange(self, body: bytes, answered: bool) -> Answer:
        connection = self._connection
        assert connection is not None
        connection.send(body)
        if answered or connection.answers_all:
            return decode_answer(connection.receive())
        # Messages are processed in order: the PONG confirms the body before it.
        connection.send(_PING)
        answer = decode_answer(connection.receive())
        if isinstance(answer, Pong):
            return Ok()
        try:
            decode_answer(connection.receive())
        except TransportError:
            # After some refusals the server ends the connection, and nothing answers the PING.
            self._drop()
        return answer

    def _connect(self, in_new_session: bool) -> None:
        connection = connect(self._address, self._token, self.timeout, self._conversation)
        self._connection = connection
        shown = None if self._address.scheme == "http" else self._token
        greeting = GetConfig(token=shown, extensions=[EXTENSION], session=self.session, client=self._name)
        connection.send(encode(greeting))
        answer = decode_answer(connection.receive())
        if isinstance(answer, Error) and answer.code in _TEMPORARY:
            raise ConnectionRefusedError(_printable(answer.message))
        if isinstance(answer, Error):
            raise ConfigError(
                f"PolicyClient: {self._address} refuses ({_printable(answer.code)}: {_printable(answer.message)}), "
                "expected access; check token and address"
            )
        if not isinstance(answer, SetConfig) or answer.session is None:
            raise ConfigError(
                f"PolicyClient: {self._address} does not speak the extension {EXTENSION!r}, expected a menv server; "
                "check the address"
            )
        before, self.session, self.config = self.session, answer.session, answer
        if before not in (None, answer.session) and not in_new_session:
            raise SessionLostError(
                f"PolicyClient: {self._address} has forgotten this session and its open episodes, expected to "
                "reconnect in time; start new episodes"
            )

    def _require_answer(self, request: Request, answer: Answer) -> None:
        kind, seq = type(request), getattr(request, "seq", None)
        fits = isinstance(answer, _ANSWERS.get(kind, Ok))
        if fits and getattr(answer, "seq", None) in (None, seq):
            return
        # Later answers on this connection may be out of step, too.
        self._drop()
        received = f"{type(answer).__name__} of number {getattr(answer, 'seq', None)}"
        raise ConfigError(
            f"PolicyClient: {self._address} answers {kind.__name__} of number {seq} with {received}, expected the "
            "answer to this message; check the address, and proxies on the way"
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _refusal(answer: Error) -> MenvError:
    if answer.code in (ErrorCode.WRONG_ORDER, ErrorCode.UNKNOWN_EPISODE):
        return EpisodeError(_printable(answer.message))
    return RefusedError(_printable(answer.message), answer.code)


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text[:_MAX_QUOTED])


Space = gym.Space[Any]


def action_spaces(config: SetConfig) -> Callable[[str], Space | None]:
    """Return a function that looks up the action space of an agent, None if the server did not send it."""
    sent = config.action_space
    shared = None if sent is None else space_from_json(sent, "SET_CONFIG.action_space")
    own = {
        agent: space_from_json(one, f"SET_CONFIG.action_spaces[{agent!a:.40}]")
        for agent, one in (config.action_spaces or {}).items()
    }
    return lambda agent: own.get(agent, shared)


_SMALL = 64


def to_wire(value: Any, where: str) -> Raw:
    """Encode a value of the application: numbers, texts, arrays, and lists, tuples and dicts of them.

    Raises ContractError for anything else; `where` begins its message.
    """
    if type(value) is np.ndarray and value.size <= _SMALL:
        # For few numbers a list is faster than an array.
        value = value.tolist()
    try:
        return to_raw(value)
    except (TypeError, NotImplementedError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise ContractError(
            f"{where}: got something that has no form on the wire ({error!s:.80}), expected numbers, texts, arrays, "
            "and lists and dicts of these; leave the rest out"
        ) from None


def element_of(space: gym.Space[Any] | None, value: Any) -> Any:
    """Return a decoded action as `space.sample()` would; without a space, lists of numbers become arrays.

    Raises ContractError if it is not an element. Box values may be outside the bounds, where actions are not clipped.
    """
    try:
        if space is not None:
            return reader_of(space, bounded=False).read(to_raw(value), "action")
        if isinstance(value, list) and value and isinstance(value[0], int | float):
            return np.array(value, np.float32 if isinstance(value[0], float) else np.int64)
        return value
    except (BadMessageError, OverflowError, TypeError, ValueError) as error:
        raise ContractError(
            f"PolicyClient: the server answers with an invalid action ({ascii(str(error))[1:-1]:.100}), expected "
            f"an element of {'a space' if space is None else in_a_line(space)}; look at the server's policy"
        ) from error
