"""HTTP responses that are written by hand, for peers whose request is not even read, and what others are told."""

from __future__ import annotations

from collections.abc import Callable

from menv.serving.wire.framing import frame


def unavailable(body: bytes) -> bytes:
    """Return a response that says that there is no room, with `body` as its JSON."""
    return _response(b"503 Service Unavailable", body)


def for_frames(data: bytes, speaks: str, scheme: str, refused: Callable[[str], bytes]) -> bytes | None:
    """Return what a peer is told that sends frames of TCP to another port, None if it does not.

    Args:
        data: Its first bytes.
        speaks: What the port speaks.
        scheme: Of addresses of such ports.
        refused: Makes an ERROR of a reason; see `Handler.refused`.
    """
    # No request begins with a digit, and somebody who sends a frame waits for one.
    if not data[:1].isdigit():
        return None
    why = f"bad_frame: this port speaks {speaks}, expected no frame of TCP; let the address begin with {scheme}://"
    return frame(refused(why))


def for_requests(data: bytes, refused: Callable[[str], bytes]) -> bytes | None:
    """Return what a peer is told that asks a WebSocket port for something else; see `for_frames`."""
    if b"GET ".startswith(data[:4]):
        return None
    why = "not_allowed: this port speaks WebSocket, expected its handshake; let the address begin with ws://"
    return _response(b"426 Upgrade Required\r\nUpgrade: websocket", refused(why))


def _response(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (status, len(body), body)
    )
