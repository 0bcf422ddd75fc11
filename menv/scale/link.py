"""A link: a socket between a driver and a process that it started, on which values travel.

`menv.scale.process_engine` holds one end, `menv.scale.process_main` the other. Small values go through the socket;
large ones are written into a piece of shared memory of their own, whose descriptor goes through the socket. The arrays
that come out lie in that memory, without a copy, and free it when the last of them is gone.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from menv.scale.packing import Parts, unpack

_HEAD = struct.Struct("<I?")
"""How many parts there are, and whether another letter belongs to this one."""
_LENGTH = struct.Struct("<Q")
_SHARED = 1 << 15
"""Bytes from which on shared memory is worth its price, about 30 us."""
_ALIGNED = 64
_AT_ONCE = 1 << 20


class Packed:
    """A value that can be sent, to several peers too; its shared memory lives as long as it does.

    Args:
        parts: What `menv.scale.packing.pack` returned.
    """

    _fd = -1

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._lengths = [len(part) for part in parts]
        if sum(self._lengths) >= _SHARED and hasattr(os, "memfd_create"):
            self._share()

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _share(self) -> None:
        """Move the parts into shared memory."""
        self._fd = os.memfd_create("menv")
        os.ftruncate(self._fd, max(1, _places(self._lengths)[1]))
        for start, part in zip(_places(self._lengths)[0], self._parts, strict=True):
            view, done = memoryview(part), 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done : done + (1 << 30)], start + done)
        self._parts = []

    def send(self, to: socket.socket, *, more: bool = False) -> None:
        """Send it.

        Args:
            to: The link.
            more: Whether the next letter belongs to this one.

        Raises:
            OSError: The other end is gone.
        """
        head = _HEAD.pack(len(self._lengths), more) + b"".join(map(_LENGTH.pack, self._lengths))
        if self._fd >= 0:
            sent = socket.send_fds(to, [head], [self._fd])
            to.sendall(head[sent:])
        else:
            to.sendall(b"".join((head, *self._parts)))


class Letter(NamedTuple):
    """A value that has arrived and has not been looked at.

    Attributes:
        parts: Its pickle and the buffers of its arrays.
        more: Whether the next letter belongs to this one.
    """

    parts: Parts
    more: bool

    def open(self) -> Any:
        """Return the value; raises whatever the classes of the value do."""
        return unpack(self.parts)


def receive(source: socket.socket) -> Letter:
    """Return the next letter.

    Raises:
        EOFError: The other end is gone.
    """
    try:
        head, fd = _head(source)
        count, more = _HEAD.unpack(head)
        lengths = [_LENGTH.unpack(_exactly(source, _LENGTH.size))[0] for _ in range(count)]
        if fd is None:
            return Letter([_exactly(source, length) for length in lengths], more)
    except OSError as error:
        raise EOFError from error
    places, size = _places(lengths)
    try:
        # Private: what is written into the arrays stays here.
        memory = memoryview(mmap.mmap(fd, max(1, size), access=mmap.ACCESS_COPY))
    finally:
        os.close(fd)
    parts = [memory[start : start + length] for start, length in zip(places, lengths, strict=True)]
    return Letter(parts, more)


def _head(source: socket.socket) -> tuple[bytes, int | None]:
    """Return the first bytes of a letter, and the descriptor of shared memory that came with them."""
    head, fds, _, _ = socket.recv_fds(source, _HEAD.size, 1)
    if not head:
        raise EOFError
    if len(head) < _HEAD.size:
        head += _exactly(source, _HEAD.size - len(head))
    return head, (fds[0] if fds else None)


def _exactly(source: socket.socket, size: int) -> Any:
    """Return so many bytes, in memory that may be written."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = source.recv_into(view[done : done + _AT_ONCE])
        if not got:
            raise EOFError
        done += got
    return data


def _places(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return where each part begins in shared memory, and its size."""
    starts, end = [], 0
    for length in lengths:
        starts.append(end)
        end += -(-length // _ALIGNED) * _ALIGNED
    return starts, end
