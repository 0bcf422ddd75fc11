"""RLlink's frames on a stream of bytes: eight ASCII digits, then as many bytes as they say.

The TCP transport and clients read and write with it. It knows neither sockets nor what a body means.
"""

from __future__ import annotations

from menv.serving.wire.bad_message import BadMessageError, Code

HEADER_BYTES = 8
MOST_BODY_BYTES: int = 10**HEADER_BYTES - 1
FEW = 1024
HEADERS = tuple(b"%08d" % size for size in range(FEW))
"""Those of short bodies, which nearly all are."""


def frame(body: bytes) -> bytes:
    """Return a body with its header.

    Raises:
        BadMessageError: The body is longer than eight digits can say.
    """
    size = len(body)
    if size > MOST_BODY_BYTES:
        raise BadMessageError(
            Code.TOO_LARGE,
            f"frame: a body of {size} bytes, expected at most {MOST_BODY_BYTES}; send it in several messages",
        )
    return (HEADERS[size] if size < FEW else b"%08d" % size) + body


class Frames:
    """Bodies out of a stream that arrives in pieces of any size.

    Every byte is copied at most twice, however small the pieces are. A header is looked at from its first byte
    on, so a peer that speaks another protocol is told at once.

    Args:
        max_body: Most bytes of one body, `Limits.max_body`.

    Attributes:
        completed: Bodies that the feed which raised had completed before it came to what is wrong.
    """

    def __init__(self, max_body: int) -> None:
        self.completed: list[bytes] = []
        self._max_body = min(max_body, MOST_BODY_BYTES)
        # At most one frame that has begun, between two feeds.
        self._rest = bytearray()
        self._size = -1
        self._broken: BadMessageError | None = None

    @property
    def pending(self) -> int:
        """Bytes that are here of a frame that is not complete, its header included."""
        return len(self._rest)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take in the next bytes of the stream and return the bodies that are complete now.

        Raises:
            BadMessageError: A header is none, or announces too much. The stream is lost then: every later call
                raises again.
        """
        if self._broken is not None:
            raise BadMessageError(self._broken.code, self._broken.text)
        self._rest += data
        self.completed = []
        try:
            self._take()
        except BadMessageError as error:
            self._broken = error
            self._rest.clear()
            raise
        bodies, self.completed = self.completed, []
        return bodies

    def _take(self) -> None:
        rest, begin = self._rest, 0
        while len(rest) - begin >= HEADER_BYTES:
            first = begin + HEADER_BYTES
            if self._size < 0:
                self._size = self._read_header(bytes(rest[begin:first]))
            if len(rest) < first + self._size:
                break
            begin = first + self._size
            with memoryview(rest) as view:
                self.completed.append(bytes(view[first:begin]))
            self._size = -1
        # A bytearray gives up its front without moving what follows.
        del rest[:begin]
        if len(rest) < HEADER_BYTES:
            self._check_digits(bytes(rest))

    def _read_header(self, header: bytes) -> int:
        self._check_digits(header)
        size = int(header)
        if size > self._max_body:
            raise BadMessageError(
                Code.TOO_LARGE,
                f"frame: a body of {size} bytes, expected at most {self._max_body}; send episodes in several "
                "messages, or raise Limits.max_body on the server",
            )
        return size

    @staticmethod
    def _check_digits(header: bytes) -> None:
        if header and not header.isdigit():
            raise BadMessageError(
                Code.BAD_FRAME,
                "frame: the header holds other bytes than digits, expected the length of the body in 8 ASCII digits; "
                "count bytes, not characters, and check that this is the port for TCP",
            )
