"""Frames between a server and its translator: a kind, a length, and that many bytes.

Both ends of the two pipes use it. It knows nothing of what the bytes are.
"""

from __future__ import annotations

import enum
import struct
from typing import IO

_HEAD = struct.Struct(">BQ")


class Kind(enum.IntEnum):
    """What a frame holds."""

    SETUP = 1
    """To the translator, first of all: what clients play and the limits, as JSON."""
    READY = 2
    """Its answer: empty."""
    BODY = 3
    """To the translator: a body as it came."""
    MESSAGE = 4
    """Its answer: the same message in msgpack, with packed arrays."""
    EPISODES = 5
    """Its answer: a `Translated`, for a message with episodes."""
    REFUSAL = 6
    """Its answer: code, text and sequence number of a `BadMessageError`, in msgpack."""


def write_frame(file: IO[bytes], kind: Kind, data: bytes) -> None:
    """Write one frame, waiting until it is out.

    Raises:
        OSError: The other end is gone.
    """
    file.write(_HEAD.pack(kind, len(data)))
    file.write(data)
    file.flush()


def read_frame(file: IO[bytes]) -> tuple[Kind, bytes] | None:
    """Return the next frame, waiting for it; None if the other end is gone.

    Raises:
        ValueError: It is of no known kind.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    kind, size = _HEAD.unpack(head)
    data = file.read(size)
    return None if len(data) < size else (Kind(kind), data)
