"""The messages of the protocol as types, their encoding as bodies, and frames on a stream of bytes.

Sessions decode requests and encode answers, clients the other way round. Observations, actions, rewards and episodes
stay undecoded (`Raw`) here; `value_readers` and `episodes` read them against the spaces. A `Raw` keeps the whole body
in memory. Types bound what a message may hold, and the nesting of bodies is checked before msgspec, which is
recursive, sees them. Errors are sentences for authors of clients.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

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
        text: `<where>: <what was wrong>, expected <rule>`, for the author of the client; never the payload.
        seq: The sequence number of the message, if it could be read.
    """

    def __init__(self, code: str, text: str, seq: int | None = None) -> None:
        super().__init__(f"{code}: {text}")
        self.code = ErrorCode(code)
        self.text = text
        self.seq = seq


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
    return body.count(b'"') == 2 * (keys + strings) or not _has_more_strings(
        body, _FIELDS.read(body, wire_format, "message")
    )


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


_PACKING = msgspec.msgpack.Encoder(enc_hook=_packed_array)


def to_raw(value: Any, wire_format: WireFormat) -> Raw:
    """Return an observation, an action, an episode or a part of one, encoded; in msgpack arrays are packed."""
    return Raw(_JSON.encode(value) if wire_format is WireFormat.JSON else _PACKING.encode(value))


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


Id = Annotated[str, Meta(min_length=1, max_length=256)]
"""Id of an episode, agent, policy or environment; bounded, because servers keep them in memory."""
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Number of steps, sequence number."""
Word = Annotated[str, Meta(max_length=4096)]


EXTENSION = "menv-1"


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """Base of all messages. Fields with a default may be omitted or null."""


class Ping(Message, frozen=True, kw_only=True, tag="PING"):
    """Answered with `Pong`."""


class GetConfig(Message, frozen=True, kw_only=True, tag="GET_CONFIG"):
    """The first message; answered with `SetConfig`. `extensions` requests more than RLlink, `session` resumes one."""

    token: Word | None = None
    extensions: list[Word] | None = None
    session: Id | None = None
    client: Word | None = None

    def __repr__(self) -> str:
        """Hide the token and the session."""
        return f"GetConfig(client={self.client!r}, extensions={self.extensions!r})"


class GetState(Message, frozen=True, kw_only=True, tag="GET_STATE"):
    """Requests weights in one of three forms; answered with `SetState`."""

    policy_ids: list[Id] | None = None
    form: Literal["onnx", "bundle", "weights"] = "onnx"
    have: Count | None = None


class Episodes(Message, frozen=True, kw_only=True, tag="EPISODES"):
    """Brings episodes of a client with local inference, and names episodes that it has given up. Not answered."""

    episodes: list[Raw]
    lost: list[Id] | None = None
    env_steps: Count | None = None
    timesteps: Count | None = None
    weights_seq_no: Count | None = None


class EpisodesAndGetState(Episodes, frozen=True, kw_only=True, tag="EPISODES_AND_GET_STATE"):
    """Brings episodes and waits for the next weights; answered with `SetState`."""

    policy_ids: list[Id] | None = None
    form: Literal["onnx", "bundle", "weights"] = "onnx"
    have: Count | None = None


class GetPolicies(Message, frozen=True, kw_only=True, tag="GET_POLICIES"):
    """Requests the policies of some agents in an episode; answered with `Policies`."""

    episode_id: Id
    agent_ids: list[Id]
    training_enabled: bool = True


class StartEpisode(Message, frozen=True, kw_only=True, tag="START_EPISODE"):
    """Starts an episode; answered with `EpisodeStarted`."""

    episode_id: Id | None = None
    training_enabled: bool = True
    seq: Count | None = None


class EpisodeMessage(Message, frozen=True, kw_only=True):
    """A message within an episode; `reward`, `info` and `done`, by agent, belong to the action before."""

    episode_id: Id
    reward: Raw = Raw()
    info: Raw = Raw()
    done: dict[Id, bool] | None = None
    seq: Count | None = None


class GetAction(EpisodeMessage, frozen=True, kw_only=True, tag="GET_ACTION"):
    """Requests an action; answered with `Action`."""

    observation: Raw


class LogAction(EpisodeMessage, frozen=True, kw_only=True, tag="LOG_ACTION"):
    """Reports an action that the client chose; answered with `Ok`, with `wait` after the sampler has it."""

    observation: Raw
    action: Raw
    wait: bool = False


class LogReturns(EpisodeMessage, frozen=True, kw_only=True, tag="LOG_RETURNS"):
    """Reports a reward alone; answered with `Ok`."""


class EndEpisode(EpisodeMessage, frozen=True, kw_only=True, tag="END_EPISODE"):
    """Ends an episode with its last observation; answered with `Ok`."""

    observation: Raw
    truncated: bool = False


class Pong(Message, frozen=True, kw_only=True, tag="PONG"):
    """Answers `Ping`."""


class SetConfig(Message, frozen=True, kw_only=True, tag="SET_CONFIG"):
    """Settings of the server; all but the first two fields only for clients that requested the extension."""

    env_steps_per_sample: int
    force_on_policy: bool
    extensions: list[str] | None = None
    session: str | None = None
    multi_agent: bool | None = None
    observation_space: dict[str, Any] | None = None
    action_space: dict[str, Any] | None = None
    action_spaces: dict[str, dict[str, Any]] | None = None
    policies: dict[str, dict[str, Any]] | None = None
    explore: bool | None = None
    resume: dict[str, Any] | None = None


class SetState(Message, frozen=True, kw_only=True, tag="SET_STATE"):
    """The weights of a sequence number, in the requested form."""

    weights_seq_no: int
    onnx_file: str | None = None
    bundles: dict[str, bytes] | None = None
    weights: dict[str, bytes] | None = None
    ask_policies: bool | None = False


class Policies(Message, frozen=True, kw_only=True, tag="POLICIES"):
    """The policy of each agent."""

    policy_ids: dict[str, str]


class EpisodeStarted(Message, frozen=True, kw_only=True, tag="EPISODE"):
    """The id of a new episode."""

    episode_id: str
    seq: int | None = None


class Action(Message, frozen=True, kw_only=True, tag="ACTION"):
    """The actions, and the weights that chose them."""

    episode_id: str
    action: Any
    weights_seq_no: int
    seq: int | None = None


class Ok(Message, frozen=True, kw_only=True, tag="OK"):
    """The request was handled."""

    seq: int | None = None


class Error(Message, frozen=True, kw_only=True, tag="ERROR"):
    """The request was refused: one of the closed list of codes, and a sentence for people."""

    code: str
    message: str
    seq: int | None = None


Request = (
    Ping | GetConfig | GetState | Episodes | EpisodesAndGetState | GetPolicies | StartEpisode | GetAction
    | LogAction | LogReturns | EndEpisode
)  # fmt: skip
Answer = Pong | SetConfig | SetState | Policies | EpisodeStarted | Action | Ok | Error

MOST_INFO_BYTES = 65_536
"""Most bytes of one `info`, which no space bounds."""


class _Flags(msgspec.Struct, gc=False):
    """Fields of every episode."""

    is_terminated: bool
    is_truncated: bool


_NAME = TypedDecoder(str)
_SEQ = TypedDecoder(Count | None)
_FLAGS = TypedDecoder(list[_Flags])
_WITH_EPISODES = ("EPISODES", "EPISODES_AND_GET_STATE")
_LARGE = 1 << 16


_REQUESTS: dict[str, TypedDecoder] = {
    kind.__struct_config__.tag: TypedDecoder(kind) for kind in get_args(Request)
}
_ANSWER = TypedDecoder(Answer)
_FILLED: dict[str, frozenset[str]] = {
    kind.__struct_config__.tag: frozenset(
        field.name for field in msgspec.structs.fields(kind) if isinstance(field.default, bool | str)
    )
    for kind in get_args(Request)
}
"""Fields of each request that have a default but whose type does not allow null."""


def decode(body: bytes, max_depth: int = 32) -> tuple[Request, WireFormat]:
    """Return the request in a body, and its wire format.

    `max_depth` bounds the nesting of infos. An error has the `seq` of the message if that can be read.
    """
    wire_format = wire_format_of(body)
    body = body.removeprefix(MARK)
    check_stack(body, wire_format)
    found = fields(body, wire_format, "message")
    try:
        request = _request(body, wire_format, found)
        if isinstance(request, EpisodeMessage) and len(memoryview(request.info)):
            _check_info(request.info, wire_format, max_depth)
    except BadMessageError as error:
        error.seq = _seq_of(found, wire_format)
        raise
    return request, wire_format


def decode_answer(body: bytes) -> Answer:
    """Return the answer in a body."""
    wire_format = wire_format_of(body)
    check_stack(body, wire_format)
    answer: Answer = _ANSWER.read(body.removeprefix(MARK), wire_format, "message")
    return answer


def encode(message: Request | Answer, wire_format: WireFormat) -> bytes:
    """Return a message as a body; numpy arrays and scalars become lists and numbers."""
    return encoder(wire_format)(message)


def encoder(wire_format: WireFormat) -> Callable[[Request | Answer], bytes]:
    """Return the function that encodes messages."""
    return (_JSON if wire_format is WireFormat.JSON else _MSGPACK).encode


def error_reply(error: BadMessageError, seq: int | None = None) -> Error:
    """Return the ERROR for a refused message; `seq` is its number if the error does not know it."""
    return Error(code=error.code, message=error.text, seq=error.seq if seq is None else seq)


_JSON = msgspec.json.Encoder(enc_hook=plain_array)
_MSGPACK = msgspec.msgpack.Encoder(enc_hook=plain_array)


def _request(body: bytes, wire_format: WireFormat, found: Mapping[str, Raw]) -> Any:
    if "type" not in found:
        raise BadMessageError(
            ErrorCode.MALFORMED, f"message: no field 'type', expected one of {', '.join(_REQUESTS)}"
        )
    name: str = _NAME.read(found["type"], wire_format, "message.type")
    typed = _REQUESTS.get(name)
    if typed is None:
        raise BadMessageError(
            ErrorCode.UNKNOWN_TYPE,
            f"message: type {name[:40]!r} is unknown, expected one of {', '.join(_REQUESTS)}",
        )
    if name in _WITH_EPISODES and "episodes" in found and len(body) > _LARGE:
        # Refuse a body of millions of tiny elements before an object is created for each.
        _FLAGS.read(found["episodes"], wire_format, f"{name}.episodes")
    message = typed.read(_without_nulls(body, wire_format, found, name), wire_format, name)
    if getattr(message, "done", None):
        # Finds repeated agents.
        fields(found["done"], wire_format, f"{name}.done")
    return message


def _without_nulls(body: bytes, wire_format: WireFormat, found: Mapping[str, Raw], name: str) -> bytes:
    """Return a message without nulls that stand for a default; the body itself if there are none."""
    nulls = {key for key in _FILLED[name] & found.keys() if is_nil(found[key], wire_format)}
    if not nulls:
        return body
    there = {key: value for key, value in found.items() if key not in nulls}
    return msgspec.json.encode(there) if wire_format is WireFormat.JSON else msgspec.msgpack.encode(there)


def _check_info(info: Raw, wire_format: WireFormat, max_depth: int) -> None:
    if (size := len(memoryview(info))) > MOST_INFO_BYTES:
        raise BadMessageError(
            ErrorCode.TOO_LARGE, f"info: {size} bytes, expected at most {MOST_INFO_BYTES}; send less"
        )
    if not is_nil(info, wire_format):
        _check_levels(bytes(info), wire_format, max_depth, "info")
        _OBJECT.read(info, wire_format, "info")


def _seq_of(found: Mapping[str, Raw], wire_format: WireFormat) -> int | None:
    try:
        seq: int | None = _SEQ.read(found["seq"], wire_format, "seq") if "seq" in found else None
    except BadMessageError:
        return None
    return seq


HEADER_BYTES = 8
MOST_BODY_BYTES: int = 10**HEADER_BYTES - 1
FEW = 1024
HEADERS = tuple(b"%08d" % size for size in range(FEW))


def frame(body: bytes) -> bytes:
    """Return a body with its header: eight ASCII digits."""
    size = len(body)
    if size > MOST_BODY_BYTES:
        raise BadMessageError(
            ErrorCode.TOO_LARGE,
            f"frame: a body of {size} bytes, expected at most {MOST_BODY_BYTES}; send it in several messages",
        )
    return (HEADERS[size] if size < FEW else b"%08d" % size) + body


class Frames:
    """Splits a stream of bytes into bodies; every byte is copied at most twice.

    Attributes:
        completed: Bodies that were complete before `feed` raised.
    """

    def __init__(self, max_body: int) -> None:
        self.completed: list[bytes] = []
        self._max_body = min(max_body, MOST_BODY_BYTES)
        # The incomplete frame between two calls of `feed`.
        self._rest = bytearray()
        self._size = -1
        self._broken: BadMessageError | None = None

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame, including its header."""
        return len(self._rest)

    @property
    def expected(self) -> int:
        """Bytes of the incomplete frame's body; -1 if its header has not come."""
        return self._size

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Add bytes and return the completed bodies. After an error, every later call raises again."""
        if self._broken is not None:
            raise BadMessageError(self._broken.code, self._broken.text)
        self._rest += data
        self.completed = []
        try:
            self._take()
        except BadMessageError as error:
            self._broken = error
            self._rest.clear()
            raise
        bodies, self.completed = self.completed, []
        return bodies

    def _take(self) -> None:
        rest, begin = self._rest, 0
        while len(rest) - begin >= HEADER_BYTES:
            first = begin + HEADER_BYTES
            if self._size < 0:
                self._size = self._read_header(bytes(rest[begin:first]))
            if len(rest) < first + self._size:
                break
            begin = first + self._size
            with memoryview(rest) as view:
                self.completed.append(bytes(view[first:begin]))
            self._size = -1
        # Deleting the front of a bytearray does not move the rest.
        del rest[:begin]
        if len(rest) < HEADER_BYTES:
            self._check_digits(bytes(rest))

    def _read_header(self, header: bytes) -> int:
        self._check_digits(header)
        size = int(header)
        if size > self._max_body:
            raise BadMessageError(
                ErrorCode.TOO_LARGE,
                f"frame: a body of {size} bytes, expected at most {self._max_body}; send episodes in several "
                "messages, or raise Limits.max_body on the server",
            )
        return size

    @staticmethod
    def _check_digits(header: bytes) -> None:
        if header and not header.isdigit():
            raise BadMessageError(
                ErrorCode.BAD_FRAME,
                "frame: the header holds other bytes than digits, expected the length of the body in 8 ASCII digits; "
                "count bytes, not characters, and check that this is the port for TCP",
            )
