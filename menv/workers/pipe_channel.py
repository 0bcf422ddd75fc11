"""A socket between a driver and a process that it started, and the packing of values that travel on it.

`process_engine` holds one end, `worker_process` the other, which reads in a thread: a driver that sends never waits for
a call to end. Large arrays travel beside the pickle and are received into memory that belongs to them alone.

This is the only module that unpickles, and only messages of processes that trust each other.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pickle import PickleBuffer
from types import FunctionType
from typing import Any, TypeAlias, TypeVar, cast

import cloudpickle

from menv.errors import ConfigError, message_of

T = TypeVar("T")


def dumps(value: object, take_buffer: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
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


def pack(value: object, what: str = "", at: str = "") -> Parts:
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


class _Sealed:
    def __init__(self, parts: Parts) -> None:
        self._parts = [PickleBuffer(bytearray(part)) for part in parts]

    def __reduce__(self) -> Any:
        return unpack, (self._parts,)


def sealed(value: T, what: str = "") -> T:
    """Return a snapshot of a value that is sent later, maybe to many; it becomes the value where it is unpickled.

    The class of the value may have changed when it is pickled again.
    """
    return cast(T, _Sealed(pack(value, what)))


def unpack(parts: Parts) -> Any:
    """Return the value that `pack` packed; raises whatever its classes do."""
    return loads(parts[0], parts[1:])


def find_unpicklable(value: object) -> tuple[Any, str]:
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


def _slots(value: object) -> Iterator[str]:
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


def can_be_pickled(value: object) -> bool:
    """Return whether a value can be sent to another process."""
    try:
        dumps(value, lambda _buffer: None)
    except Exception:
        return False
    return True


def _first_line(error: BaseException) -> str:
    return next(iter(message_of(error).splitlines()), type(error).__name__)[:200]


_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


def send_parts(to: socket.socket, parts: Parts) -> None:
    """Send a packed value: the number of parts, their sizes and the parts; OSError if the other end is gone."""
    sizes = [_LENGTH.pack(len(part)) for part in parts]
    to.sendall(b"".join((_COUNT.pack(len(parts)), *sizes, parts[0])))
    for part in parts[1:]:
        to.sendall(part)


def receive_parts(source: socket.socket) -> Parts:
    """Wait for a packed value; EOFError if the other end is gone."""
    try:
        (count,) = _COUNT.unpack(_receive_exactly(source, _COUNT.size))
        sizes = _receive_exactly(source, count * _LENGTH.size)
        return [_receive_exactly(source, size) for (size,) in _LENGTH.iter_unpack(sizes)]
    except OSError as error:
        raise EOFError from error


def _receive_exactly(source: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = source.recv_into(view[done:])
        if not got:
            raise EOFError
        done += got
    return data


class PipeChannel:
    """The driver's end of the socket, which belongs to the channel.

    After an error, also a Ctrl-C within a message, the channel is closed. One thread uses it; any thread may close it.
    The descriptor stays open while in use, so that a waiting system call never sees another file with the same number.

    `was_interrupted` says whether it was closed within a message by an exception here. `received` is the inbox.
    """

    def __init__(self, end: socket.socket) -> None:
        self.was_interrupted = False
        self.received: list[Parts] = []
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
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

    def send(self, parts: Parts) -> None:
        """Send a value; OSError if the other end is gone."""
        self.hold()
        try:
            if self._closed:
                raise BrokenPipeError
            send_parts(self._socket, parts)
        except BaseException as error:
            self.close_within_message(error)
            raise
        finally:
            self.release()

    def wait_for_message(self) -> None:
        """Wait until `received` holds a message; an interruption before loses nothing. EOFError at the end."""
        if self.received:
            return
        self.hold()
        try:
            if self._closed:
                raise EOFError
            self._poll.poll()
            try:
                self.received.append(receive_parts(self._socket))
            except BaseException as error:
                self.close_within_message(error)
                raise
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
