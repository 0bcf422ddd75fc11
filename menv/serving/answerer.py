"""Answerer: the way back for one request, in the dialect that it came in."""

from __future__ import annotations

from collections.abc import Callable

from menv.serving.carriers.transport import Reply
from menv.serving.wire.bad_message import BadMessageError
from menv.serving.wire.dialect import Dialect
from menv.serving.wire.messages import Answer, Ok, encoder, error_reply


class Answerer:
    """Answers one request.

    Args:
        reply: Takes the body.
        dialect: Of the request.
        close: Ends the connection after what was replied.
        always: Whether the transport needs a reply to every body.
        answers_in: The dialect of answers, where the request was translated from it.

    Attributes:
        reply: As given; so are `dialect`, `close` and `always`.
        body: Returns an answer as `reply` takes it.
    """

    __slots__ = ("always", "body", "close", "dialect", "reply")

    def __init__(
        self,
        reply: Reply,
        dialect: Dialect,
        close: Callable[[], None],
        always: bool = False,
        answers_in: Dialect | None = None,
    ) -> None:
        self.reply = reply
        self.body: Callable[[Answer], bytes] = encoder(answers_in or dialect)
        self.dialect = dialect
        self.close = close
        self.always = always

    def send(self, message: Answer) -> None:
        """Answer."""
        self.reply(self.body(message))

    def refuse(self, error: BadMessageError, seq: int | None = None) -> None:
        """Answer that the request cannot be taken."""
        self.send(error_reply(error, seq))

    def nothing(self) -> None:
        """Answer a request that has no answer, where the transport needs one all the same."""
        if self.always:
            self.send(Ok())
