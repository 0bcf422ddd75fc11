"""JSON and msgpack: which of them a body is, and decoding either into declared types.

`menv.serving.wire.messages` and the readers of values and episodes decode with it. It knows no message. Nesting is
bounded while a body is decoded: into declared types, which end somewhere, and msgspec itself gives up at the depth of
the interpreter's own recursion limit, also in what it skips.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
from msgspec import Raw

from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.nesting import json_levels, msgpack_levels, without_escapes

Data = bytes | Raw

_SAFE_LEVELS = 5000
"""What fits half a megabyte of stack, the least that a thread of any common system has, where values are skipped."""
_JSON_STARTS = frozenset(b"{ \t\n\r")
_MSGPACK_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
MARK = b"\xef\xbb\xbf"
"""What some programs write in front of UTF-8, a byte order mark."""
_TEXTS = re.compile(rb'("(?:[^"\\]|\\.)*")', re.DOTALL)
_POWERS = re.compile(rb"-?\d+(?:\.\d+)?[eE][+-]?\d+")
_ZEROS = re.compile(rb"(?<=\d)\.0+(?![\deE])")
_MOST_DIGITS = 20
"""Of an integer that a dtype holds."""


class Dialect(enum.Enum):
    """How a body is written. An answer is written like the question."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"


def dialect_of(body: bytes) -> Dialect:
    """Return what a body is, by its first byte.

    Raises:
        BadMessageError: It begins neither a JSON object nor a msgpack map.
    """
    first = body[0] if body else -1
    if first in _JSON_STARTS or body.startswith(MARK):
        return Dialect.JSON
    if first in _MSGPACK_MAPS:
        return Dialect.MSGPACK
    what = f"first byte 0x{first:02x}" if body else "0 bytes"
    raise BadMessageError(
        Code.MALFORMED, f"body: {what}, expected an object in JSON or a map in msgpack; write one of the two"
    )


class Typed:
    """Decodes one type from both dialects.

    Args:
        kind: A type that msgspec knows.
        msgpack_kind: The type in msgpack, where it differs.
    """

    def __init__(self, kind: Any, msgpack_kind: Any = None) -> None:
        self._json: Callable[[Data], Any] = msgspec.json.Decoder(kind).decode
        self._msgpack: Callable[[Data], Any] = msgspec.msgpack.Decoder(msgpack_kind or kind).decode

    def read(self, data: Data, dialect: Dialect, where: str) -> Any:
        """Return the value.

        Args:
            data: All of it, and nothing else.
            dialect: How it is written.
            where: Begins the message of an error.

        Raises:
            BadMessageError: It is not written well, or is of another type.
        """
        decode = self._json if dialect is Dialect.JSON else self._msgpack
        try:
            try:
                return decode(data)
            except msgspec.ValidationError as error:
                # Many languages write all numbers as floats.
                if "got `float`" not in str(error):
                    raise
                return decode(_whole_numbers(data, dialect))
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise explained(error, where) from None


def _whole_numbers(data: Data, dialect: Dialect) -> bytes:
    """Return a value with its whole numbers written as integers: 1.0 and 1e0 as 1, and 1.5 as it is."""
    if dialect is Dialect.MSGPACK:
        return msgspec.msgpack.encode(_whole(msgspec.msgpack.decode(data)))
    parts = _TEXTS.split(bytes(data))
    parts[::2] = [_ZEROS.sub(b"", _POWERS.sub(_without_power, part)) for part in parts[::2]]
    return b"".join(parts)


def _without_power(found: re.Match[bytes]) -> bytes:
    try:
        number = Decimal(found[0].decode())
    except InvalidOperation:  # Its power has more digits than Decimal counts.
        return found[0]
    whole = number.adjusted() < _MOST_DIGITS and number == number.to_integral_value()
    return b"%d" % number if whole else found[0]


def _whole(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2.0**64 else value
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return {key: _whole(one) for key, one in value.items()} if isinstance(value, dict) else value


_FIELDS = Typed(dict[str, Raw])
_JSON_FIELDS: Callable[[bytes], dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw]).decode


def fields(data: Data, dialect: Dialect, where: str) -> dict[str, Raw]:
    """Return the entries of an object, their values not decoded.

    Raises:
        BadMessageError: It is no object, or has a key twice.
    """
    found: dict[str, Raw] = _FIELDS.read(data, dialect, where)
    in_json = dialect is Dialect.JSON
    if _has_more_strings(bytes(data), found) if in_json else _entries(data) != len(found):
        raise BadMessageError(Code.DUPLICATE_KEY, f"{where}: a key is there twice, expected each key once")
    return found


def listed(values: Sequence[Data], dialect: Dialect) -> bytes:
    """Return whole values as a list of them."""
    if dialect is Dialect.JSON:
        return b"[%b]" % b",".join(values)
    return b"\xdd%b%b" % (len(values).to_bytes(4, "big"), b"".join(values))


def check_keys(data: Data, dialect: Dialect, where: str, keys: int, strings: int) -> None:
    """Refuse an object that has a key twice, after it was decoded into declared fields.

    Args:
        data: The object.
        dialect: How it is written.
        where: Begins the message of an error.
        keys: How many of its keys are known.
        strings: How many strings their values hold. Where keys and strings are all that there is, as in most
            objects, the values need not be looked at.

    Raises:
        BadMessageError: It has.
    """
    # In JSON two quotes each; a key that is there twice has two more, and so has one that is not known.
    in_json = dialect is Dialect.JSON
    all_known = bytes(data).count(b'"') == 2 * (keys + strings) if in_json else _entries(data) == keys
    if not all_known:
        fields(data, dialect, where)


def is_plain(body: bytes, dialect: Dialect, keys: int, strings: int) -> bool:
    """Return whether an object surely has each key once, after it was decoded; the arguments are those of `check_keys`.

    Where it says no, that has to be found out.

    Raises:
        msgspec.MsgspecError: It is not written well.
    """
    if dialect is not Dialect.JSON:
        return _entries(body) == keys
    quotes = body.count(b'"')
    if quotes == 2 * (keys + strings):
        return True
    found = _JSON_FIELDS(body)
    # What is beyond the keys are quotes in values, or a key that is there twice, or one with quotes in it.
    return quotes == 2 * len(found) + b"".join(found.values()).count(b'"')


def _has_more_strings(text: bytes, found: dict[str, Raw]) -> bool:
    """Return whether a JSON object has more strings than its entries: those of an entry that was lost."""
    if b"\\" in text:
        text = without_escapes(text)
    # Two quotes begin and end a text.
    hidden = text.count(b'"') - 2 * len(found)
    if hidden <= 0:
        return False
    # No value ends within a text, so that one look at all of them sees what one at each would.
    return hidden > without_escapes(b"".join(found.values())).count(b'"')


def _entries(data: Data) -> int:
    header = bytes(memoryview(data)[:5])
    if header[0] < 0x90:
        return header[0] & 0x0F
    return int.from_bytes(header[1 : 3 if header[0] == 0xDE else 5], "big")


def is_nil(data: Raw, dialect: Dialect) -> bool:
    """Return whether a value is null."""
    null = b"null" if dialect is Dialect.JSON else b"\xc0"
    # A long one is not copied.
    return len(memoryview(data)) == len(null) and bytes(data) == null


_OBJECT = Typed(dict[str, Any])


def check_object(data: Raw, dialect: Dialect, most_levels: int, where: str) -> None:
    """Refuse what is no object, or is nested more than `most_levels`; its content is free.

    Raises:
        BadMessageError: It is one of the two.
    """
    _check_levels(bytes(data), dialect, most_levels, where)
    _OBJECT.read(data, dialect, where)


def check_stack(body: bytes, dialect: Dialect) -> None:
    """Refuse a body on which a parser would run out of stack before it came to the recursion limit.

    Raises:
        BadMessageError: It is one.
    """
    # As many levels take as many bytes at least.
    if len(body) > _SAFE_LEVELS and sys.getrecursionlimit() > _SAFE_LEVELS:
        _check_levels(body, dialect, _SAFE_LEVELS, "message")


def _check_levels(data: bytes, dialect: Dialect, most: int, where: str) -> None:
    levels = json_levels(data) if dialect is Dialect.JSON else msgpack_levels(data)
    if levels > most:
        raise BadMessageError(Code.TOO_DEEP, f"{where}: {levels} levels, expected at most {most}; flatten it")


_AT = re.compile(r" - at (?P<key>`key` in )?`\$?(?P<path>[^`]*)`$")
_MISMATCH = re.compile(r"Expected `(?P<rule>[^`]*)`(?P<bound>[^,]*?)(?:, got `(?P<got>[^`]*)`|, got \d+)?$")
_MOST_CHARACTERS = 200


def explained(error: Exception, where: str) -> BadMessageError:
    """Return what a decoder raised as a sentence for the author of a client."""
    if isinstance(error, RecursionError):
        return BadMessageError(
            Code.TOO_DEEP, f"{where}: nested more deeply than anything that is read; flatten it"
        )
    if isinstance(error, UnicodeDecodeError):
        return BadMessageError(
            Code.MALFORMED, f"{where}: a text that is not UTF-8, expected UTF-8; encode it so"
        )
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return BadMessageError(
            Code.MALFORMED, f"{where}: {text:.{_MOST_CHARACTERS}}, expected one whole value"
        )
    path = ""
    if (at := _AT.search(text)) is not None:
        path, text = f"{at['path']:.{_MOST_CHARACTERS}}{', a key' if at['key'] else ''}", text[: at.start()]
    return BadMessageError(*_of_a_value(text, f"{where}{path}"))


def _of_a_value(text: str, where: str) -> tuple[Code, str]:
    if (mismatch := _MISMATCH.match(text)) is not None:
        rule, bound, got = mismatch["rule"], mismatch["bound"].strip(), mismatch["got"]
        if got or not bound:
            # msgspec calls null by another name in msgpack.
            what = {"": "another type", "None": "null"}.get(got or "", got)
            return Code.WRONG_TYPE, f"{where}: got {what}, expected {rule.replace(' | ', ' or ')}"
        if rule == "float":
            return (
                Code.NOT_FINITE,
                f"{where}: got NaN or a number too large for its type, expected float {bound}",
            )
        code = Code.WRONG_LENGTH if rule == "array" else Code.OUT_OF_RANGE
        return (
            code,
            f"{where}: got another {'length' if 'length' in bound else 'number'}, expected {rule} {bound}",
        )
    if text.startswith("Object missing"):
        return (
            Code.MISSING_FIELD,
            f"{where}: field {_name(text)} is missing, expected all fields without a default",
        )
    if text.startswith("Object contains"):
        return (
            Code.WRONG_TYPE,
            f"{where}: unknown field {_name(text)}, expected the entries of the space only",
        )
    if "out of range" in text:
        return (
            Code.OUT_OF_RANGE,
            f"{where}: a number out of range, expected one that a 64-bit number can hold",
        )
    return (
        Code.OUT_OF_RANGE,
        f"{where}: another value than those allowed, expected one of the list in the documents",
    )


def _name(text: str) -> str:
    """Return the first name between backticks, at most 60 characters of it."""
    return repr(text.partition("`")[2].rpartition("`")[0][:60])
