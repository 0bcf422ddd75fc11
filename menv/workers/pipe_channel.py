"""A link: a socket between a driver and a process that it started, on which values travel.

`menv.workers.process_engine` holds one end, `menv.workers.worker_process` the other. Small values go through the
socket;
large ones are written into a piece of shared memory of their own, whose descriptor goes through the socket. The arrays
that come out lie in that memory, without a copy, and free it when the last of them is gone. Each such piece keeps a
file open; where a program holds many of them, the next ones are copied out of it.
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

# SEAM menv.scale.trusted
# Pickles between a driver and the workers that it started itself: the one place where menv unpickles.
#
# `link` and `far_error` use it, on what came over a socket that nobody else can open. Nothing else may: no
# file, no
# network, no client.


def dumps(value: Any, take_buffer: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Return a value as a pickle that holds functions and classes of a script too.

    Args:
        value: What is to be sent.
        take_buffer: Is given the memory of each array, which is not in the pickle then.
    """
    data: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=take_buffer)
    return data


def loads(data: Any, buffers: Sequence[Any] = ()) -> Any:
    """Return the value in a pickle; raises whatever its classes do."""
    return pickle.loads(data, buffers=buffers)


# SEAM menv.scale.packing
# A value as parts: its pickle, and the memory of its arrays beside it, so that nobody copies these.
#
# Both engines send values in this form. What cannot be sent is named here, because a pickle's own complaint
# does not say
# where in a config the thing is.


Parts: TypeAlias = "list[Any]"
"""The pickle first, then the buffers of arrays, in its order."""
_DEEPEST = 12
_SMALL = 1 << 15
"""Bytes of an array up to which it is in the pickle. Who keeps one that is beside it, such as a space, keeps the memory
of all others that came with it."""


class UnsendableError(ConfigError, TypeError):
    """A value cannot go to another process; create it there."""


def pack(value: Any, what: str = "", at: str = "") -> Parts:
    """Return a value as parts; the arrays in it must stay as they are until the parts are sent.

    Args:
        value: What is to be sent.
        what: What messages call it.
        at: Or rather the part of it that is reached like this, such as "[1]".

    Raises:
        UnsendableError: Something in it cannot be pickled; the message names it.
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
        found, path = culprit(value)
        raise UnsendableError(
            f"{what}{path.removeprefix(at)} is a {type(found).__qualname__} ({_line(error)}), "
            "expected what can be pickled; create it in the process that uses it"
        ) from error
    return [head, *buffers]


class SealedValue:
    """A value as it is now, to be sent later on and opened elsewhere: where it came from it would take its own place.

    Args:
        value: What is to be sent.
    """

    def __init__(self, value: Any) -> None:
        self._parts = [PickleBuffer(part) for part in pack(value)]

    def opened(self) -> Any:
        """Return the value."""
        return unpack(self._parts)


def unpack(parts: Parts) -> Any:
    """Return the value; raises whatever its classes do."""
    return loads(parts[0], parts[1:])


def culprit(value: Any) -> tuple[Any, str]:
    """Return the smallest part of a value that cannot be pickled, and how it is reached from there."""
    path, way = "", [value]
    for _ in range(_DEEPEST):
        for inner, step in _inside(value):
            # A method of a class may know the class.
            if not any(inner is outer for outer in way) and not can_be_pickled(inner):
                value, path = inner, path + step
                way.append(value)
                break
        else:
            break
    return value, path


def _inside(value: Any) -> Iterator[tuple[Any, str]]:
    if isinstance(value, Mapping):
        yield from ((inner, f"[{key!r}]") for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((inner, f"[{index}]") for index, inner in enumerate(value))
    elif isinstance(value, FunctionType):
        yield from _used_by(value)
    elif isinstance(value, type):
        yield from _in_class(value)
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


def _in_class(kind: type) -> Iterator[tuple[Any, str]]:
    for name, inner in vars(kind).items():
        function = getattr(inner, "__func__", getattr(inner, "fget", inner))
        if isinstance(function, FunctionType):
            yield function, f".{name}"
        elif not name.startswith("__") and name != "_abc_impl":
            yield inner, f".{name}"


def _used_by(function: FunctionType) -> Iterator[tuple[Any, str]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield cell.cell_contents, f"'s variable {name!r}"
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name], f"'s variable {name!r}"


def can_be_pickled(value: Any) -> bool:
    """Return whether a value can go to another process."""
    try:
        dumps(value, lambda _buffer: None)
    except Exception:
        return False
    return True


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


_HEAD = struct.Struct("<I?")
"""How many parts there are, and whether another letter belongs to this one."""
_LENGTH = struct.Struct("<Q")
_FD = struct.Struct("i")
_SHARED = 1 << 15
"""Bytes from which on shared memory is worth its price, about 30 us. The rest fits into a socket."""
_ALIGNED = 64
_AT_ONCE = 1 << 20
_MOST_OPEN = 128
"""Pieces of shared memory that may be held at once without a copy; many systems let a process open 1024 files."""
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class PackedMessage:
    """A value that can be sent, to several peers too; its shared memory lives as long as it does.

    Args:
        parts: What `menv.workers.pipe_channel.pack` returned.

    Attributes:
        fd: Of its shared memory, -1 without.
    """

    fd = -1

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._lengths = [len(part) for part in parts]
        if sum(self._lengths) >= _SHARED:
            self._share()

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def letter(self, *, more: bool) -> bytes:
        """Return what goes through the socket.

        Args:
            more: Whether the next letter belongs to this one.
        """
        head = _HEAD.pack(len(self._lengths), more) + b"".join(map(_LENGTH.pack, self._lengths))
        return b"".join((head, *self._parts))

    def _share(self) -> None:
        """Move the parts into shared memory.

        Raises:
            NoRoomError: There is none.
        """
        try:
            self.fd = _memory()
            starts, size = _places(self._lengths)
            os.ftruncate(self.fd, size)
            for start, part in zip(starts, self._parts, strict=True):
                view, done = memoryview(part), 0
                while done < len(view):
                    done += os.pwrite(self.fd, view[done : done + (1 << 30)], start + done)
        except OSError as error:
            raise _no_room(error.strerror) from error
        self._parts = []


class ChannelMessage(NamedTuple):
    """A value that has arrived and has not been looked at.

    Attributes:
        parts: As packed.
        more: Whether the next letter belongs to this one.
    """

    parts: Parts
    more: bool


class PipeChannel:
    """One end.

    Whoever sends takes in what comes meanwhile: otherwise both ends could wait for the other one to read. After an
    error, a Ctrl-C in the middle of a letter too, a link is closed. One thread uses it; any thread may close it. The
    descriptor stays open as long as it is in use then: a system call that waits for it would wait for whatever has its
    number next.

    Args:
        end: The socket, which belongs to the link.

    Attributes:
        broken_off: Whether it was closed in the midst of a letter, by what was raised here and not by the other end.
        come: Letters that have come and nobody has taken.
    """

    def __init__(self, end: socket.socket) -> None:
        self.broken_off = False
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self.come: deque[ChannelMessage] = deque()
        self._used = self._closed = False

    def fileno(self) -> int:
        """Return the descriptor of the socket, -1 after `close`."""
        return -1 if self._closed else self._socket.fileno()

    def hold(self) -> None:
        """Keep the descriptor open, whoever closes the link, until `release`."""
        self._used = True

    def release(self) -> None:
        """Note that nobody waits for the descriptor any more."""
        self._used = False
        if self._closed:
            self._socket.close()

    def send(self, packed: PackedMessage, *, more: bool = False) -> None:
        """Send a value.

        Args:
            packed: The value.
            more: Whether the next letter belongs to this one.

        Raises:
            OSError: The other end is gone, or nothing can be sent any more.
        """
        view, rights = memoryview(packed.letter(more=more)), []
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
                    self._take_in()
        except BaseException as error:
            self.break_off(error)
            raise
        finally:
            self.release()

    def receive(self) -> ChannelMessage:
        """Wait for the next letter and return it.

        Raises:
            EOFError: The other end is gone.
        """
        self.await_letter()
        return self.come.popleft()

    def await_letter(self) -> None:
        """Wait until a letter is in `come`; where this is interrupted, nothing is lost.

        Raises:
            EOFError: The other end is gone.
            NoRoomError: No file can be opened for what has come.
        """
        if self.come:
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
        """End it for both ends, whoever else has inherited them."""
        # Before the look at who uses it: whoever begins to do so afterwards finds it closed.
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._used:
            self._socket.close()

    def leave(self) -> None:
        """Close it for this process alone."""
        self._socket.close()

    def break_off(self, error: BaseException) -> None:
        """Close it in the midst of a letter: where the next one begins is not known."""
        self.broken_off |= not isinstance(error, OSError | EOFError)
        self.close()

    def _receive(self) -> None:
        try:
            self.come.append(_receive(self._socket))
        except BaseException as error:
            self.break_off(error)
            raise

    def _take_in(self) -> None:
        """Wait until more can be sent; keep a letter that comes before."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        if any(event & ~select.POLLOUT for _, event in poll.poll()):
            try:
                self.come.append(_receive(self._socket))
            except EOFError as error:
                raise BrokenPipeError from error


def _receive(source: socket.socket) -> ChannelMessage:
    """Return the next letter.

    Raises:
        EOFError: The other end is gone.
        NoRoomError: No file can be opened for what came with it, which is lost.
    """
    try:
        head, fd = _head(source)
        count, more = _HEAD.unpack(head)
        lengths = [length for (length,) in _LENGTH.iter_unpack(_exactly(source, count * _LENGTH.size))]
        if fd is None:
            return ChannelMessage([_exactly(source, length) for length in lengths], more)
    except OSError as error:
        raise EOFError from error
    places, size = _places(lengths)
    try:
        memory = _mapped(fd, size) if len(_open) < _MOST_OPEN else _copied(fd, size)
    except OSError:
        # No other file may be open, or no more memory be mapped.
        memory = _copied(fd, size)
    finally:
        os.close(fd)
    return ChannelMessage(
        [memory[start : start + length] for start, length in zip(places, lengths, strict=True)], more
    )


_open: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
"""The pieces of shared memory that are held here."""


def _mapped(fd: int, size: int) -> memoryview:
    # Private: what is written into the arrays stays here.
    memory = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
    _open.add(memory)
    return memoryview(memory)


def _copied(fd: int, size: int) -> memoryview:
    view, done = memoryview(bytearray(size)), 0
    while done < size:
        # Not from where the file stands: that is the same place for all who have its descriptor.
        done += os.preadv(fd, [view[done : done + (1 << 30)]], done)
    return view


def _memory() -> int:
    """Return the descriptor of an empty piece of memory, or of a file where there is no such thing."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("menv")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _no_room(why: str | None) -> NoRoomError:
    return NoRoomError(
        f"memory shared with another process: {why}, expected room for one more open file and what it holds; raise the "
        "limits (ulimit -n), hold fewer files open, or let workers sample less at a time"
    )


def _head(source: socket.socket) -> tuple[bytes, int | None]:
    """Return the first bytes of a letter, and the descriptor of shared memory that came with them."""
    # Not socket.recv_fds, nor send_fds above: they drop the flags that they are given.
    head, rights, flags, _ = source.recvmsg(_HEAD.size, socket.CMSG_LEN(_FD.size), _CLOSE_ON_EXEC)
    if flags & socket.MSG_CTRUNC:
        # Who went on would wait for bytes that lie in that memory.
        raise _no_room(os.strerror(errno.EMFILE))
    if not head:
        raise EOFError
    if len(head) < _HEAD.size:
        head += _exactly(source, _HEAD.size - len(head))
    return head, (_FD.unpack(rights[0][2])[0] if rights else None)


def _exactly(source: socket.socket, size: int) -> Any:
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
