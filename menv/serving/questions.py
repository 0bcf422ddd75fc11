"""Questions: the actions that clients ask for in one round of the loop, read and handed to the sampler all at once.

An `Intake` puts off bodies that look like one. What is in order but for its observation is asked with the others, and
`Interactive` has everything asked before it does anything else. A message by itself costs little that way;
what is done with parsers and numpy, under locks and in other threads is done once. It knows no connections, and not
which message may come when: that `Interactive` tells of whatever is not simply the next question of an episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec import Struct

from menv.base_env import SINGLE_AGENT
from menv.errors import CallOrderError
from menv.line import Call, Paid
from menv.round import Actions, Round
from menv.round_board import RoundBoard
from menv.serving.answerer import Answerer
from menv.serving.carriers.limits import Limits
from menv.serving.client_state import ClientState, Link
from menv.serving.intake import MOST_PUT_OFF, Unread
from menv.serving.turn_values import TurnValues
from menv.serving.wire.bad_message import BadMessageError
from menv.serving.wire.dialect import Dialect
from menv.serving.wire.messages import Answer, GetAction
from menv.serving.wire.question_column import read_questions
from menv.serving.wire.space_readers import Column

_DIALECTS = tuple(Dialect)
_MOST_BYTES = 65_536
"""Bytes of observations that are read in one go."""

_number = attrgetter("link.number")
Decision: TypeAlias = (
    "tuple[Sequence[Question], Mapping[Any, Any] | Actions | BaseException] | Callable[[], None]"
)
"""One question and the actions of its agents, or several and the action of each one's agent; or why there are none.

Or what answers another message, to be called in the loop.
"""
Decided: TypeAlias = Callable[[Decision], None]
Refused: TypeAlias = Callable[[BadMessageError | CallOrderError, Answerer, int | None], None]
"""Answers a message that cannot be taken: why, where to, and the message's number."""


class Question(Struct, eq=False):
    """One GET_ACTION; called with the actions, or with why there are none.

    Attributes:
        link: The episode.
        request: The message.
        answerer: Where it came from.
        size: Bytes of its observation.
        paid: What came with it.
        decided: Called in the sampler's thread.
        seq_before: Number of the message before it.
        answer_before: What that was answered.
    """

    link: Link
    request: GetAction
    answerer: Answerer
    size: int
    paid: Paid | None
    decided: Decided
    seq_before: int
    answer_before: Answer | None

    @property
    def rewarded(self) -> float | None:
        """What came with it if that is a reward and nothing else; None where there is more."""
        if self.paid is None:
            return 0.0
        rewards, infos, done, told = self.paid
        return None if infos or done or told else rewards[SINGLE_AGENT]

    def __call__(self, actions: Mapping[Any, Any] | BaseException) -> None:
        self.decided(((self,), actions))


class Episodes(Protocol):
    """Who knows episodes."""

    def link(self, state: ClientState, request: GetAction, answerer: Answerer) -> Link | None:
        """Return the episode that a message belongs to, in which nobody waits; None if the message came before.

        Raises:
            BadMessageError: It cannot be taken, and was not.
        """

    def paid(self, state: ClientState, request: GetAction, dialect: Dialect) -> Paid | None:
        """Return what came with a question, as in `menv.line.Call`.

        Raises:
            BadMessageError: That cannot be taken.
        """


class Questions:
    """Questions of this round of the loop. Everything is called in the loop.

    Args:
        switchboard: Where the sampler is.
        values: Reads observations.
        episodes: Tells of what is not simply the next question.
        limits: How much may wait.
        decided: Called in the sampler's thread.
        refused: Answers those that cannot be asked.

    Attributes:
        put_off: See `menv.serving.intake.PutOff`.
        asked_by_others: Called where something is put off and somebody else has it asked; None where the loop does,
            before it looks at its sockets again.
    """

    def __init__(
        self,
        switchboard: RoundBoard,
        values: TurnValues,
        episodes: Episodes,
        limits: Limits,
        decided: Decided,
        refused: Refused,
    ) -> None:
        self._board = switchboard
        self._values = values
        self._episodes = episodes
        self._limits = limits
        self._decided = decided
        self._refused = refused
        self.asked_by_others: Callable[[], None] | None = None
        self.put_off: list[Unread] = []
        # Whether bodies are just being read; what these add is asked when all have been.
        self._reading = False
        self._added: list[Question] = []
        self._bytes = 0

    @property
    def waiting(self) -> int:
        """How many there are, those included that nobody has read."""
        return len(self.put_off) + len(self._added)

    def begin(self) -> None:
        """Have what was put off read soon, at once if it is much; see `menv.serving.intake.PutOff`."""
        if len(self.put_off) >= MOST_PUT_OFF:
            self.ask()
        elif self.asked_by_others is not None:
            self.asked_by_others()
        else:
            asyncio.get_running_loop().call_soon(self.ask)

    def take(self, state: ClientState, request: GetAction, answerer: Answerer) -> None:
        """Have a question asked before the loop looks at its sockets again, or at once if much is there to be read.

        One that cannot be taken is answered so.

        Args:
            state: Whose it is.
            request: The question; its observation is read with those of others.
            answerer: Where it came from.
        """
        try:
            link, seq = state.links.get(request.episode_id), request.seq
            if link is None or link.waiting or not (seq is None or seq == link.seq + 1):
                link = self._episodes.link(state, request, answerer)
                if link is None:
                    return
            size = len(request.observation)
            state.check_backlog(size, self._limits, "GET_ACTION")
            paid = None
            if request.reward or request.info or request.done:
                paid = self._episodes.paid(state, request, answerer.dialect)
        except (BadMessageError, CallOrderError) as error:
            self.ask()
            self._refused(error, answerer, request.seq)
            return
        if not (self._added or self._reading):
            asyncio.get_running_loop().call_soon(self.ask)
        self._added.append(
            Question(link, request, answerer, size, paid, self._decided, link.seq, link.answer)
        )
        if seq is not None:
            link.seq = seq
        link.answer, link.waiting = None, [answerer]
        self._bytes += size
        if self._bytes > _MOST_BYTES:
            self.ask()

    def read(self) -> None:
        """Read what was put off; it is asked later."""
        unread = self.put_off.copy()
        self.put_off.clear()
        self._reading = True
        try:
            self._read_bodies(unread)
        finally:
            self._reading = False

    def ask(self) -> None:
        """Read what was put off, and ask what was added."""
        if self.put_off:
            self.read()
        if not self._added:
            return
        added, self._added, self._bytes = self._added, [], 0
        # Whoever comes first: the same episodes make the same rows, for which nothing has to be looked up again.
        added.sort(key=_number)
        calls: list[Call] = []
        for dialect, places in _by_dialect([question.answerer for question in added]):
            mine = added if len(places) == len(added) else [added[place] for place in places]
            column = self._column(mine, dialect)
            if column is not None and self._ask_round(mine, column):
                continue
            for question, obs in zip(mine, self._observed(mine, dialect, column), strict=True):
                if isinstance(obs, dict):
                    calls.append((question.link.board_id, obs, question, question.size, question.paid))
                else:
                    self._refuse(question, obs)
        for (_, _, asked, _, _), error in self._board.ask_all(calls):
            assert isinstance(asked, Question)
            self._refuse(asked, error)

    def _read_bodies(self, unread: list[Unread]) -> None:
        for (intake, body, answerer), request in zip(unread, self._requests(unread), strict=True):
            try:
                if request is not None and intake.hold is None:
                    self.take(intake.listener.state, request, answerer)
                else:
                    intake.read(body, answerer.reply, answerer.close)
            except Exception as error:
                _fault(answerer, error)

    @staticmethod
    def _requests(unread: list[Unread]) -> Sequence[GetAction | None]:
        """Return the requests that bodies hold, None for each that has to be read by itself."""
        if len(unread) == 1:
            return (None,)
        bodies = [body for _, body, _ in unread]
        requests: list[GetAction | None] = [None] * len(bodies)
        for dialect, places in _by_dialect([answerer for _, _, answerer in unread]):
            if len(places) == len(bodies):
                return read_questions(bodies, dialect)
            read = read_questions([bodies[place] for place in places], dialect)
            for place, request in zip(places, read, strict=True):
                requests[place] = request
        return requests

    def _column(self, questions: list[Question], dialect: Dialect) -> Column | None:
        """Return what the one agent of each question observes; None where that has to be read question by question."""
        raws = [question.request.observation for question in questions]
        try:
            return self._values.column(raws, dialect, "GET_ACTION")
        except Exception:
            # Whose fault it was is found one by one, so that it costs nobody else anything.
            return None

    def _ask_round(self, questions: list[Question], column: Column) -> bool:
        """Ask questions all at once; False, and nothing has been done, where they are not alike."""
        rewards = [0.0 if question.paid is None else question.rewarded for question in questions]
        if None in rewards or not isinstance(column, np.ndarray):
            return False
        ids = [question.link.board_id for question in questions]
        asked = Round(ids, column, np.array(rewards), questions, self._decided_together)
        return self._board.ask_round(asked)

    def _decided_together(self, questions: Sequence[Any], actions: Actions | BaseException) -> None:
        """Take what was decided for a round; called in the sampler's thread."""
        self._decided((questions, actions))

    def _observed(
        self, questions: list[Question], dialect: Dialect, column: Column | None
    ) -> Iterator[dict[Any, Any] | Exception]:
        if column is not None:
            for element in column:
                yield {SINGLE_AGENT: element}
            return
        for question in questions:
            request = question.request
            try:
                gone = self._board.gone(question.link.board_id, request.done)
                yield self._values.observations(request.observation, dialect, "GET_ACTION", gone=gone)
            except Exception as error:
                yield error

    def _refuse(self, question: Question, error: Exception) -> None:
        """Take a question back: nothing of its message has been taken."""
        link = question.link
        waiting, link.waiting = link.waiting, []
        link.seq, link.answer = question.seq_before, question.answer_before
        for answerer in waiting:
            if isinstance(error, BadMessageError | CallOrderError):
                self._refused(error, answerer, question.request.seq)
            else:
                _fault(answerer, error)


def _by_dialect(answerers: Sequence[Answerer]) -> list[tuple[Dialect, Sequence[int]]]:
    """Return the places of those who speak each dialect; nearly always all speak the same one."""
    dialects = [answerer.dialect for answerer in answerers]
    if dialects.count(dialects[0]) == len(dialects):
        return [(dialects[0], range(len(dialects)))]
    return [
        (dialect, [place for place, own in enumerate(dialects) if own is dialect]) for dialect in _DIALECTS
    ]


def _fault(answerer: Answerer, error: Exception) -> None:
    answerer.close()
    asyncio.get_running_loop().call_exception_handler({"message": "GET_ACTION", "exception": error})
