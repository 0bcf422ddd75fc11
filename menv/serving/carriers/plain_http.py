"""The one HTTP response that is written by hand, for peers whose request is not even read."""

from __future__ import annotations


def unavailable(body: bytes) -> bytes:
    """Return a response that says that there is no room, with `body` as its JSON."""
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
