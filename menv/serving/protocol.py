"""The messages of the protocol as types, their encoding as bodies, and frames on a stream of bytes.

Sessions decode requests and encode answers, clients the other way round. Observations, actions, rewards and episodes
stay undecoded (`Raw`) here; `value_readers` and `episodes` read them against the spaces. A `Raw` keeps the
whole body in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Raw

from menv.serving.codec import (
    MARK,
    BadMessageError,
    ErrorCode,
    TypedDecoder,
    WireFormat,
    check_object,
    check_stack,
    fields,
    is_nil,
    plain_array,
    wire_format_of,
)

Id = Annotated[str, Meta(min_length=1, max_length=256)]
"""Id of an episode, agent, policy or environment; bounded, because servers keep them in memory."""
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Number of steps, sequence number."""
Word = Annotated[str, Meta(max_length=4096)]
"""A string that is kept in memory: a token, the name of a client."""


EXTENSION = "menv-1"
"""The protocol extension that clients request in GET_CONFIG to use more than RLlink."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """Base of all messages. Fields with a default may be omitted or null.

    Not tracked by the garbage collector (`gc=False`): decoded messages contain no reference cycles.
    """


class Ping(Message, frozen=True, kw_only=True, tag="PING"):
    """Checks that the server is alive; answered with `Pong`."""


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
    """Requests the policies of some agents in an episode; answered with `Policies`.

    With `training_enabled=False` the server remembers nothing of the episode.
    """

    episode_id: Id
    agent_ids: list[Id]
    training_enabled: bool = True


class StartEpisode(Message, frozen=True, kw_only=True, tag="START_EPISODE"):
    """Starts an episode; answered with `EpisodeStarted`."""

    episode_id: Id | None = None
    training_enabled: bool = True
    seq: Count | None = None


class EpisodeMessage(Message, frozen=True, kw_only=True):
    """A message within an episode. The results of the last action may come with the next message.

    `reward` is a number, or an object of numbers by agent; so is `info` with objects. `done` names agents whose
    trajectories end.
    """

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
    """The weights of a sequence number, in the requested form.

    `ask_policies`: there are other policies than the single one of SET_CONFIG, so the client has to send
    GET_POLICIES.
    """

    weights_seq_no: int
    onnx_file: str | None = None
    bundles: dict[str, bytes] | None = None
    weights: dict[str, bytes] | None = None
    ask_policies: bool = False


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


def _by_type(union: Any) -> Mapping[str, TypedDecoder]:
    return MappingProxyType({kind.__struct_config__.tag: TypedDecoder(kind) for kind in get_args(union)})


_REQUESTS = _by_type(Request)
_ANSWERS = _by_type(Answer)
_FILLED = MappingProxyType(
    {
        tag: frozenset(
            field.name for field in msgspec.structs.fields(kind) if isinstance(field.default, bool | str)
        )
        for kind in get_args(Request) + get_args(Answer)
        if isinstance(tag := kind.__struct_config__.tag, str)
    }
)
"""Fields of each message that have a default but whose type does not allow null."""


def decode(body: bytes, max_depth: int = 32) -> tuple[Request, WireFormat]:
    """Return the request in a body, and its wire format.

    `max_depth` bounds the nesting of infos. An error has the `seq` of the message if that can be read.
    """
    wire_format = wire_format_of(body)
    body = body.removeprefix(MARK)
    check_stack(body, wire_format)
    found = fields(body, wire_format, "message")
    try:
        request = _message(body, wire_format, found, _REQUESTS)
        if isinstance(request, EpisodeMessage) and len(memoryview(request.info)):
            _check_info(request.info, wire_format, max_depth)
    except BadMessageError as error:
        error.seq = _seq_of(found, wire_format)
        raise
    return request, wire_format


def decode_answer(body: bytes) -> tuple[Answer, WireFormat]:
    """Return the answer in a body, and its wire format."""
    wire_format = wire_format_of(body)
    body = body.removeprefix(MARK)
    check_stack(body, wire_format)
    answer: Answer = _message(body, wire_format, fields(body, wire_format, "message"), _ANSWERS)
    return answer, wire_format


def encode(message: Request | Answer, wire_format: WireFormat) -> bytes:
    """Return a message as a body; numpy arrays and scalars become lists and numbers."""
    return encoder(wire_format)(message)


def encoder(wire_format: WireFormat) -> Callable[[Request | Answer], bytes]:
    """Return the function that encodes messages."""
    return _JSON.encode if wire_format is WireFormat.JSON else _MSGPACK.encode


def error_reply(error: BadMessageError, seq: int | None = None) -> Error:
    """Return the ERROR for a refused message; `seq` is its number if the error does not know it."""
    return Error(code=error.code, message=error.text, seq=error.seq if seq is None else seq)


_JSON = msgspec.json.Encoder(enc_hook=plain_array)
_MSGPACK = msgspec.msgpack.Encoder(enc_hook=plain_array)


def _message(
    body: bytes, wire_format: WireFormat, found: Mapping[str, Raw], known: Mapping[str, TypedDecoder]
) -> Any:
    if "type" not in found:
        raise BadMessageError(
            ErrorCode.MALFORMED, f"message: no field 'type', expected one of {', '.join(known)}"
        )
    name: str = _NAME.read(found["type"], wire_format, "message.type")
    typed = known.get(name)
    if typed is None:
        raise _unknown(name, known)
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


def _unknown(name: str, known: Mapping[str, TypedDecoder]) -> BadMessageError:
    if known is _REQUESTS and name in _ANSWERS:
        return BadMessageError(
            ErrorCode.UNKNOWN_TYPE,
            f"message: {name} is what a server sends, expected one of {', '.join(known)}",
        )
    return BadMessageError(
        ErrorCode.UNKNOWN_TYPE, f"message: type {name[:40]!r} is unknown, expected one of {', '.join(known)}"
    )


def _check_info(info: Raw, wire_format: WireFormat, max_depth: int) -> None:
    if (size := len(memoryview(info))) > MOST_INFO_BYTES:
        raise BadMessageError(
            ErrorCode.TOO_LARGE, f"info: {size} bytes, expected at most {MOST_INFO_BYTES}; send less"
        )
    if not is_nil(info, wire_format):
        check_object(info, wire_format, max_depth, "info")


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
"""Headers of short bodies, which nearly all are."""


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

    Headers are checked from their first byte on, so a peer with another protocol is recognised at once.

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
