"""The two ways into a server as raw bytes on plain sockets: a test can cut, spoil and abandon them anywhere."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, Self

import pytest

from menv.serving.transports.http import HttpTransport
from menv.serving.transports.server import Transport
from menv.serving.transports.tcp import TcpTransport

PATIENCE_S = 10.0
SESSION = "0123456789abcdef" * 2
HEADERS = "Host: localhost\r\n"


class Door(NamedTuple):
    """How to speak through one transport.

    Attributes:
        name: Of `Peer.transport`.
        make: A transport on a free port.
        wrap: Bytes on the wire for a body.
        unwrap: Reads one body off the wire.
    """

    name: str
    make: Callable[..., Transport]
    wrap: Callable[[bytes], bytes]
    unwrap: Callable[[BinaryIO], bytes]


class Client:
    """One peer on a blocking socket."""

    def __init__(self, door: Door, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self.door = door
        self.socket = socket.create_connection(address, PATIENCE_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, body: bytes) -> None:
        self.raw(self.door.wrap(body))

    def receive(self) -> bytes:
        return self.door.unwrap(self.file)

    def echo(self, body: bytes) -> bytes:
        self.send(body)
        return self.receive()

    def rest(self) -> bytes:
        """Return everything up to the end of the connection."""
        got = b""
        with contextlib.suppress(ConnectionError):
            while more := self.file.read1(65_536):
                got += more
        return got

    def leave(self) -> None:
        self.file.close()
        self.socket.close()

    def reset(self) -> None:
        """Leave as a process does that is killed with bytes unread."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.leave()


def exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise ConnectionError(f"the connection ended after {len(data)} of {count} bytes")
    return data


def tcp_wrap(body: bytes) -> bytes:
    return b"%08d" % len(body) + body


def tcp_unwrap(file: BinaryIO) -> bytes:
    return exactly(file, int(exactly(file, 8)))


def http_wrap(body: bytes, headers: str = f"{HEADERS}menv-session: {SESSION}\r\n") -> bytes:
    return f"POST /rllink HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def http_response(file: BinaryIO) -> tuple[int, dict[str, str], bytes]:
    first = file.readline()
    if not first:
        raise ConnectionError("the connection ended before a response")
    headers = {}
    while (line := file.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(first.split()[1]), headers, exactly(file, int(headers.get("content-length", 0)))


def http_unwrap(file: BinaryIO) -> bytes:
    return http_response(file)[2]


TCP = Door("tcp", TcpTransport, tcp_wrap, tcp_unwrap)
HTTP = Door("http", HttpTransport, http_wrap, http_unwrap)
DOORS = (TCP, HTTP)
every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
