"""`Access`: the address to listen on, the token, TLS, and the web pages and host names that may connect.

`bind` opens the listening socket.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
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
    """Who may connect. The default: programs of this machine, and no web pages.

    Attributes:
        address: Address to bind to. Any but loopback needs a token; "0.0.0.0" is all of IPv4.
        token: Token that clients must send; None if they need none. Never part of messages or `repr`.
        ssl_certificate: Path of a PEM file with the certificate chain; turns on TLS.
        ssl_key: Path of the private key; None if the certificate's file contains it.
        allowed_origins: Web pages that may connect, such as "https://lab.example:8080".
        allowed_hosts: Further host names by which clients may reach a server without a token.

    Raises:
        ConfigError: A setting is invalid, or other machines could connect without a token.
    """

    address: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    ssl_certificate: str | PathLike[str] | None = None
    ssl_key: str | PathLike[str] | None = None
    allowed_origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.address, str):
            raise ConfigError(
                f"Access.address: got {self.address!r:.60}, expected a text with a name or a number in it; write "
                "'127.0.0.1', or '0.0.0.0' for all of IPv4"
            )
        check_token("Access.token", self.token)
        if self.token is None and not self.is_loopback:
            raise ConfigError(
                f"Access.address: got {self.address!r} without a token, expected a loopback address such as "
                "'127.0.0.1', or a token; set one (menv serve --token-file), clients then have to show it"
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
        """Return whether `token` is right, in time that does not depend on the right one."""
        if self.token is None:
            return True
        return hmac.compare_digest((token or "").encode("utf-8", "surrogatepass"), self.token.encode())

    def stranger(self, origin: str | None, host: str | None) -> str | None:
        """Return why a request comes from a web page that may not connect, or None.

        A browser sends `Origin` with every cross-site request. A page whose host name was re-bound to this machine is
        recognised by that name in `Host`; a numeric address cannot be re-bound. If there is a token, clients may use
        any host name, because such a page does not know the token.

        Args:
            origin: The header `Origin`, None if there is none.
            host: The header `Host`, with or without a port.

        Returns:
            "not_allowed: sentence".
        """
        if origin is not None and origin not in self.allowed_origins:
            return (
                f"not_allowed: the header Origin is {origin!r:.100}, a web page that is not in Access.allowed_origins; "
                "add it there (menv serve --allow-origin)"
            )
        name = _without_port(host or "")
        address = _ip(name)
        if (
            self.token is not None
            or name in ("localhost", *map(_without_port, self.allowed_hosts))
            or (address is not None and address.is_loopback)
        ):
            return None
        return (
            f"not_allowed: the header Host is {(host or '')!r:.100}, which is neither this machine nor in "
            "Access.allowed_hosts; add it there (menv serve --allow-host), or give the server a token"
        )

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, 1.2 or newer; None without a certificate.

        Raises:
            ConfigError: Certificate and key cannot be read, or do not belong together.
        """
        if self.ssl_certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a password, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.ssl_certificate, self.ssl_key, password="")
        except OSError as error:
            raise ConfigError(
                f"Access.ssl_certificate: {self.ssl_certificate} and ssl_key {self.ssl_key} cannot be used "
                f"({error.strerror or error}), expected PEM files of a certificate and its key without a password; "
                "check both paths"
            ) from error
        return context


def check_token(where: str, token: object) -> None:
    """Refuse a token that no header can hold, without quoting it."""
    if token is None:
        return
    if not isinstance(token, str) or not token.strip():
        raise ConfigError(
            f"{where}: got no text, expected a long random text or None; "
            "python -c 'import secrets; print(secrets.token_hex())' makes one"
        )
    if token != token.strip() or not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"{where}: got white space around it, line breaks, or characters beyond ASCII, expected the token alone, "
            "as a header can hold it; write token.strip() of what a file holds"
        )


def _check_names(where: str, given: Any, form: re.Pattern[str], such: str) -> None:
    """Raise `ConfigError` for names that no header can contain."""
    if isinstance(given, str) or not isinstance(given, Collection):
        raise ConfigError(f"{where}: got {given!r:.60}, expected a list of texts; put it into brackets")
    wrong = [one for one in given if not (isinstance(one, str) and form.fullmatch(one))]
    if wrong:
        raise ConfigError(
            f"{where}: got {wrong[0]!r:.60}, expected texts such as {such!r}; leave out whatever else an address holds"
        )


def bearer(authorization: str | None) -> str | None:
    """Return the token of an `Authorization` header, or None."""
    if authorization is None or not authorization.lower().startswith(_BEARER):
        return None
    return authorization[len(_BEARER) :].strip()


def _without_port(host: str) -> str:
    """Return the host name; "" if it is invalid, for example two joined headers."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower()


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


BACKLOG = 1024
_ADVICE = {
    errno.EADDRINUSE: "is taken by another program or server; choose port=0 or another, or stop that one",
    errno.EACCES: "may not be bound by this user, who may use ports from 1024; choose port=0 or another",
    errno.EADDRNOTAVAIL: "cannot be bound because the address is not this machine's; choose '127.0.0.1' or '0.0.0.0'",
}


def bind(address: str, port: int) -> socket.socket:
    """Return a listening, non-blocking socket; IPv4 is preferred if a name has several addresses."""
    family, where = _resolve(address, port)
    try:
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        made = socket.create_server(where, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, f"cannot be bound ({error.strerror or error}); choose another")
        raise ConfigError(f"Server.start: port {port} at {address} {advice}") from error
    # asyncio sets TCP_NODELAY only if the socket's protocol is explicitly TCP.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, made.detach())
    listening.setblocking(False)
    return listening


def _resolve(address: str, port: int) -> tuple[int, Any]:
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"Access.address: {address!r} means no address ({error}), expected one of this machine's; "
            "choose '127.0.0.1' or '0.0.0.0'"
        ) from error
    family, _, _, _, where = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, where
