"""RLlink's frames: eight digits that say how many bytes follow, then as many bytes.

The TCP transport feeds what it reads; this knows neither sockets nor what bodies mean.
"""

from __future__ import annotations

from menv.serving.bad_message import BadMessageError

HEADER = 8


def frame(body: bytes) -> bytes:
    """Return `body` with its header in front."""
    return b"%08d%b" % (len(body), body)


class Frames:
    """Takes bytes as they come and gives whole bodies.

    Args:
        max_body: The most bytes of one body.
    """

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._buffer = bytearray()
        self._length = -1

    @property
    def pending(self) -> int:
        """Bytes of a frame that has begun and is not whole."""
        return len(self._buffer) + (HEADER if self._length >= 0 else 0)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that `data` completes.

        Raises:
            BadMessageError: A header is no header, or says more than `max_body`.
        """
        buffer = self._buffer
        buffer += data
        bodies = []
        at = 0
        while True:
            if self._length < 0:
                if len(buffer) - at < HEADER:
                    break
                self._length = self._read(bytes(buffer[at : at + HEADER]))
                at += HEADER
            if len(buffer) - at < self._length:
                break
            bodies.append(bytes(buffer[at : at + self._length]))
            at += self._length
            self._length = -1
        del buffer[:at]
        return bodies

    def _read(self, header: bytes) -> int:
        if not header.isdigit():
            raise BadMessageError(
                "bad_frame", "a header has other bytes than digits, expected 8 ASCII digits"
            )
        length = int(header)
        if length > self._max_body:
            raise BadMessageError(
                "too_large",
                f"a body of {length} bytes, expected at most {self._max_body}; see Limits.max_body",
            )
        return length
