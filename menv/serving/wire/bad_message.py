"""What can be wrong with something that a peer sent: one exception, and the closed list of its codes.

Whoever reads from peers raises it, sessions answer it with an ERROR. It knows no transports and no messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from menv.errors import MenvError


class Code(StrEnum):
    """What kind of thing is wrong, for machines. `MEANINGS` says what each one means."""

    BAD_FRAME = "bad_frame"
    TOO_LARGE = "too_large"
    TOO_DEEP = "too_deep"
    MALFORMED = "malformed"
    DUPLICATE_KEY = "duplicate_key"
    UNKNOWN_TYPE = "unknown_type"
    NOT_A_REQUEST = "not_a_request"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    WRONG_LENGTH = "wrong_length"
    OUT_OF_RANGE = "out_of_range"
    NOT_FINITE = "not_finite"
    MASKED = "masked"
    UNKNOWN_AGENT = "unknown_agent"
    UNKNOWN_POLICY = "unknown_policy"
    UNKNOWN_EPISODE = "unknown_episode"
    WRONG_ORDER = "wrong_order"
    NOT_ALLOWED = "not_allowed"
    TOO_MANY = "too_many"
    TOO_SLOW = "too_slow"
    STOPPING = "stopping"
    INTERNAL = "internal"


MEANINGS: Mapping[Code, str] = MappingProxyType(
    {
        Code.BAD_FRAME: "A frame of TCP has no eight digits in front, or came to another port; the connection ends.",
        Code.TOO_LARGE: "A body, or a part of it, has more bytes or entries than the server takes.",
        Code.TOO_DEEP: "Lists and objects lie within each other more deeply than the server reads.",
        Code.MALFORMED: "The body is neither JSON nor msgpack, or it breaks off, or a text is not UTF-8.",
        Code.DUPLICATE_KEY: "A key of a message, of an episode or of a map of agents is there twice.",
        Code.UNKNOWN_TYPE: "There is no message of this type.",
        Code.NOT_A_REQUEST: "A message of this type is only ever sent by the server.",
        Code.MISSING_FIELD: "A field that the message or the episode needs is not there.",
        Code.WRONG_TYPE: "A value is of another kind than its field or its space.",
        Code.WRONG_LENGTH: "A list has another length than its space says, or two columns do not fit together.",
        Code.OUT_OF_RANGE: "A number or a text is outside the range of its field or its space.",
        Code.NOT_FINITE: "A number is NaN, infinite, or too large for the type of its space.",
        Code.MASKED: "An action mask allows nothing, or not the action that was taken.",
        Code.UNKNOWN_AGENT: "The environment has no agent of this id.",
        Code.UNKNOWN_POLICY: "There is no policy of this id.",
        Code.UNKNOWN_EPISODE: "No episode of this id is open on this session.",
        Code.WRONG_ORDER: "The message cannot come now, such as a second START_EPISODE for an open episode.",
        Code.NOT_ALLOWED: "The token, the Origin or the Host is missing or wrong, or such messages are not taken here.",
        Code.TOO_MANY: "There are too many connections, episodes, agents or bodies in a second.",
        Code.TOO_SLOW: "Nothing, or only a part of a body, came for too long, or a body took too long to read.",
        Code.STOPPING: "The server is about to stop.",
        Code.INTERNAL: "The fault is the server's; its report says more.",
    }
)
"""A sentence for every code, for people who write clients."""


class BadMessageError(MenvError):
    """A peer sent something that cannot be taken; it is told so, and nothing else happens.

    Args:
        code: One of `Code`.
        text: `<where>: <what was wrong>, expected <rule>`, for the author of the client; never what was sent.
        seq: The sequence number of the message, where it could be read.

    Attributes:
        code: As given, a `Code`.
        text: As given.
        seq: As given.
    """

    def __init__(self, code: str, text: str, seq: int | None = None) -> None:
        super().__init__(f"{code}: {text}")
        self.code = Code(code)
        self.text = text
        self.seq = seq
