"""Reads the sockets of many connections in one go, where asyncio would run a callback for each.

A listener has one where the system has `epoll`; its connections leave their reading to it, and to asyncio all else:
writing, closing, TLS. It knows no protocol.
"""

from __future__ import annotations

import asyncio
import os
import select

_MOST_BYTES = 262_144
"""Bytes of one connection before others have their turn."""
_FEW_BYTES = 65_536
"""Nearly nobody sends as many; memory for them is at hand, where more would be mapped and unmapped for each read."""
_TOGETHER = 16_384
"""Bytes of all connections that are read before the loop goes round: going round takes longer than reading a body."""
_LOOK = 1_024
"""As how many bytes a look counts."""


class SocketReader:
    """Reads for connections that are open. Everything is called in the loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._open: dict[int, tuple[asyncio.Transport, asyncio.Protocol]] = {}
        # Those that are in the middle of something large.
        self._large: set[int] = set()
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self.look)

    def close(self) -> None:
        """Read no more."""
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()

    def begin(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Read what comes over a connection, as asyncio does that reads no more of it."""
        transport.pause_reading()
        fd = transport.get_extra_info("socket").fileno()
        if not (transport.is_closing() or self._epoll.closed):
            self._open[fd] = transport, protocol
            self._epoll.register(fd, select.EPOLLIN)

    def end(self, transport: asyncio.Transport) -> None:
        """Read no more of a connection for now; it may not have been read at all."""
        fd = transport.get_extra_info("socket").fileno()
        if self._open.get(fd, (None,))[0] is transport:
            del self._open[fd]
            self._large.discard(fd)
            if not self._epoll.closed:
                self._epoll.unregister(fd)

    def look(self) -> None:
        """Read all sockets that have something, and if that is little, those that have something by then."""
        left = _TOGETHER
        while left > 0 and (found := self._epoll.poll(0)):
            left -= _LOOK + self._read(found)

    def _read(self, found: list[tuple[int, int]]) -> int:
        """Read some sockets once; return how many bytes these had."""
        readers, large, read = self._open, self._large, 0
        for fd, _ in found:
            # Whoever was read before may have ended others.
            if (one := readers.get(fd)) is None:
                continue
            transport, protocol = one
            try:
                data = os.read(fd, _MOST_BYTES if fd in large else _FEW_BYTES)
                read += len(data)
                if large or len(data) >= _FEW_BYTES:
                    (large.add if len(data) >= _FEW_BYTES else large.discard)(fd)
                if data:
                    protocol.data_received(data)
                else:
                    self._end_of(transport, protocol)
            except (BlockingIOError, InterruptedError):
                continue
            except Exception as error:
                self._break_off(transport, error)
        return read

    def _end_of(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self.end(transport)
        if not protocol.eof_received():
            transport.close()

    def _break_off(self, transport: asyncio.Transport, error: Exception) -> None:
        self.end(transport)
        transport.abort()
        if not isinstance(error, OSError):
            context = {"message": "reading", "exception": error, "transport": transport}
            asyncio.get_running_loop().call_exception_handler(context)
