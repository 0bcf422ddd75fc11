"""A client's socket: opening it, encrypted or not, ending it, and what it means when it fails.

The connections of `client_connection` and `websocket_client` stand on it. It knows no protocol.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

from menv.serving.client.client_address import ClientAddress

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
