"""Plain values and spaces as JSON: what files may hold without executing code.

Plain are None, booleans, numbers, strings, bytes, lists, tuples, sets, dicts with plain keys, and numpy arrays and
scalars. Arrays are stored separately. Reading imports and calls nothing, and everything that is read is bounded.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import shlex
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError
from menv.spaces import leaves

Arrays = dict[str, npt.NDArray[Any]]

_KINDS = "biuf"
_MARK = "$"


MOST_VALUES = 1 << 20
"""Values in a JSON text that is read; each needs up to 100 bytes of memory."""


HEADER_SIZE, MOST_HEADER = 8, 1 << 23
"""Bytes that hold the size of a safetensors header, and the largest size that is read."""


def read_json(data: bytes, most_values: int = MOST_VALUES) -> Any:
    """Return the content of a JSON text.

    Raises:
        ValueError: It is not JSON, or holds more than `most_values`.
    """
    if values_in(data) > most_values:
        raise ValueError(f"about {values_in(data)} values, expected at most {most_values}")
    return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)


def values_in(data: bytes) -> int:
    """Return an upper bound of the number of values in a JSON text."""
    return sum(map(data.count, (b",", b"[", b"{")))


def check_header(first: bytes) -> None:
    """Refuse a safetensors file with a huge header, given its first `HEADER_SIZE` bytes: 100 bytes of it make an array.

    Raises:
        ValueError: Its header is too large.
    """
    size = int.from_bytes(first[:HEADER_SIZE], "little")
    if size > MOST_HEADER:
        raise ValueError(f"a header of {size} bytes, expected at most {MOST_HEADER}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def to_plain(value: Any, arrays: Arrays) -> Any:
    """Return a tree as JSON values; its arrays are added to `arrays` under new names.

    Raises:
        ConfigError: It holds a value that is not plain.
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
    raise ConfigError(
        f"{kind.__module__}.{kind.__qualname__}: not a plain value, expected numbers, strings, arrays, and lists, "
        "tuples and dicts of them; convert it"
    )


def from_plain(value: object, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return the tree from which `to_plain` made `value` and `arrays`.

    Raises:
        ConfigError: `to_plain` did not write it.
    """
    if isinstance(value, list):
        return [from_plain(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)).startswith(_MARK):
        ((mark, held),) = value.items()
        return _marked(mark, held, arrays)
    return {key: from_plain(item, arrays) for key, item in value.items()}


def is_plain(value: object) -> bool:
    """Return whether `to_plain` accepts a tree."""
    try:
        to_plain(value, {})
    except ConfigError:
        return False
    return True


def digest(value: object) -> str | None:
    """Return a hash of a tree, the same in every process; None if it is not plain."""
    arrays: Arrays = {}
    try:
        text = json.dumps(to_plain(value, arrays))
    except ConfigError:
        return None
    found = hashlib.blake2b(text.encode(), digest_size=16)
    for array in arrays.values():
        found.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def _plain_dict(value: Mapping[Any, Any], arrays: Arrays) -> Any:
    """Return a dict; one whose keys are not all strings, or look like a mark, becomes a list of pairs."""
    if all(type(key) is str and not key.startswith(_MARK) for key in value):
        return {key: to_plain(item, arrays) for key, item in value.items()}
    return {"$dict": [[to_plain(key, arrays), to_plain(item, arrays)] for key, item in value.items()]}


def _plain_array(value: Any, arrays: Arrays) -> Any:
    if value.dtype.kind not in _KINDS or value.dtype.itemsize > 8:
        raise ConfigError(
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
        if mark == "$bytes":
            return bytes.fromhex(held)
        if mark == "$str":
            return np.str_(held)
        if mark == "$float":
            return float(held)
        array = arrays[held]
        return {"$array": np.array(array), "$scalar": array[()]}[mark]
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"plain data: {mark!r} with {str(held)[:60]!r}, expected what to_plain writes; menv did not write this file"
        ) from error


Space = gym.Space[Any]
Array = npt.NDArray[Any]

MOST_NUMBERS, MOST_BYTES = 1 << 23, 3 << 23
"""Elements of all different spaces of one file, such as 1,080 x 1,920 x 3 of an image, and their bytes."""
MOST_PARTS = 4096
"""Maximum number of spaces in one file."""
MOST_LEVELS = 32
"""Maximum depth of nested Tuple and Dict spaces."""
MOST_CHARACTERS = 1 << 16
"""Characters of a Text space."""

_INFINITE = {"inf": math.inf, "-inf": -math.inf}


def space_to_json(space: Space) -> dict[str, Any]:
    """Return a space as a JSON value with a tag `"space"`; `space_from_json` reads it.

    An array of equal numbers is one number, any other array base64.

    Raises:
        ConfigError: JSON has no form for this kind of space, or for a key of a Dict, or the space is too large.
    """
    sizes = [
        (math.prod(leaf.shape or ()), np.dtype(leaf.dtype or np.int8).itemsize) for leaf in leaves(space)
    ]
    _check_size("space", sum(count for count, _ in sizes), sum(count * size for count, size in sizes))
    return _space_to_json(space)


def _space_to_json(space: object) -> dict[str, Any]:
    spaces = gym.spaces
    match space:
        case spaces.Box():
            bounds = {"low": _array_to_json(space.low), "high": _array_to_json(space.high)}
            return {"space": "box", **bounds, **_form(space.shape, space.dtype)}
        case spaces.Discrete():
            dtype = str(np.dtype(space.dtype))
            return {"space": "discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
        case spaces.MultiDiscrete():
            ranges = {"nvec": _array_to_json(space.nvec), "start": _array_to_json(np.asarray(space.start))}
            return {"space": "multi-discrete", **ranges, **_form(space.nvec.shape, space.dtype)}
        case spaces.MultiBinary():
            size: Any = space.n
            shape = [int(length) for length in space.shape]
            return {"space": "multi-binary", "n": shape if isinstance(size, tuple | list) else int(size)}
        case spaces.Text():
            lengths = {"min_length": int(space.min_length), "max_length": int(space.max_length)}
            return {"space": "text", **lengths, "characters": "".join(sorted(space.character_set))}
        case spaces.Tuple():
            return {"space": "tuple", "spaces": list(map(_space_to_json, space.spaces))}
        case spaces.Dict():
            return {"space": "dict", "spaces": [_entry_to_json(*entry) for entry in space.spaces.items()]}
    raise ConfigError(
        f"space {type(space).__name__}: cannot be written as JSON, expected Box, Discrete, MultiDiscrete, MultiBinary, "
        "Text, or Tuple and Dict of these; change the space or wrap the environment"
    )


def _form(shape: Sequence[int], dtype: Any) -> dict[str, Any]:
    return {"shape": list(map(int, shape)), "dtype": str(np.dtype(dtype))}


def _entry_to_json(key: object, space: Space) -> list[Any]:
    if not isinstance(key, str):
        raise ConfigError(
            f"space Dict: key {key!r:.60} cannot be written as JSON, expected a str; name the entries of the space"
        )
    return [key, _space_to_json(space)]


def _array_to_json(array: Array) -> Any:
    if array.size and (array == array.flat[0]).all():
        number = array.flat[0].item()
        if isinstance(number, bool):
            return int(number)
        return {math.inf: "inf", -math.inf: "-inf"}.get(number, number)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"base64": base64.b64encode(little.tobytes()).decode("ascii")}


def space_from_json(value: object, where: str = "space") -> Space:
    """Return the space that `space_to_json` described; `where` begins the messages.

    Raises:
        ConfigError: The value describes no space, or a huge one.
    """
    return SpaceDecoder().read(value, where)


def _check_size(where: str, numbers: int, size: int) -> None:
    if numbers > MOST_NUMBERS or size > MOST_BYTES:
        raise ConfigError(
            f"{where}: arrays of {numbers} numbers in {size} bytes, expected at most {MOST_NUMBERS} in {MOST_BYTES}; "
            "make the space smaller"
        )


class SpaceDecoder:
    """Reads the spaces of one file and limits their total size; equal spaces become one object."""

    def __init__(self) -> None:
        self._where = ""
        self._parts = 0
        self._numbers = self._bytes = 0
        self._made: dict[str, Space] = {}

    def read(self, value: Any, where: str) -> Space:
        self._where = where
        text = json.dumps(value)
        if text not in self._made:
            self._made[text] = self.space(value, 0)
        return self._made[text]

    def space(self, value: Any, level: int) -> Space:
        self._parts += 1
        if level > MOST_LEVELS or self._parts > MOST_PARTS:
            raise self._wrong(f"more than {MOST_LEVELS} levels or {MOST_PARTS} parts", "fewer")
        tag = value.get("space") if isinstance(value, Mapping) else None
        try:
            return self._made_of(tag, value, level)
        except ConfigError:
            raise
        except KeyError as error:
            raise self._wrong(f"{tag} without {error}", "all of its entries") from error
        except (ValueError, TypeError, AssertionError, OverflowError, AttributeError) as error:
            why = str(error).replace("\n", " ")
            raise self._wrong(f"{tag} cannot be made ({why:.80})", "what space_to_json returned") from error

    def _made_of(self, tag: Any, value: Mapping[str, Any], level: int) -> Space:
        spaces = gym.spaces
        match tag:
            case "box":
                dtype = self.dtype(value["dtype"])
                shape = self.shape(value["shape"], dtype)
                low, high = (self.array(value[name], shape, dtype) for name in ("low", "high"))
                # The dtype of an array of no axes is a scalar type for gymnasium.
                return spaces.Box(low, high, shape, dtype.type)
            case "discrete":
                start, dtype = value["start"], self.dtype(value["dtype"])
                if type(start) is not int or not -(1 << 62) < start < 1 << 62:
                    raise ValueError("start is not an integer")
                count = self.count(value["n"])
                if dtype == np.int64:
                    return spaces.Discrete(count, start=start)
                return spaces.Discrete(count, start=start, dtype=dtype.type)
            case "multi-discrete":
                dtype = self.dtype(value["dtype"])
                shape = self.shape(value["shape"], dtype)
                sizes, starts = (self.array(value[name], shape, dtype) for name in ("nvec", "start"))
                return spaces.MultiDiscrete(sizes, dtype=dtype.type, start=starts)
            case "multi-binary":
                size, flag = value["n"], np.dtype(np.int8)
                if isinstance(size, list):
                    return spaces.MultiBinary(list(self.shape(size, flag)))
                return spaces.MultiBinary(self.shape([size], flag)[0])
        return self._nested_of(tag, value, level)

    def _nested_of(self, tag: Any, value: Mapping[str, Any], level: int) -> Space:
        match tag:
            case "tuple":
                return gym.spaces.Tuple([self.space(part, level + 1) for part in list(value["spaces"])])
            case "dict":
                parts: OrderedDict[str, Space] = OrderedDict()
                for key, part in list(value["spaces"]):
                    if not isinstance(key, str) or key in parts:
                        raise ValueError(f"key {key!r:.40} is not a str, or occurs twice")
                    parts[key] = self.space(part, level + 1)
                return gym.spaces.Dict(parts)
            case "text":
                least, most = self.count(value["min_length"], least=0), self.count(value["max_length"])
                characters = str(value["characters"])
                if len(characters) > MOST_CHARACTERS:
                    raise ValueError(f"{len(characters)} characters, at most {MOST_CHARACTERS}")
                return gym.spaces.Text(most, min_length=least, charset=characters)
        raise self._wrong(f"unknown space tag {tag!r:.60}", "what space_to_json returned")

    def shape(self, value: Any, dtype: np.dtype[Any]) -> tuple[int, ...]:
        """Return the shape of an array, once its size is counted."""
        if not isinstance(value, list) or len(value) > MOST_LEVELS:
            raise self._wrong(f"shape {value!r:.60}", "a short list of sizes")
        shape = tuple(self.count(size, least=0) for size in value)
        self._numbers += math.prod(shape)
        self._bytes += math.prod(shape) * dtype.itemsize
        _check_size(self._where, self._numbers, self._bytes)
        return shape

    def count(self, value: Any, least: int = 1) -> int:
        if type(value) is not int or not least <= value < 1 << 63:
            raise self._wrong(f"{value!r:.60}", f"an integer from {least}")
        return int(value)

    def dtype(self, value: Any) -> np.dtype[Any]:
        if value not in _DTYPES:
            raise self._wrong(f"dtype {value!r:.60}", f"one of {list(_DTYPES)}")
        return np.dtype(str(value))

    def array(self, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if isinstance(value, Mapping):
            try:
                data = base64.b64decode(value["base64"], validate=True)
            except (binascii.Error, ValueError, TypeError) as error:
                raise self._wrong("an array that is not base64", "base64") from error
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


def shell_line(words: Iterable[str]) -> str:
    """Return words as a shell reads them, see `shell_word`."""
    return " ".join(map(shell_word, words))


def shell_word(word: str) -> str:
    """Return a word as a shell reads it, in line breaks and printable characters: a path may hold any bytes."""
    if word.replace("\n", "").isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_shell_character, word))}'"


def _shell_character(one: str) -> str:
    if one.isprintable():
        return f"\\{one}" if one in "\\'" else one
    code = ord(one)
    # A byte that is not UTF-8 is half of a character to Python.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\U{code:08x}"
