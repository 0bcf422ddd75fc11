"""Values on their way to another process: their pickles, and messages on the socket between driver and process.

Large arrays travel outside the pickle and are received into memory that belongs to them alone: `Connection` of
`multiprocessing` copies them once more, which costs workers that send images a quarter of their speed.

This is the only module that unpickles, and only messages of processes that trust each other.
"""

from __future__ import annotations

import inspect
import pickle
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
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
_MAX_DEPTH = 8
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
        found, path = _find_unpicklable(value)
        why = next(iter(message_of(error).splitlines()), type(error).__name__)[:200]
        raise UnsendableError(
            f"{what}{path.removeprefix(at)} is a {type(found).__qualname__} ({why}), "
            "expected what can be pickled; create it in the process that uses it"
        ) from error
    return [head, *buffers]


def unpack(parts: Parts) -> Any:
    """Return the value that `pack` packed; raises whatever its classes do."""
    return loads(parts[0], parts[1:])


class _Sealed:
    def __init__(self, parts: Parts) -> None:
        self._parts = [PickleBuffer(bytearray(part)) for part in parts]

    def __reduce__(self) -> Any:
        return unpack, (self._parts,)


def sealed(value: T, what: str = "") -> T:
    """Return a snapshot of a value that is sent later, maybe to many; it becomes the value where it is unpickled."""
    return cast(T, _Sealed(pack(value, what)))


def can_be_pickled(value: object) -> bool:
    """Return whether a value can be sent to another process."""
    try:
        dumps(value, lambda _buffer: None)
    except Exception:
        return False
    return True


def _find_unpicklable(value: object) -> tuple[Any, str]:
    """Return the smallest part of a value that cannot be pickled, and the path to it."""
    path = ""
    for _ in range(_MAX_DEPTH):
        found = next(((inner, step) for inner, step in _parts_of(value) if not can_be_pickled(inner)), None)
        if found is None:
            break
        value, path = found[0], path + found[1]
    return value, path


def _parts_of(value: Any) -> Iterable[tuple[Any, str]]:
    if isinstance(value, Mapping):
        return [(inner, f"[{key!r}]") for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [(inner, f"[{index}]") for index, inner in enumerate(value)]
    if isinstance(value, FunctionType):
        found = inspect.getclosurevars(value)
        return [
            (inner, f"'s variable {name!r}") for name, inner in {**found.nonlocals, **found.globals}.items()
        ]
    names = ("func", "args", "keywords") if isinstance(value, partial) else getattr(value, "__slots__", ())
    held = {name: getattr(value, name) for name in names if hasattr(value, name)}
    held |= getattr(value, "__dict__", {})
    return [(inner, f".{name}") for name, inner in held.items() if not name.startswith("__")]


_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


def send_parts(to: socket.socket, parts: Parts) -> None:
    """Send a packed value: the number of parts, their sizes and the parts; OSError if the other end is gone."""
    sizes = [_LENGTH.pack(len(part)) for part in parts]
    to.sendall(b"".join((_COUNT.pack(len(parts)), *sizes, parts[0])))
    for part in parts[1:]:
        to.sendall(part)


def receive_parts(source: socket.socket) -> Parts:
    """Wait for a packed value; OSError or EOFError if the other end is gone."""
    (count,) = _COUNT.unpack(_receive_exactly(source, _COUNT.size))
    sizes = _receive_exactly(source, count * _LENGTH.size)
    return [_receive_exactly(source, size) for (size,) in _LENGTH.iter_unpack(sizes)]


def _receive_exactly(source: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = source.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return data
