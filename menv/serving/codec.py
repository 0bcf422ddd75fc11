"""JSON and msgpack: which of them a body is, and decoding either into declared types.

Errors are sentences for authors of clients. Types bound what a message may hold, and the nesting of bodies is checked
before msgspec, which is recursive, sees them.
"""

from __future__ import annotations

import enum
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Raw

from menv.errors import MenvError


class ErrorCode(StrEnum):
    """The kind of an error, for machines; docs/reference/rllink.md describes each one."""

    BAD_FRAME = "bad_frame"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    UNKNOWN_TYPE = "unknown_type"
    WRONG_TYPE = "wrong_type"
    WRONG_LENGTH = "wrong_length"
    OUT_OF_RANGE = "out_of_range"
    UNKNOWN_ID = "unknown_id"
    UNKNOWN_EPISODE = "unknown_episode"
    WRONG_ORDER = "wrong_order"
    NOT_ALLOWED = "not_allowed"
    TOO_MANY = "too_many"
    TOO_SLOW = "too_slow"
    STOPPING = "stopping"
    INTERNAL = "internal"


class BadMessageError(MenvError):
    """A peer sent something invalid. It is answered with an ERROR, and nothing else happens.

    Attributes:
        code: The `ErrorCode`.
        text: `<where>: <what was wrong>, expected <rule>`, for the author of the client; never the payload.
        seq: The sequence number of the message, if it could be read.
    """

    def __init__(self, code: str, text: str, seq: int | None = None) -> None:
        super().__init__(f"{code}: {text}")
        self.code = ErrorCode(code)
        self.text = text
        self.seq = seq

    def __reduce__(self) -> tuple[Any, ...]:
        return BadMessageError, (str(self.code), self.text, self.seq)


Data = bytes | Raw

_SAFE_LEVELS = 5000
"""Nesting that fits into half a megabyte of stack, the smallest of a thread on common systems."""
_JSON_STARTS = frozenset(b"{ \t\n\r")
_MSGPACK_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
MARK = b"\xef\xbb\xbf"
"""A byte order mark, which some programs write before UTF-8."""
_TEXTS = re.compile(rb'("(?:[^"\\]|\\.)*")', re.DOTALL)
_POWERS = re.compile(rb"-?\d+(?:\.\d+)?[eE][+-]?\d+")
_ZEROS = re.compile(rb"(?<=\d)\.0+(?![\deE])")
_MAX_DIGITS = 20
"""Digits of the largest 64-bit integers."""


class WireFormat(enum.Enum):
    """How a body is encoded. An answer uses the format of its request."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"


def wire_format_of(body: bytes) -> WireFormat:
    """Return the format of a body, by its first byte."""
    first = body[0] if body else -1
    if first in _JSON_STARTS or body.startswith(MARK):
        return WireFormat.JSON
    if first in _MSGPACK_MAPS:
        return WireFormat.MSGPACK
    what = f"first byte 0x{first:02x}" if body else "0 bytes"
    raise BadMessageError(
        ErrorCode.MALFORMED,
        f"body: {what}, expected an object in JSON or a map in msgpack; write one of the two",
    )


class TypedDecoder:
    """Decodes one type from both formats; `msgpack_kind` is the type in msgpack, if it differs."""

    def __init__(self, kind: Any, msgpack_kind: Any = None) -> None:
        self._json: Callable[[Data], Any] = msgspec.json.Decoder(kind).decode
        self._msgpack: Callable[[Data], Any] = msgspec.msgpack.Decoder(msgpack_kind or kind).decode

    def read(self, data: Data, wire_format: WireFormat, where: str) -> Any:
        """Return the decoded value, or raise `BadMessageError`, whose text begins with `where`."""
        decode = self._json if wire_format is WireFormat.JSON else self._msgpack
        try:
            try:
                return decode(data)
            except msgspec.ValidationError as error:
                # Some languages write all numbers as floats.
                if "got `float`" not in str(error):
                    raise
                return decode(_whole_numbers(data, wire_format))
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise explained(error, where) from None


def _whole_numbers(data: Data, wire_format: WireFormat) -> bytes:
    """Return a value with its whole numbers written as integers: 1.0 and 1e0 as 1."""
    if wire_format is WireFormat.MSGPACK:
        return msgspec.msgpack.encode(_whole(msgspec.msgpack.decode(data)))
    parts = _TEXTS.split(bytes(data))
    parts[::2] = [_ZEROS.sub(b"", _POWERS.sub(_without_power, part)) for part in parts[::2]]
    return b"".join(parts)


def _without_power(found: re.Match[bytes]) -> bytes:
    try:
        number = Decimal(found[0].decode())
    except InvalidOperation:  # Its power has more digits than Decimal counts.
        return found[0]
    whole = number.adjusted() < _MAX_DIGITS and number == number.to_integral_value()
    return b"%d" % number if whole else found[0]


def _whole(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2.0**64 else value
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return {key: _whole(one) for key, one in value.items()} if isinstance(value, dict) else value


_FIELDS = TypedDecoder(dict[str, Raw])
_JSON_FIELDS: Callable[[bytes], dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw]).decode


def fields(data: Data, wire_format: WireFormat, where: str) -> dict[str, Raw]:
    """Return the entries of an object, undecoded; raise `BadMessageError` if it is no object or repeats a key."""
    found: dict[str, Raw] = _FIELDS.read(data, wire_format, where)
    in_json = wire_format is WireFormat.JSON
    if _has_more_strings(bytes(data), found) if in_json else _entries(data) != len(found):
        raise BadMessageError(ErrorCode.MALFORMED, f"{where}: a key is there twice, expected each key once")
    return found


def listed(values: Sequence[Data], wire_format: WireFormat) -> bytes:
    """Return encoded values as one encoded list."""
    if wire_format is WireFormat.JSON:
        return b"[%b]" % b",".join(values)
    return b"\xdd%b%b" % (len(values).to_bytes(4, "big"), b"".join(values))


def is_plain(body: bytes, wire_format: WireFormat, keys: int, strings: int) -> bool:
    """Return whether an object that was decoded into declared fields surely repeats no key; else `fields` decides.

    `keys` is the number of its known keys, `strings` the number of strings in their values. If an object holds
    nothing else, as most do, its values need not be decoded again.
    """
    if wire_format is not WireFormat.JSON:
        return _entries(body) == keys
    # Two quotes per string. A repeated or an unknown key adds two more.
    return body.count(b'"') == 2 * (keys + strings) or not _has_more_strings(body, _JSON_FIELDS(body))


def _has_more_strings(text: bytes, found: dict[str, Raw]) -> bool:
    """Return whether a JSON object has more strings than its entries, which belong to a repeated key."""
    if b"\\" in text:
        text = without_escapes(text)
    # Two quotes per string.
    hidden = text.count(b'"') - 2 * len(found)
    if hidden <= 0:
        return False
    # No value ends within a string, so the values can be searched joined together.
    return hidden > without_escapes(b"".join(found.values())).count(b'"')


def _entries(data: Data) -> int:
    header = bytes(memoryview(data)[:5])
    if header[0] < 0x90:
        return header[0] & 0x0F
    return int.from_bytes(header[1 : 3 if header[0] == 0xDE else 5], "big")


def is_nil(data: Raw, wire_format: WireFormat) -> bool:
    """Return whether a value is null."""
    null = b"null" if wire_format is WireFormat.JSON else b"\xc0"
    # Do not copy long values.
    return len(memoryview(data)) == len(null) and bytes(data) == null


_OBJECT = TypedDecoder(dict[str, Any])


def check_object(data: Raw, wire_format: WireFormat, most_levels: int, where: str) -> None:
    """Refuse a value that is no object, or that is nested more than `most_levels` deep."""
    _check_levels(bytes(data), wire_format, most_levels, where)
    _OBJECT.read(data, wire_format, where)


def check_stack(body: bytes, wire_format: WireFormat) -> None:
    """Refuse a body on which a parser could exhaust the stack of the thread."""
    # Each level takes at least one byte.
    if len(body) > _SAFE_LEVELS and sys.getrecursionlimit() > _SAFE_LEVELS:
        _check_levels(body, wire_format, _SAFE_LEVELS, "message")


def _check_levels(data: bytes, wire_format: WireFormat, most: int, where: str) -> None:
    levels = json_levels(data) if wire_format is WireFormat.JSON else msgpack_levels(data)
    if levels > most:
        raise BadMessageError(
            ErrorCode.TOO_LARGE, f"{where}: {levels} levels, expected at most {most}; flatten it"
        )


_AT = re.compile(r" - at (?P<key>`key` in )?`\$?(?P<path>[^`]*)`$")
_MISMATCH = re.compile(r"Expected `(?P<rule>[^`]*)`(?P<bound>[^,]*?)(?:, got `(?P<got>[^`]*)`|, got \d+)?$")
_MAX_CHARACTERS = 200


def explained(error: Exception, where: str) -> BadMessageError:
    """Return an error of a decoder as a sentence for the author of a client."""
    text = str(error)
    if isinstance(error, RecursionError):
        code, what = ErrorCode.TOO_LARGE, "nested more deeply than anything that is read; flatten it"
    elif isinstance(error, UnicodeDecodeError):
        code, what = ErrorCode.MALFORMED, "a text that is not UTF-8, expected UTF-8; encode it so"
    elif not isinstance(error, msgspec.ValidationError):
        code, what = ErrorCode.MALFORMED, f"{text:.{_MAX_CHARACTERS}}, expected one whole value"
    else:
        if (at := _AT.search(text)) is not None:
            where += f"{at['path']:.{_MAX_CHARACTERS}}{', a key' if at['key'] else ''}"
            text = text[: at.start()]
        code, what = _describe_mismatch(text)
    return BadMessageError(code, f"{where}: {what}")


def _describe_mismatch(text: str) -> tuple[ErrorCode, str]:
    if (mismatch := _MISMATCH.match(text)) is not None:
        rule, bound, got = mismatch["rule"], mismatch["bound"].strip(), mismatch["got"]
        if got or not bound:
            # In msgpack, msgspec calls null None.
            what = {"": "another type", "None": "null"}.get(got or "", got)
            return ErrorCode.WRONG_TYPE, f"got {what}, expected {rule.replace(' | ', ' or ')}"
        code = ErrorCode.WRONG_LENGTH if rule == "array" else ErrorCode.OUT_OF_RANGE
        what = "another length" if "length" in bound else "another number"
        if rule == "float":
            what = "NaN or a number too large for its type"
        return code, f"got {what}, expected {rule} {bound}"
    if text.startswith("Object missing"):
        what = f"field {_name(text)} is missing, expected all fields without a default"
        return ErrorCode.MALFORMED, what
    if text.startswith("Object contains"):
        return ErrorCode.WRONG_TYPE, f"unknown field {_name(text)}, expected the entries of the space only"
    if "out of range" in text:
        return ErrorCode.OUT_OF_RANGE, "a number out of range, expected one that a 64-bit number can hold"
    what = "another value than those allowed, expected one of the list in the documents"
    return ErrorCode.OUT_OF_RANGE, what


def _name(text: str) -> str:
    """Return the first name between backticks, at most 60 characters of it."""
    return repr(text.partition("`")[2].rpartition("`")[0][:60])


class BadValueError(Exception):
    """A decoded value is invalid; the caller adds where it was.

    Attributes:
        code: The `ErrorCode`.
        text: `<what was wrong>, expected <rule>`.
        row: Index of the value in a column, None for a single value or all of them.
        path: Place within the value, such as `['camera'][1]`.
    """

    def __init__(self, code: ErrorCode, text: str, row: int | None = None, path: str = "") -> None:
        super().__init__(text)
        self.code, self.text, self.row, self.path = code, text, row, path

    def in_message(self, where: str, is_column: bool = True) -> BadMessageError:
        """Return the error with its place; `is_column` says that several values were read."""
        row = "" if self.row is None or not is_column else f"[{self.row}]"
        return BadMessageError(self.code, f"{where}{row}{self.path}: {self.text}")


Array = npt.NDArray[Any]

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        name: np.dtype(name)
        for name in ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f4", "<f8")
    }
)
"""Dtypes of packed arrays: little-endian, by numpy's short names."""

_Size = Annotated[int, Meta(ge=0, le=2**32)]


class PackedArray(msgspec.Struct, frozen=True, gc=False):
    """An array in msgpack: `data` holds `shape` numbers of `dtype` in C order."""

    dtype: str
    shape: Annotated[list[_Size], Meta(max_length=32)]
    data: bytes


def unpacked(packed: PackedArray) -> Array:
    """Return the array, read-only and without a copy; raise `BadValueError` if dtype, shape and data do not fit."""
    dtype = DTYPES.get(packed.dtype)
    if dtype is None:
        raise BadValueError(
            ErrorCode.WRONG_TYPE, f"got another type of packed numbers, expected one of {', '.join(DTYPES)}"
        )
    expected = math.prod(packed.shape) * dtype.itemsize
    if len(packed.data) != expected:
        raise BadValueError(
            ErrorCode.WRONG_LENGTH,
            f"got {len(packed.data)} bytes of packed numbers, expected {expected} for their dtype and shape",
        )
    return np.frombuffer(packed.data, dtype).reshape(packed.shape)


def packed(array: Array) -> PackedArray:
    """Return an array as `PackedArray`; raise `KeyError` if its dtype is not in `DTYPES`."""
    dtype = DTYPES[array.dtype.newbyteorder("<").str]
    return PackedArray(dtype.str, list(array.shape), np.ascontiguousarray(array, dtype).tobytes())


def plain_array(value: Any) -> Any:
    """Encoder hook: return a numpy array or scalar as lists and numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(type(value).__name__)


def _packed_array(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.newbyteorder("<").str in DTYPES:
        return packed(value)
    return plain_array(value)


_JSON = msgspec.json.Encoder(enc_hook=plain_array)
_MSGPACK = msgspec.msgpack.Encoder(enc_hook=_packed_array)


def to_raw(value: Any, wire_format: WireFormat) -> Raw:
    """Return an observation, an action, an episode or a part of one, encoded; in msgpack arrays are packed."""
    return Raw(_JSON.encode(value) if wire_format is WireFormat.JSON else _MSGPACK.encode(value))


_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_TEXT = re.compile(rb'"[^"]*"?')
_OPENING = np.zeros(256, np.int8)
_OPENING[list(b"[{")] = 1
_OPENING[list(b"]}")] = -1


def without_escapes(body: bytes) -> bytes:
    """Return JSON without escaped backslashes and quotes, so that every quote left begins or ends a string."""
    if b"\\" not in body:
        return body
    # Pairs first: any remaining backslash then escapes the next character.
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def json_levels(body: bytes) -> int:
    """Return the nesting depth of a JSON value, without recursion; of malformed JSON an estimate."""
    brackets = _TEXT.sub(b"", without_escapes(body).translate(None, _NO_BRACKETS))
    if not brackets:
        return 0
    levels = np.cumsum(_OPENING[np.frombuffer(brackets, np.uint8)], dtype=np.int64)
    return max(0, int(levels.max()))


_FIXED = {
    **dict.fromkeys([0xC0, 0xC1, 0xC2, 0xC3], 0), 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Number of bytes that follow a first byte of fixed size."""
_SIZED = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
"""Bytes of the size field, and a constant added to the size: bytes, extensions and strings."""
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Bytes of the count field, and values per count: lists and maps."""


def msgpack_levels(body: bytes) -> int:
    """Return the nesting depth of a msgpack value, without recursion; of a truncated one up to its end."""
    at, deepest, end = 0, 0, len(body)
    # Missing values of each open list or map.
    open_: list[int] = [1]
    while open_ and at < end:
        open_[-1] -= 1
        first = body[at]
        at += 1
        count = -1
        if 0x80 <= first < 0xA0:
            count = (first & 0x0F) * (2 if first < 0x90 else 1)
        elif first in _COUNTED:
            size, values = _COUNTED[first]
            count = int.from_bytes(body[at : at + size], "big") * values
            at += size
        else:
            at += _bytes_after(first, body, at)
        if count >= 0:
            open_.append(count)
            deepest = max(deepest, len(open_) - 1)
        while open_ and open_[-1] == 0:
            open_.pop()
    return deepest


def _bytes_after(first: int, body: bytes, at: int) -> int:
    """Return how many bytes of a scalar follow its first byte."""
    if first < 0x80 or first >= 0xE0:
        return 0
    if 0xA0 <= first < 0xC0:
        return first & 0x1F
    if first in _SIZED:
        size, more = _SIZED[first]
        return size + more + int.from_bytes(body[at : at + size], "big")
    return _FIXED[first]
