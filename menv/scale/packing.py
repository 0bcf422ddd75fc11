"""A value as parts: its pickle, and the memory of its arrays beside it, so that nobody copies these.

Both engines send values in this form. What cannot be sent is named here, because a pickle's own complaint does not say
where in a config the thing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pickle import PickleBuffer
from types import FunctionType
from typing import Any, TypeAlias

from menv.errors import ConfigError
from menv.scale.trusted import dumps, loads

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


class Sealed:
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
