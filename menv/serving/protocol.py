"""The messages of the protocol as types, their encoding as JSON bodies, and frames on a stream of bytes.

Sessions decode requests and encode answers, clients the other way round. Observations, actions, rewards and episodes
stay undecoded (`Raw`) here; `value_readers` and `episodes` read them against the spaces. A `Raw` keeps the whole body
in memory. Types bound what a message may hold. Errors are sentences for authors of clients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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

_MARK = b"\xef\xbb\xbf"
"""A byte order mark, which some programs write before UTF-8."""


class TypedDecoder:
    """Decodes one type."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._lax = msgspec.json.Decoder(kind, strict=False)

    def read(self, data: Data, where: str) -> Any:
        """Return the decoded value, or raise `BadMessageError`, whose text begins with `where`."""
        try:
            try:
                return self._decoder.decode(data)
            except msgspec.ValidationError as error:
                # Some languages write all numbers as floats.
                if "got `float`" not in str(error):
                    raise
                return self._lax.decode(data)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise explained(error, where) from None


_AT = re.compile(r" - at (?:`key` in )?`\$?([^`]*)`$")
_ONLY_TYPE = re.compile("Expected `[^`]*`")
_MAX_CHARACTERS = 200
_CODES = (
    ("Invalid", ErrorCode.OUT_OF_RANGE),
    ("out of range", ErrorCode.OUT_OF_RANGE),
    ("missing required", ErrorCode.MALFORMED),
    ("Expected `array` of", ErrorCode.WRONG_LENGTH),
    (", got `", ErrorCode.WRONG_TYPE),
    ("unknown field", ErrorCode.WRONG_TYPE),
    ("Expected", ErrorCode.OUT_OF_RANGE),
)
"""Codes by a part of msgspec's sentence; the first that fits."""


def explained(error: Exception, where: str) -> BadMessageError:
    """Return an error of a decoder as a sentence for the author of a client."""
    text = str(error)
    if isinstance(error, RecursionError):
        return BadMessageError(ErrorCode.TOO_LARGE, f"{where}: nested too deeply, expected less; flatten it")
    if not isinstance(error, msgspec.ValidationError):
        return BadMessageError(
            ErrorCode.MALFORMED, f"{where}: {text:.{_MAX_CHARACTERS}}, expected JSON in UTF-8"
        )
    if (at := _AT.search(text)) is not None:
        where, text = f"{where}{at[1]:.{_MAX_CHARACTERS}}", text[: at.start()]
    code = next((code for part, code in _CODES if part in text), ErrorCode.OUT_OF_RANGE)
    if _ONLY_TYPE.fullmatch(text):
        code = ErrorCode.WRONG_TYPE
    elif text.startswith("Invalid"):
        # It quotes the value.
        text = "another value than those allowed, expected one of the list in docs/reference/rllink.md"
    elif not text.startswith("Expected"):
        text += ", expected what docs/reference/rllink.md says"
    return BadMessageError(code, f"{where}: {text[:1].lower()}{text[1:][:_MAX_CHARACTERS]}")


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
    """An array: `data`, in base64, holds `shape` numbers of `dtype` in C order."""

    dtype: str
    shape: Annotated[list[_Size], Meta(max_length=32)]
    data: bytes


def plain_array(value: Any) -> Any:
    """Encoder hook: return a numpy array or scalar as lists and numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(type(value).__name__)


def packed_array(value: Any) -> Any:
    """Encoder hook: return an array as `PackedArray`, and numpy's scalars as numbers."""
    if isinstance(value, np.ndarray) and value.ndim:
        dtype = DTYPES.get(value.dtype.newbyteorder("<").str)
        if dtype is not None:
            data = np.ascontiguousarray(value, dtype).tobytes()
            return PackedArray(dtype.str, list(value.shape), data)
    return plain_array(value)


_PACKING = msgspec.json.Encoder(enc_hook=packed_array)


def to_raw(value: Any) -> Raw:
    """Return an observation, an action, an episode or a part of one, encoded, with packed arrays."""
    return Raw(_PACKING.encode(value))


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
    """Requests weights in one of three forms, "onnx" if it names none; answered with `SetState`."""

    policy_ids: list[Id] | None = None
    form: Literal["onnx", "bundle", "weights"] | None = None
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
    form: Literal["onnx", "bundle", "weights"] | None = None
    have: Count | None = None


class GetPolicies(Message, frozen=True, kw_only=True, tag="GET_POLICIES"):
    """Requests the policies of some agents in an episode; answered with `Policies`."""

    episode_id: Id
    agent_ids: list[Id]
    training_enabled: bool | None = None


class StartEpisode(Message, frozen=True, kw_only=True, tag="START_EPISODE"):
    """Starts an episode; answered with `EpisodeStarted`."""

    episode_id: Id | None = None
    training_enabled: bool | None = None
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
    wait: bool | None = None


class LogReturns(EpisodeMessage, frozen=True, kw_only=True, tag="LOG_RETURNS"):
    """Reports a reward alone; answered with `Ok`."""


class EndEpisode(EpisodeMessage, frozen=True, kw_only=True, tag="END_EPISODE"):
    """Ends an episode with its last observation; answered with `Ok`."""

    observation: Raw
    truncated: bool | None = None


EpisodeRequest = GetAction | LogAction | LogReturns | EndEpisode


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
    Ping | GetConfig | GetState | Episodes | EpisodesAndGetState | GetPolicies | StartEpisode | EpisodeRequest
)
Answer = Pong | SetConfig | SetState | Policies | EpisodeStarted | Action | Ok | Error


class _Head(msgspec.Struct):
    """The fields of a message that cannot be read that its answer repeats."""

    type: str | None = None
    seq: Count | None = None


_REQUEST = TypedDecoder(Request)
_ANSWER = TypedDecoder(Answer)
_HEAD = TypedDecoder(_Head)
REQUEST_NAMES = [kind.__struct_config__.tag for kind in get_args(Request)]


def decode(body: bytes) -> Request:
    """Return the request in a body. An error has the `seq` of the message if that can be read."""
    try:
        request: Request = _REQUEST.read(body.removeprefix(_MARK), "message")
    except BadMessageError as error:
        raise _about(body, error) from None
    return request


def _about(body: bytes, error: BadMessageError) -> BadMessageError:
    """Return an error with the type and the number of the message."""
    try:
        head: _Head = _HEAD.read(body.removeprefix(_MARK), "message")
    except BadMessageError:
        return error
    if head.type is None or head.type not in REQUEST_NAMES:
        code = ErrorCode.MALFORMED if head.type is None else ErrorCode.UNKNOWN_TYPE
        text = f"message: type {str(head.type)[:40]!r}, expected one of {', '.join(REQUEST_NAMES)}"
        return BadMessageError(code, text, head.seq)
    return BadMessageError(error.code, head.type + error.text.removeprefix("message"), head.seq)


def decode_answer(body: bytes) -> Answer:
    """Return the answer in a body."""
    answer: Answer = _ANSWER.read(body, "message")
    return answer


_JSON = msgspec.json.Encoder(enc_hook=plain_array)


def encode(message: Request | Answer) -> bytes:
    """Return a message as a body; numpy arrays and scalars become lists and numbers."""
    return _JSON.encode(message)


HEADER_BYTES = 8
MOST_BODY_BYTES: int = 10**HEADER_BYTES - 1


def frame(body: bytes) -> bytes:
    """Return a body with its header: eight ASCII digits."""
    size = len(body)
    if size > MOST_BODY_BYTES:
        raise BadMessageError(
            ErrorCode.TOO_LARGE,
            f"frame: a body of {size} bytes, expected at most {MOST_BODY_BYTES}; send it in several messages",
        )
    return b"%08d%b" % (size, body)


def body_bytes(header: bytes | bytearray, most: int) -> int:
    """Return how many bytes the body behind a header has; refuse other bytes than digits, and more than `most`."""
    if not header.isdigit():
        raise BadMessageError(
            ErrorCode.BAD_FRAME,
            "frame: the header holds other bytes than digits, expected the length of the body in 8 ASCII digits; "
            "count bytes, not characters, and check that this is the port for TCP",
        )
    size = int(header)
    if size > most:
        raise BadMessageError(
            ErrorCode.TOO_LARGE,
            f"frame: a body of {size} bytes, expected at most {most}; send episodes in several "
            "messages, or raise Limits.max_body on the server",
        )
    return size
