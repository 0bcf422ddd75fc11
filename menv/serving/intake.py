"""Intake: the bodies of one connection, read one after the other, here or by the translator.

A session hands its bodies in and gets requests. What takes long is waited for: the next body of this connection comes
after it, those of others meanwhile. What asks for an action, by the looks of it, is read with those of others. It knows
no request.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from menv.serving.answerer import Answerer
from menv.serving.carriers.transport import Reply
from menv.serving.client_state import ClientState
from menv.serving.slices import Slices, Then, Work
from menv.serving.translation import Job, Outcome, Translation, translated
from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.dialect import Dialect, dialect_of
from menv.serving.wire.messages import Request, decode

Close = Callable[[], None]
Unread: TypeAlias = "tuple[Intake, bytes, Answerer]"
"""A body, and where it came from: the intake and the way back."""

_SHORT = 2_000
"""Bytes that are read in no time, whatever they are."""
_ASKS = b"GET_ACTION"
MOST_PUT_OFF = 512
"""Bodies that are read in one go."""


class Listener(Protocol):
    """Whose bodies they are."""

    admitted: bool
    """Whether large bodies are read at all, and questions with those of others."""
    state: ClientState
    """Whose questions they are."""

    def answer(self, request: Request, answerer: Answerer, *, translated: bool = False) -> None:
        """Do what a request says; `translated` is that of `ChunkDesk.take`."""

    def refuse(self, error: BadMessageError, answerer: Answerer) -> None:
        """Answer a body that holds no request."""


class PutOff(Protocol):
    """Where bodies wait for others that come with the same look at the sockets."""

    put_off: list[Unread]
    """Bodies whose questions are taken, or which their intakes read after all, before `ask` returns."""

    def begin(self) -> None:
        """Have that done soon; called with the first body that is put off, and when they are `MOST_PUT_OFF`."""

    def ask(self) -> None:
        """Have everything done that was put off."""


class Intake:
    """Reads the bodies of a connection.

    Args:
        listener: Gets the requests.
        questions: For bodies that ask for actions.
        translation: For large bodies.
        slices: For long work.
        max_depth: `Limits.max_depth`.
        always: Whether every body needs a reply.

    Attributes:
        listener: As given.
        hold: What transports wait for while something goes on with the last body.
    """

    def __init__(
        self,
        listener: Listener,
        questions: PutOff,
        translation: Translation,
        slices: Slices,
        max_depth: int,
        always: bool,
    ) -> None:
        self.listener = listener
        self._questions, self._put_off = questions, questions.put_off
        self._translation = translation
        self._slices = slices
        self._max_depth = max_depth
        self._always = always
        self._short = min(_SHORT, translation.longest_inline)
        # What goes on with the last body; until it is done, others wait.
        self._job: Job | None = None
        self._work: Work | None = None
        self.hold: Future[None] | None = None
        self._waiting: deque[tuple[bytes, Reply, Close]] = deque()
        self._last: Answerer | None = None

    def received(self, body: bytes, reply: Reply, close: Close) -> Future[None] | None:
        """Take one body; see `Conversation.received`."""
        if self.hold is None and len(body) <= self._short and body.find(_ASKS) >= 0:
            dialect = _FIRST_BYTES.get(body[0])
            if dialect is not None and self.listener.admitted:
                # Nearly every body comes this way, over the same way back as the last one.
                last = self._last
                if last is None or last.reply is not reply or last.dialect is not dialect:
                    last = self._answerer_of(reply, dialect, close)
                put_off = self._put_off
                put_off.append((self, body, last))
                if len(put_off) == 1 or len(put_off) >= MOST_PUT_OFF:
                    self._questions.begin()
                return self.hold
        # What was put off came before it.
        self._questions.ask()
        self.read(body, reply, close)
        return self.hold

    def read(self, body: bytes, reply: Reply, close: Close) -> None:
        """Read a body by itself, once everything before it is done."""
        if self.hold is not None:
            self._waiting.append((body, reply, close))
        elif len(body) <= self._short:
            self._read_at_once(body, reply, close)
        else:
            self._take(body, reply, close)

    def run(self, work: Work, then: Then, close: Close) -> None:
        """Do work that the last body asks for, at once if it is short; what comes next waits.

        Args:
            work: In small steps.
            then: Called when it is done, with what it raised.
            close: Ends the connection, if `then` raises.
        """

        def done(error: Exception | None) -> None:
            self._work = None
            self._go_on(lambda: then(error), close)

        self._work = work
        self._slices.run(work, done)
        self._wait()

    def lost(self) -> None:
        """Forget what has not been read or done."""
        self._waiting.clear()
        self._last = None
        if self._job is not None:
            self._translation.drop(self._job)
        if self._work is not None:
            self._slices.drop(self._work)

    def _take(self, body: bytes, reply: Reply, close: Close) -> None:
        try:
            if self._translation.takes(body):
                self._have_read(body, reply, close)
                return
            if len(body) > _SHORT:
                self._read_in_turn(body, reply, close)
                return
        except BadMessageError as error:
            self.listener.refuse(error, Answerer(reply, _dialect_of(body), close))
            return
        self._read_at_once(body, reply, close)

    def _read_at_once(self, body: bytes, reply: Reply, close: Close) -> None:
        try:
            request, dialect = decode(body, self._max_depth)
        except BadMessageError as error:
            self.listener.refuse(error, Answerer(reply, _dialect_of(body), close))
            return
        self.listener.answer(request, self._answerer_of(reply, dialect, close), translated=False)

    def _answerer_of(self, reply: Reply, dialect: Dialect, close: Close) -> Answerer:
        """Return the way back for a body that was read here; over a stream it is nearly always the same."""
        last = self._last
        if last is not None and last.reply is reply and last.dialect is dialect:
            return last
        answerer = Answerer(reply, dialect, close, self._always)
        # With a reply to each request there is another way back for each, which ends with it.
        self._last = None if self._always else answerer
        return answerer

    def _read_in_turn(self, body: bytes, reply: Reply, close: Close) -> None:
        """Read a body here that may take some milliseconds: those of several peers are not read in one go."""
        read: list[tuple[Request, Dialect]] = []

        def work() -> Iterator[None]:
            read.append(decode(body, self._max_depth))
            yield

        def then(error: Exception | None) -> None:
            if isinstance(error, BadMessageError):
                self.listener.refuse(error, Answerer(reply, _dialect_of(body), close))
            elif error is not None:
                raise error
            else:
                request, dialect = read[0]
                self.listener.answer(request, Answerer(reply, dialect, close, self._always), translated=False)

        self.run(work(), then, close)

    def _have_read(self, body: bytes, reply: Reply, close: Close) -> None:
        """Have a large body read elsewhere; what comes next waits.

        Raises:
            BadMessageError: It will not be.
        """
        dialect = dialect_of(body)
        if not self.listener.admitted:
            raise BadMessageError(
                Code.NOT_ALLOWED, "GET_CONFIG.token: is missing, expected the server's token first"
            )

        def then(outcome: Outcome) -> None:
            self._job = None
            self._go_on(lambda: self._was_read(outcome, body, reply, dialect, close), close)

        self._job = self._translation.add(body, then)
        self._wait()

    def _was_read(self, outcome: Outcome, body: bytes, reply: Reply, dialect: Dialect, close: Close) -> None:
        try:
            request, flat, read_as = translated(outcome, body, self._max_depth)
        except BadMessageError as error:
            self.listener.refuse(error, Answerer(reply, dialect, close))
            return
        answerer = Answerer(reply, read_as, close, self._always, answers_in=dialect)
        self.listener.answer(request, answerer, translated=flat)

    def _wait(self) -> None:
        if self.hold is None and (self._job is not None or self._work is not None):
            self.hold = asyncio.get_running_loop().create_future()

    def _go_on(self, first: Callable[[], None], close: Close) -> None:
        try:
            first()
            if self._job is not None or self._work is not None or self.hold is None:
                return
            hold, self.hold = self.hold, None
            while self._waiting and self.hold is None:
                body, reply, close = self._waiting.popleft()
                self._take(body, reply, close)
            hold.set_result(None)
        except Exception:
            # A fault of ours costs the connection, as it does where a transport has called.
            close()
            raise


_FIRST_BYTES = {ord("{"): Dialect.JSON, **dict.fromkeys(range(0x80, 0x90), Dialect.MSGPACK)}
"""How objects are written that begin so, as nearly all do."""


def _dialect_of(body: bytes) -> Dialect:
    try:
        return dialect_of(body)
    except BadMessageError:
        return Dialect.JSON
