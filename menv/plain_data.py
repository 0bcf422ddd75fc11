"""Trees of plain values as JSON, their arrays beside it: what a file may hold without anybody's code.

`menv.loop.sampler`, `menv.metrics` and training checkpoints write and read with it. Plain are None, booleans,
numbers, strings, bytes, lists, tuples, sets, dicts with any plain keys, and numpy arrays and scalars; nothing else, so
that nothing has to be imported, called or guessed when a tree is read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError

Arrays = dict[str, npt.NDArray[Any]]

_KINDS = "biuf"
_MARK = "$"


MOST_VALUES = 1 << 20
"""Values in a JSON text that is read; in memory each takes up to 100 bytes."""


HEADER_SIZE, MOST_HEADER = 8, 1 << 23
"""Bytes that hold the size of a safetensors header, and the largest size that is read."""


class NotPlainError(ConfigError):
    """A value is of a kind that no file may hold; leave it out or turn it into a plain one."""


def read_json(data: bytes, most_values: int = MOST_VALUES) -> Any:
    """Return what a JSON text holds, once it is known that memory has room for it.

    Raises:
        ValueError: It is no JSON, or holds too many values.
    """
    if values_in(data) > most_values:
        raise ValueError(f"about {values_in(data)} values, expected at most {most_values}")
    return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)


def values_in(data: bytes) -> int:
    """Return how many values a JSON text holds, or more: outside of strings each of these stands for one."""
    return sum(map(data.count, (b",", b"[", b"{")))


def check_header(first: bytes) -> None:
    """Refuse a file of arrays with a larger header than any that is written; each 100 bytes of it make an array.

    Args:
        first: The first `HEADER_SIZE` bytes of a safetensors file.

    Raises:
        ValueError: Its header is too large.
    """
    size = int.from_bytes(first[:HEADER_SIZE], "little")
    if size > MOST_HEADER:
        raise ValueError(f"a header of {size} bytes, expected at most {MOST_HEADER}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def to_plain(value: Any, arrays: Arrays) -> Any:
    """Return a tree as what JSON can hold.

    Args:
        value: The tree.
        arrays: Its arrays are put here, under new names.

    Raises:
        NotPlainError: It holds something that is not plain.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is np.str_:
        # Equal to a str, but other numbers are drawn for an agent with such an id.
        return {"$str": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [to_plain(item, arrays) for item in value]
    if kind in (tuple, set, frozenset):
        items = sorted(value, key=repr) if kind is not tuple else value
        return {f"${kind.__name__}": [to_plain(item, arrays) for item in items]}
    if isinstance(value, dict):
        return _plain_dict(value, arrays)
    if kind is bytes:
        return {"$bytes": value.hex()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain_array(value, arrays)
    raise NotPlainError(
        f"{kind.__module__}.{kind.__qualname__}: not a plain value, expected numbers, strings, arrays, and lists, "
        "tuples and dicts of them; turn it into those"
    )


def from_plain(value: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return the tree of which `to_plain` made `value` and `arrays`.

    Raises:
        NotPlainError: It was not made by it.
    """
    if isinstance(value, list):
        return [from_plain(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)).startswith(_MARK):
        ((mark, held),) = value.items()
        return _marked(mark, held, arrays)
    return {key: from_plain(item, arrays) for key, item in value.items()}


def is_plain(value: Any) -> bool:
    """Return whether `to_plain` can take a tree."""
    try:
        to_plain(value, {})
    except NotPlainError:
        return False
    return True


def digest(value: Any) -> str | None:
    """Return a hash of a tree, the same in every process; None of one that is not plain."""
    arrays: Arrays = {}
    try:
        text = json.dumps(to_plain(value, arrays))
    except NotPlainError:
        return None
    found = hashlib.blake2b(text.encode(), digest_size=16)
    for array in arrays.values():
        found.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def _plain_dict(value: Mapping[Any, Any], arrays: Arrays) -> Any:
    """Return a dict; one whose keys are not all strings, or could be taken for a mark, as a list of pairs."""
    if all(type(key) is str and not key.startswith(_MARK) for key in value):
        return {key: to_plain(item, arrays) for key, item in value.items()}
    return {"$dict": [[to_plain(key, arrays), to_plain(item, arrays)] for key, item in value.items()]}


def _plain_array(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {"$objects": [list(value.shape), [to_plain(item, arrays) for item in value.ravel()]]}
    if value.dtype.kind not in _KINDS or value.dtype.itemsize > 8:
        raise NotPlainError(
            f"array of {value.dtype}: not a plain value, expected booleans, integers or floats; convert it"
        )
    name = str(len(arrays))
    arrays[name] = np.ascontiguousarray(value).reshape(np.shape(value))
    return {"$array" if isinstance(value, np.ndarray) else "$scalar": name}


def _marked(mark: str, held: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    try:
        if mark == "$dict":
            return {from_plain(key, arrays): from_plain(item, arrays) for key, item in held}
        if mark in ("$tuple", "$set", "$frozenset"):
            kind = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}[mark]
            return kind(from_plain(item, arrays) for item in held)
        if mark == "$objects":
            return _objects(held, arrays)
        if mark == "$bytes":
            return bytes.fromhex(held)
        if mark == "$str":
            return np.str_(held)
        if mark == "$float":
            return float(held)
        array = arrays[held]
        return {"$array": np.array(array), "$scalar": array[()]}[mark]
    except NotPlainError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise NotPlainError(
            f"plain data: {mark!r} with {str(held)[:60]!r}, expected what to_plain writes; the file was written by "
            "something else"
        ) from error


def _objects(held: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    shape, items = held
    flat = np.empty(len(items), object)
    for place, item in enumerate(items):
        flat[place] = from_plain(item, arrays)
    return flat.reshape(shape)
