"""A socket that listens. Listeners ask for one; it knows addresses and what can be wrong with them."""

from __future__ import annotations

import errno
import os
import socket

from menv.errors import ConfigError

_BACKLOG = 1024
_ADVICE = {
    errno.EADDRINUSE: "is taken by another program or server; choose port=0 or another, or stop that one",
    errno.EACCES: "may not be bound by this user, who may use ports from 1024; choose port=0 or another",
    errno.EADDRNOTAVAIL: "cannot be bound because the address is not this machine's; choose '127.0.0.1' or '0.0.0.0'",
}


def bind(address: str, port: int) -> socket.socket:
    """Return a socket that listens and does not block.

    Args:
        address: A name or a number; where a name means several addresses, IPv4 comes first.
        port: 0 takes one that is free.

    Raises:
        ConfigError: That cannot be; the operating system's error is its cause.
    """
    family, where = _resolve(address, port)
    # asyncio turns Nagle's delays off only where a socket says that it is TCP, and not just a stream.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        _share_with_the_past(listening)
        listening.bind(where)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        advice = _ADVICE.get(error.errno or 0, f"cannot be bound ({error.strerror or error}); choose another")
        raise ConfigError(f"Server.start: port {port} at {address} {advice}") from error
    return listening


def _resolve(address: str, port: int) -> tuple[int, tuple[object, ...]]:
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"Access.address: {address!r} means no address ({error}), expected one of this machine's; "
            "choose '127.0.0.1' or '0.0.0.0'"
        ) from error
    family, _, _, _, where = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, where


def _share_with_the_past(listening: socket.socket) -> None:
    # Connections of a server that has ended keep a port for minutes. On Windows the same option would let two
    # servers have one port at once.
    if os.name == "nt":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)  # type: ignore[attr-defined]
    else:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
