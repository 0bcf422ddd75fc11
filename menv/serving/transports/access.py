"""Who may talk to a server: where it listens, the token, TLS, and which web pages and host names.

Transports ask it about headers, sessions about tokens. It holds the token and never shows it.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from menv.errors import ConfigError

_BEARER = "bearer "
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\s/]+")
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\s:,@/\[\]]+))(?::\d*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who is let in. The default: programs of this machine, and no web pages.

    Attributes:
        address: What to bind to. Anything but loopback needs a token; "0.0.0.0" is all of IPv4.
        token: What clients have to show; None if they need not show anything. Kept out of messages and `repr`.
        ssl_certificate: Path of a PEM file with the certificate and what leads to its root; turns TLS on.
        ssl_key: Path of its private key; None if the certificate's file holds it.
        allowed_origins: Web pages that may talk to the server, such as "https://lab.example:8080".
        allowed_hosts: Further names under which clients may call the server.

    Raises:
        ConfigError: A setting is of the wrong kind, or the server would be open to others without a token.
    """

    address: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    ssl_certificate: str | PathLike[str] | None = None
    ssl_key: str | PathLike[str] | None = None
    allowed_origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_address(self.address)
        if self.token is not None and (not isinstance(self.token, str) or not self.token.strip()):
            raise ConfigError(
                "Access.token: got something else than a text with characters in it, expected a long "
                "random text or None; python -c 'import secrets; print(secrets.token_hex())' makes one"
            )
        if self.token is not None and (self.token != self.token.strip() or not self.token.isprintable()):
            raise ConfigError(
                "Access.token: got white space around it, or line breaks or the like in it, expected the token alone, "
                "as a header can hold it; write token.strip() of what a file holds"
            )
        if self.token is None and not self.is_loopback:
            raise ConfigError(
                f"Access.address: got {self.address!r} without a token, expected a loopback address such as "
                "'127.0.0.1', or a token; set one, clients then have to show it"
            )
        if self.ssl_key is not None and self.ssl_certificate is None:
            raise ConfigError(
                "Access.ssl_key: got a key without ssl_certificate, expected both; name the certificate"
            )
        for name, form, such in (
            ("allowed_origins", _ORIGIN, "https://lab.example:8080"),
            ("allowed_hosts", _HOST, "lab.example"),
        ):
            _check_names(f"Access.{name}", getattr(self, name), form, such)
        for name in ("ssl_certificate", "ssl_key"):
            path = getattr(self, name)
            if not isinstance(path, str | PathLike | None):
                raise ConfigError(
                    f"Access.{name}: got {path!r:.60}, expected a path or None; name a PEM file"
                )

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can connect."""
        address = _ip(self.address)
        return self.address == "localhost" if address is None else address.is_loopback

    def admits(self, token: str | None) -> bool:
        """Return whether `token` is the right one; how long that takes tells nothing about the right one."""
        if self.token is None:
            return True
        shown = "" if token is None else token
        return hmac.compare_digest(_bytes(shown), _bytes(self.token))

    def stranger(self, origin: str | None, host: str | None) -> str | None:
        """Return why a request with these headers comes from a web page that may not talk to us, or None.

        A browser adds `Origin` to whatever a page sends elsewhere. A page whose name was made to point to this
        machine is given away by that name in `Host`. An address in numbers cannot be made to point elsewhere.

        Args:
            origin: The header `Origin`, None if there is none.
            host: The header `Host`, with or without a port.

        Returns:
            "not_allowed: sentence".
        """
        if origin is not None and origin not in self.allowed_origins:
            return "not_allowed: the header Origin names a web page that is not in Access.allowed_origins"
        name = _without_port(host or "")
        if name in ("localhost", self.address.lower(), *map(_without_port, self.allowed_hosts)):
            return None
        address = _ip(name)
        if address is not None and (not self.is_loopback or address.is_loopback):
            return None
        return "not_allowed: the header Host is neither this server's address nor in Access.allowed_hosts"

    def tls(self) -> ssl.SSLContext | None:
        """Return what makes connections TLS, 1.2 or newer; None without a certificate.

        Raises:
            ConfigError: Certificate and key cannot be read, or do not belong together.
        """
        if self.ssl_certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.ssl_certificate, self.ssl_key, password=_no_password)
        except OSError as error:
            raise ConfigError(
                f"Access.ssl_certificate: {self.ssl_certificate} and ssl_key {self.ssl_key} cannot be used "
                f"({error.strerror or error}), expected PEM files of a certificate and its key without a password; "
                "check both paths"
            ) from error
        return context


def _check_address(address: object) -> None:
    """Refuse what is no address, such as None, which would mean all that this machine has.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(address, str):
        raise ConfigError(
            f"Access.address: got {address!r:.60}, expected a text with a name or a number in it; write '127.0.0.1', "
            "or '0.0.0.0' for all of IPv4"
        )


def _check_names(where: str, given: Any, form: re.Pattern[str], such: str) -> None:
    """Refuse names of which no header can be one; nobody would ever be let in by them.

    Raises:
        ConfigError: One is none, or they are no list.
    """
    if isinstance(given, str) or not isinstance(given, Collection):
        raise ConfigError(f"{where}: got {given!r:.60}, expected a list of texts; put it into brackets")
    wrong = [one for one in given if not (isinstance(one, str) and form.fullmatch(one))]
    if wrong:
        raise ConfigError(
            f"{where}: got {wrong[0]!r:.60}, expected texts such as {such!r}; leave out whatever else an address holds"
        )


def bearer(authorization: str | None) -> str | None:
    """Return the token in the value of an `Authorization` header, or None."""
    if authorization is None or not authorization.lower().startswith(_BEARER):
        return None
    return authorization[len(_BEARER) :].strip()


def _no_password() -> str:
    # Asked for a password, OpenSSL would wait for somebody to type it.
    return ""


def _bytes(token: str) -> bytes:
    return token.encode("utf-8", "surrogatepass")


def _without_port(host: str) -> str:
    """Return a host's name, "" of what is none, such as two of them."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower()


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


# SEAM menv.serving.carriers.binding
# A socket that listens. Listeners ask for one; it knows addresses and what can be wrong with them.


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
