"""Where a server is, as people write it: "http://localhost:9900". Clients read addresses with it; it opens nothing.

It also looks at the token that is to be shown there.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from menv.errors import ConfigError

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
        raise _wrong(":".join(map(str, text)) if isinstance(text, tuple) else str(text))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _wrong(text) from None
    # Of "localhost:9900" the part before the colon would pass for a scheme.
    if "://" not in text or parts.scheme not in SCHEMES or not parts.hostname or not port:
        raise _wrong(text)
    if parts.username or parts.query or parts.fragment:
        raise _wrong(text.rpartition("@")[2])
    path = parts.path if parts.path not in ("", "/") else _PATH
    if not _is_name(parts.hostname) or not (path.isascii() and path.isprintable() and " " not in path):
        raise _wrong(text)
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


def _wrong(text: str) -> ConfigError:
    known = text.partition("://")[0] in SCHEMES and "://" in text
    rest = text.partition("://")[2] if "://" in text else text
    meant = text if known else f"http://{rest or 'localhost:9900'}"
    return ConfigError(
        f"PolicyClient: address {text!r:.80}, expected scheme, host and port, the scheme one of "
        f"{', '.join(SCHEMES)}; write {'http://localhost:9900' if known else meant!r:.80}, for instance"
    )
