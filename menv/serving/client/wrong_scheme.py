"""What shows that an address has the wrong scheme, or a certificate that nobody trusts: waiting would change nothing.

The connections of a client ask it about what they cannot read. It opens nothing.
"""

from __future__ import annotations

import ssl

from menv.errors import ConfigError
from menv.serving.client.client_address import ClientAddress

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
