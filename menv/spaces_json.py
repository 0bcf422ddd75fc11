"""Spaces as JSON values and back: tagged, bounded, without a name that would be imported.

Policies on disk hold the spaces that they were trained for in this form. It knows gymnasium's spaces and numpy,
nothing about files or policies. Arrays whose numbers are all equal are one number, others base64 of their bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError
from menv.nested import leaves

Space = gym.Space[Any]
Array = npt.NDArray[Any]

MOST_NUMBERS, MOST_BYTES = 1 << 23, 3 << 23
"""Elements of all different spaces of one file together, such as 1,080 x 1,920 x 3 of an image, and their bytes."""
MOST_PARTS = 4096
"""Spaces that may lie in one another or beside each other."""
MOST_LEVELS = 32
"""Levels of Tuple and Dict in one another."""
MOST_CHARACTERS = 1 << 16
"""Characters of a Text space."""

_INFINITE = {"inf": math.inf, "-inf": -math.inf}


def space_to_json(space: Space) -> dict[str, Any]:
    """Return a space as a JSON value with a tag `"space"`.

    Raises:
        ConfigError: There is no form for a space of this kind, or for a key of a Dict, or it is larger than what
            `space_from_json` reads.
    """
    sizes = [
        (math.prod(leaf.shape or ()), np.dtype(leaf.dtype or np.int8).itemsize) for leaf in leaves(space)
    ]
    _check_size("space", sum(count for count, _ in sizes), sum(count * size for count, size in sizes))
    for kind, write in _WRITERS.items():
        if isinstance(space, kind):
            value: dict[str, Any] = write(space)
            return value
    raise ConfigError(
        f"space {type(space).__name__}: has no form in JSON, expected Box, Discrete, MultiDiscrete, MultiBinary, Text, "
        "or Tuple and Dict of these; change the space or wrap the environment"
    )


def space_from_json(value: Any, where: str = "space") -> Space:
    """Return the space that `space_to_json` described.

    Args:
        value: What it returned, perhaps changed by others since.
        where: Begins the messages.

    Raises:
        ConfigError: The value describes no space, or one of absurd size.
    """
    return SpaceDecoder().read(value, where)


def _check_size(where: str, numbers: int, size: int) -> None:
    if numbers > MOST_NUMBERS or size > MOST_BYTES:
        raise ConfigError(
            f"{where}: arrays of {numbers} numbers in {size} bytes, expected at most {MOST_NUMBERS} in {MOST_BYTES}; "
            "make the space smaller"
        )


class SpaceDecoder:
    """Reads the spaces of one file and counts what they hold together; spaces that are alike are one object."""

    def __init__(self) -> None:
        self._where = ""
        self._parts = 0
        self._numbers = self._bytes = 0
        self._made: dict[str, Space] = {}

    def read(self, value: Any, where: str) -> Space:
        """Return a space; see `space_from_json`."""
        self._where = where
        text = json.dumps(value)
        if text not in self._made:
            self._made[text] = self.space(value, 0)
        return self._made[text]

    def space(self, value: Any, level: int) -> Space:
        """Return a space at a level of nesting."""
        self._parts += 1
        if level > MOST_LEVELS or self._parts > MOST_PARTS:
            raise self._wrong(f"more than {MOST_LEVELS} levels or {MOST_PARTS} parts", "fewer")
        tag = value.get("space") if isinstance(value, Mapping) else None
        if not isinstance(tag, str) or tag not in _READERS:
            raise self._wrong(f"unknown space tag {tag!r:.60}", f"one of {sorted(_READERS)}")
        try:
            return _READERS[tag](self, value, level)
        except ConfigError:
            raise
        except KeyError as error:
            raise self._wrong(f"{tag} without {error}", "all of its entries") from error
        except (ValueError, TypeError, AssertionError, OverflowError, AttributeError) as error:
            why = str(error).replace("\n", " ")
            raise self._wrong(f"{tag} cannot be made ({why:.80})", "what space_to_json returned") from error

    def shape(self, value: Any, dtype: np.dtype[Any]) -> tuple[int, ...]:
        """Return the shape of an array of a dtype, once its numbers are counted."""
        if not isinstance(value, list) or len(value) > MOST_LEVELS:
            raise self._wrong(f"shape {value!r:.60}", "a short list of sizes")
        shape = tuple(self.count(size, least=0) for size in value)
        self._numbers += math.prod(shape)
        self._bytes += math.prod(shape) * dtype.itemsize
        _check_size(self._where, self._numbers, self._bytes)
        return shape

    def count(self, value: Any, least: int = 1) -> int:
        """Return an integer of at least `least` that fits 63 bits."""
        if type(value) is not int or not least <= value < 1 << 63:
            raise self._wrong(f"{value!r:.60}", f"an integer from {least}")
        return int(value)

    def dtype(self, value: Any) -> np.dtype[Any]:
        """Return a dtype of plain numbers."""
        if value not in _DTYPES:
            raise self._wrong(f"dtype {value!r:.60}", f"one of {list(_DTYPES)}")
        return np.dtype(str(value))

    def array(self, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array."""
        if isinstance(value, Mapping):
            try:
                data = base64.b64decode(value["base64"], validate=True)
            except (binascii.Error, ValueError, TypeError) as error:
                raise self._wrong("an array that is no base64", "base64") from error
            if len(data) != math.prod(shape) * dtype.itemsize:
                raise self._wrong(f"{len(data)} bytes of {dtype} for the shape {list(shape)}", "its size")
            return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
        number = _INFINITE.get(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise self._wrong(f"{value!r:.60}", "a number or base64")
        return np.full(shape, number, dtype)

    def _wrong(self, what: str, expected: str) -> ConfigError:
        return ConfigError(f"{self._where}: {what}, expected {expected}; write the file again")


_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip


def _array_to_json(array: Array) -> Any:
    if array.size and (array == array.flat[0]).all():
        number = array.flat[0].item()
        if isinstance(number, bool):
            return int(number)
        return {math.inf: "inf", -math.inf: "-inf"}.get(number, number)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"base64": base64.b64encode(little.tobytes()).decode("ascii")}


def _write_box(space: gym.spaces.Box) -> dict[str, Any]:
    return {
        "space": "box",
        "low": _array_to_json(space.low),
        "high": _array_to_json(space.high),
        "shape": [int(size) for size in space.shape],
        "dtype": str(np.dtype(space.dtype)),
    }


def _write_discrete(space: gym.spaces.Discrete) -> dict[str, Any]:
    return {
        "space": "discrete", "n": int(space.n), "start": int(space.start), "dtype": str(np.dtype(space.dtype))
    }  # fmt: skip


def _write_multi_discrete(space: gym.spaces.MultiDiscrete) -> dict[str, Any]:
    return {
        "space": "multi-discrete",
        "nvec": _array_to_json(space.nvec),
        "start": _array_to_json(np.asarray(space.start)),
        "shape": [int(size) for size in space.nvec.shape],
        "dtype": str(np.dtype(space.dtype)),
    }


def _write_multi_binary(space: gym.spaces.MultiBinary) -> dict[str, Any]:
    shape = [int(size) for size in space.shape]
    return {"space": "multi-binary", "n": shape if isinstance(space.n, tuple | list) else int(space.n)}


def _write_tuple(space: gym.spaces.Tuple[Any]) -> dict[str, Any]:
    return {"space": "tuple", "spaces": [space_to_json(part) for part in space.spaces]}


def _write_dict(space: gym.spaces.Dict) -> dict[str, Any]:
    for key in space.spaces:
        if not isinstance(key, str):
            raise ConfigError(
                f"space Dict: key {key!r:.60} has no form in JSON, expected a str; name the entries of the space"
            )
    return {"space": "dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}


def _write_text(space: gym.spaces.Text) -> dict[str, Any]:
    return {
        "space": "text",
        "min_length": int(space.min_length),
        "max_length": int(space.max_length),
        "characters": "".join(sorted(space.character_set)),
    }


def _read_box(reader: SpaceDecoder, value: Mapping[str, Any], level: int) -> Space:
    dtype = reader.dtype(value["dtype"])
    shape = reader.shape(value["shape"], dtype)
    low, high = (reader.array(value[name], shape, dtype) for name in ("low", "high"))
    # The dtype of an array of no axes is a scalar type for gymnasium.
    return gym.spaces.Box(low, high, shape, dtype.type)


def _read_discrete(reader: SpaceDecoder, value: Mapping[str, Any], level: int) -> Space:
    start, dtype = value["start"], reader.dtype(value["dtype"])
    if type(start) is not int or not -(1 << 62) < start < 1 << 62:
        raise ValueError("start is no integer")
    if dtype == np.int64:
        return gym.spaces.Discrete(reader.count(value["n"]), start=start)
    return gym.spaces.Discrete(reader.count(value["n"]), start=start, dtype=dtype.type)


def _read_multi_discrete(reader: SpaceDecoder, value: Mapping[str, Any], level: int) -> Space:
    dtype = reader.dtype(value["dtype"])
    shape = reader.shape(value["shape"], dtype)
    sizes, start = (reader.array(value[name], shape, dtype) for name in ("nvec", "start"))
    return gym.spaces.MultiDiscrete(sizes, dtype=dtype.type, start=start)


def _read_multi_binary(reader: SpaceDecoder, value: Mapping[str, Any], level: int) -> Space:
    size = value["n"]
    if isinstance(size, list):
        return gym.spaces.MultiBinary(list(reader.shape(size, np.dtype(np.int8))))
    return gym.spaces.MultiBinary(reader.shape([size], np.dtype(np.int8))[0])


def _read_tuple(reader: SpaceDecoder, value: Mapping[str, Any], level: int) -> Space:
    return gym.spaces.Tuple([reader.space(part, level + 1) for part in list(value["spaces"])])


def _read_dict(reader: SpaceDecoder, value: Mapping[str, Any], level: int) -> Space:
    parts: OrderedDict[str, Space] = OrderedDict()
    for key, part in list(value["spaces"]):
        if not isinstance(key, str) or key in parts:
            raise ValueError(f"key {key!r:.40} is no str, or twice there")
        parts[key] = reader.space(part, level + 1)
    return gym.spaces.Dict(parts)


def _read_text(reader: SpaceDecoder, value: Mapping[str, Any], level: int) -> Space:
    least, most = reader.count(value["min_length"], least=0), reader.count(value["max_length"])
    characters = str(value["characters"])
    if len(characters) > MOST_CHARACTERS:
        raise ValueError(f"{len(characters)} characters, at most {MOST_CHARACTERS}")
    return gym.spaces.Text(most, min_length=least, charset=characters)


_WRITERS: dict[type[Any], Callable[[Any], dict[str, Any]]] = {
    gym.spaces.Box: _write_box,
    gym.spaces.Discrete: _write_discrete,
    gym.spaces.MultiDiscrete: _write_multi_discrete,
    gym.spaces.MultiBinary: _write_multi_binary,
    gym.spaces.Tuple: _write_tuple,
    gym.spaces.Dict: _write_dict,
    gym.spaces.Text: _write_text,
}
_READERS: dict[str, Callable[[SpaceDecoder, Mapping[str, Any], int], Space]] = {
    "box": _read_box,
    "discrete": _read_discrete,
    "multi-discrete": _read_multi_discrete,
    "multi-binary": _read_multi_binary,
    "tuple": _read_tuple,
    "dict": _read_dict,
    "text": _read_text,
}
