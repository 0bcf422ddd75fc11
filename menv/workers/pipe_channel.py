"""A socket between a driver and a process that it started, and the packing of values that travel on it.

`process_engine` holds one end, `worker_process` the other. Small values go through the socket. Large ones are written
to shared memory, whose descriptor goes through the socket; received arrays use that memory without a copy and free it
with the last of them. Each such memory keeps a file open, so beyond a number of them further ones are copied.

This is the only module that unpickles, and only messages of processes that trust each other.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import select
import socket
import struct
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pickle import PickleBuffer
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import cloudpickle

from menv.errors import ConfigError, NoRoomError


def dumps(value: Any, take_buffer: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Pickle a value with cloudpickle; `take_buffer` receives the memory of each array that stays outside."""
    data: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=take_buffer)
    return data


def loads(data: Any, buffers: Sequence[Any] = ()) -> Any:
    """Unpickle a value; raises whatever its classes do."""
    return pickle.loads(data, buffers=buffers)


Parts: TypeAlias = "list[Any]"
"""The pickle first, then the buffers of arrays, in its order."""
_MAX_DEPTH = 12
_SMALL = 1 << 15
"""Arrays up to this size in bytes stay in the pickle. A larger one keeps the memory of the whole message alive."""


class UnsendableError(ConfigError, TypeError):
    """A value cannot go to another process; create it there."""


def pack(value: Any, what: str = "", at: str = "") -> Parts:
    """Return a value as its pickle and the buffers of its large arrays, which must not change before they are sent.

    `what` names the value in messages, or the part of it that is reached by `at`, such as "[1]". Raises
    UnsendableError, which names the part that cannot be pickled.
    """
    buffers: list[Any] = []

    def is_small(buffer: PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes > _SMALL:
            buffers.append(raw)
        return raw.nbytes <= _SMALL

    try:
        head = dumps(value, is_small)
    except Exception as error:
        found, path = find_unpicklable(value)
        raise UnsendableError(
            f"{what}{path.removeprefix(at)} is a {type(found).__qualname__} ({_first_line(error)}), "
            "expected what can be pickled; create it in the process that uses it"
        ) from error
    return [head, *buffers]


class SealedValue:
    """A snapshot of a value that is sent later. A plain value may be replaced by a reference when it is pickled."""

    def __init__(self, value: Any) -> None:
        self._parts = [PickleBuffer(part) for part in pack(value)]

    def opened(self) -> Any:
        return unpack(self._parts)


def unpack(parts: Parts) -> Any:
    """Return the value that `pack` packed; raises whatever its classes do."""
    return loads(parts[0], parts[1:])


def find_unpicklable(value: Any) -> tuple[Any, str]:
    """Return the smallest part of a value that cannot be pickled, and the path to it."""
    path, outer_values = "", [value]
    for _ in range(_MAX_DEPTH):
        for inner, step in _parts_of(value):
            # A method may refer to its class.
            if not any(inner is outer for outer in outer_values) and not can_be_pickled(inner):
                value, path = inner, path + step
                outer_values.append(value)
                break
        else:
            break
    return value, path


def _parts_of(value: Any) -> Iterator[tuple[Any, str]]:
    if isinstance(value, Mapping):
        yield from ((inner, f"[{key!r}]") for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((inner, f"[{index}]") for index, inner in enumerate(value))
    elif isinstance(value, FunctionType):
        yield from _globals_and_closure_of(value)
    elif isinstance(value, type):
        yield from _members_of(value)
    else:
        if hasattr(value, "__func__"):
            yield value.__self__, ".__self__"
        if isinstance(value, partial):
            yield from ((getattr(value, name), f".{name}") for name in ("func", "args", "keywords"))
        yield from ((inner, f".{name}") for name, inner in getattr(value, "__dict__", {}).items())
        yield from ((getattr(value, name), f".{name}") for name in _slots(value))


def _slots(value: Any) -> Iterator[str]:
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            if not name.startswith("__") and hasattr(value, name):
                yield name


def _members_of(kind: type) -> Iterator[tuple[Any, str]]:
    for name, inner in vars(kind).items():
        function = getattr(inner, "__func__", getattr(inner, "fget", inner))
        if isinstance(function, FunctionType):
            yield function, f".{name}"
        elif not name.startswith("__") and name != "_abc_impl":
            yield inner, f".{name}"


def _globals_and_closure_of(function: FunctionType) -> Iterator[tuple[Any, str]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield cell.cell_contents, f"'s variable {name!r}"
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name], f"'s variable {name!r}"


def can_be_pickled(value: Any) -> bool:
    """Return whether a value can be sent to another process."""
    try:
        dumps(value, lambda _buffer: None)
    except Exception:
        return False
    return True


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


_HEAD = struct.Struct("<I?")
"""Number of parts, and whether the next message belongs to this one."""
_LENGTH = struct.Struct("<Q")
_FD = struct.Struct("i")
_SHARED = 1 << 15
"""Size in bytes from which shared memory pays off (it costs about 30 us)."""
_ALIGNMENT = 64
_MAX_READ = 1 << 20
_MAX_OPEN = 128
"""Shared memories held at once without a copy; many systems limit a process to 1024 open files."""
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class PackedMessage:
    """A packed value, for one or several actors. `fd` is its shared memory, which lives as long as it; -1 without."""

    fd = -1

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._lengths = [len(part) for part in parts]
        if sum(self._lengths) >= _SHARED:
            self._share()

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def to_bytes(self, *, more: bool) -> bytes:
        """Return the bytes for the socket; `more` says whether the next message belongs to this one."""
        head = _HEAD.pack(len(self._lengths), more) + b"".join(map(_LENGTH.pack, self._lengths))
        return b"".join((head, *self._parts))

    def _share(self) -> None:
        """Move the parts into shared memory."""
        try:
            self.fd = _new_memory()
            starts, size = _offsets(self._lengths)
            os.ftruncate(self.fd, size)
            for start, part in zip(starts, self._parts, strict=True):
                view, done = memoryview(part), 0
                while done < len(view):
                    done += os.pwrite(self.fd, view[done : done + (1 << 30)], start + done)
        except OSError as error:
            raise _no_room_error(error.strerror) from error
        self._parts = []


class ChannelMessage(NamedTuple):
    """A received value that is not unpacked yet; `more` says whether the next message belongs to this one."""

    parts: Parts
    more: bool


class PipeChannel:
    """One end of the socket, which belongs to the channel.

    Sending also receives, since otherwise both ends could wait for each other. After an error, also a Ctrl-C within a
    message, the channel is closed. One thread uses it; any thread may close it. The descriptor stays open while in use,
    so that a waiting system call never sees another file with the same number.

    `was_interrupted` says whether it was closed within a message by an exception here. `received` is the
    inbox.
    """

    def __init__(self, end: socket.socket) -> None:
        self.was_interrupted = False
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self.received: deque[ChannelMessage] = deque()
        self._used = self._closed = False

    def fileno(self) -> int:
        """Return the descriptor of the socket, -1 after `close`."""
        return -1 if self._closed else self._socket.fileno()

    def hold(self) -> None:
        """Keep the descriptor open until `release`, even if another thread closes the channel."""
        self._used = True

    def release(self) -> None:
        self._used = False
        if self._closed:
            self._socket.close()

    def send(self, packed: PackedMessage, *, more: bool = False) -> None:
        """Send a value; OSError if the other end is gone."""
        view, rights = memoryview(packed.to_bytes(more=more)), []
        if packed.fd >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _FD.pack(packed.fd))]
        self.hold()
        try:
            if self._closed:
                raise BrokenPipeError
            while view:
                try:
                    view, rights = view[self._socket.sendmsg([view], rights, socket.MSG_DONTWAIT) :], []
                except BlockingIOError:
                    self._receive_before_sending()
        except BaseException as error:
            self.close_within_message(error)
            raise
        finally:
            self.release()

    def receive(self) -> ChannelMessage:
        """Wait for the next message; EOFError if the other end is gone."""
        self.wait_for_message()
        return self.received.popleft()

    def wait_for_message(self) -> None:
        """Wait until `received` holds a message; an interruption loses nothing. Raises what `receive` does."""
        if self.received:
            return
        self.hold()
        try:
            if self._closed:
                raise EOFError
            self._poll.poll()
            self._receive()
        finally:
            self.release()

    def close(self) -> None:
        """Close it for both ends, also where other processes have inherited them."""
        # First: a thread that begins to use it from here on finds it closed.
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._used:
            self._socket.close()

    def close_here(self) -> None:
        """Close it in this process only."""
        self._socket.close()

    def close_within_message(self, error: BaseException) -> None:
        """Close it within a message: the start of the next one is unknown."""
        self.was_interrupted |= not isinstance(error, OSError | EOFError)
        self.close()

    def _receive(self) -> None:
        try:
            self.received.append(_receive(self._socket))
        except BaseException as error:
            self.close_within_message(error)
            raise

    def _receive_before_sending(self) -> None:
        """Wait until more can be sent; keep a message that arrives before."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        if any(event & ~select.POLLOUT for _, event in poll.poll()):
            try:
                self.received.append(_receive(self._socket))
            except EOFError as error:
                raise BrokenPipeError from error


def _receive(source: socket.socket) -> ChannelMessage:
    try:
        head, fd = _receive_head(source)
        count, more = _HEAD.unpack(head)
        lengths = [
            length for (length,) in _LENGTH.iter_unpack(_receive_exactly(source, count * _LENGTH.size))
        ]
        if fd is None:
            return ChannelMessage([_receive_exactly(source, length) for length in lengths], more)
    except OSError as error:
        raise EOFError from error
    starts, size = _offsets(lengths)
    try:
        memory = _map(fd, size) if len(_open) < _MAX_OPEN else _copy(fd, size)
    except OSError:
        # The limit of open files or of mapped memory is reached.
        memory = _copy(fd, size)
    finally:
        os.close(fd)
    return ChannelMessage(
        [memory[start : start + length] for start, length in zip(starts, lengths, strict=True)], more
    )


_open: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
"""The shared memories that this process holds."""


def _map(fd: int, size: int) -> memoryview:
    # Private: writes to the arrays stay in this process.
    memory = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
    _open.add(memory)
    return memoryview(memory)


def _copy(fd: int, size: int) -> memoryview:
    view, done = memoryview(bytearray(size)), 0
    while done < size:
        # Not read(): all processes with the descriptor share one file position.
        done += os.preadv(fd, [view[done : done + (1 << 30)]], done)
    return view


def _new_memory() -> int:
    """Return the descriptor of empty shared memory, or of a file where the system has none."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("menv")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _no_room_error(why: str | None) -> NoRoomError:
    return NoRoomError(
        f"memory shared with another process: {why}, expected room for one more open file and what it holds; raise the "
        "limits (ulimit -n), hold fewer files open, or let workers sample less at a time"
    )


def _receive_head(source: socket.socket) -> tuple[bytes, int | None]:
    """Return the first bytes of a message, and the descriptor of shared memory that came with them."""
    # socket.recv_fds and send_fds ignore their flags.
    head, rights, flags, _ = source.recvmsg(_HEAD.size, socket.CMSG_LEN(_FD.size), _CLOSE_ON_EXEC)
    if flags & socket.MSG_CTRUNC:
        # The bytes of this message are in that memory.
        raise _no_room_error(os.strerror(errno.EMFILE))
    if not head:
        raise EOFError
    if len(head) < _HEAD.size:
        head += _receive_exactly(source, _HEAD.size - len(head))
    return head, (_FD.unpack(rights[0][2])[0] if rights else None)


def _receive_exactly(source: socket.socket, size: int) -> Any:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = source.recv_into(view[done : done + _MAX_READ])
        if not got:
            raise EOFError
        done += got
    return data


def _offsets(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return the offset of each part in shared memory, and the total size."""
    starts, end = [], 0
    for length in lengths:
        starts.append(end)
        end += -(-length // _ALIGNMENT) * _ALIGNMENT
    return starts, end
