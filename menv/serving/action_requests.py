"""Episodes whose actions a client asks for one by one: START_EPISODE, GET_ACTION, LOG_ACTION, LOG_RETURNS, END_EPISODE.

A session hands it these requests. A message that comes again is recognised by its number, and answered as before.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw, Struct

from menv.adapters.episode_broker import EpisodeBroker
from menv.adapters.episode_channel import ActionCall, Actions, LoggedReturns, RequestBatch
from menv.base_env import ALL, SINGLE_AGENT
from menv.env_context import InputContext
from menv.errors import CallOrderError, EpisodeError
from menv.serving import value_readers
from menv.serving.client_state import ClientState, OpenEpisode, Responder
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat, is_plain, listed
from menv.serving.protocol import (
    Action,
    Answer,
    EndEpisode,
    EpisodeStarted,
    Error,
    GetAction,
    LogAction,
    LogReturns,
    Ok,
    Ping,
    StartEpisode,
    Turn,
)
from menv.serving.session import MOST_PUT_OFF, Unread
from menv.serving.step_columns import StepColumns
from menv.serving.transports.transport import Limits
from menv.serving.value_readers import Column

# SEAM menv.serving.wire.question_column
# Requests for actions, those of many peers read at once: a call for each would cost more than what it reads.
#
# `menv.serving.action_requests` reads with it what came with one look at the sockets. What is not read here
# is read by itself,
# by `menv.serving.protocol`, which also says what is wrong with it. It knows no peers.


_Questions: TypeAlias = list[GetAction | Ping]
_RAWS: dict[WireFormat, Callable[[bytes], list[Raw]]] = {
    WireFormat.JSON: msgspec.json.Decoder(list[Raw]).decode,
    WireFormat.MSGPACK: msgspec.msgpack.Decoder(list[Raw]).decode,
}
# Of one type alone msgspec would do without the tag.
_TYPED: dict[WireFormat, Callable[[bytes], _Questions]] = {
    WireFormat.JSON: msgspec.json.Decoder(_Questions).decode,
    WireFormat.MSGPACK: msgspec.msgpack.Decoder(_Questions).decode,
}
_JSON_FIELDS: Callable[[bytes], list[dict[str, Raw]]] = msgspec.json.Decoder(list[dict[str, Raw]]).decode


def read_questions(bodies: Sequence[bytes], dialect: WireFormat) -> list[GetAction | None]:
    """Return the requests for actions that R bodies hold; None for one that has to be looked at closely.

    Args:
        bodies: Short ones, all in one dialect, each beginning with an object.
        dialect: That one.
    """
    unread: list[GetAction | None] = [None] * len(bodies)
    whole = listed(bodies, dialect)
    try:
        asked = _TYPED[dialect](whole)
        if not _apart(whole, bodies, len(asked), dialect):
            return unread
        # Whatever else comes with a request has to be looked into.
        found = [
            one if type(one) is GetAction and one.done is None and not one.info else None for one in asked
        ]
        if dialect is WireFormat.JSON:
            return found if _all_plain(whole, found) else unread
        return [
            one if one is not None and is_plain(body, dialect, _keys(one), strings=2) else None
            for one, body in zip(found, bodies, strict=True)
        ]
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return unread


def _apart(whole: bytes, bodies: Sequence[bytes], count: int, dialect: WireFormat) -> bool:
    """Return whether each of so many objects is what one body holds, and none goes on in the body of another peer."""
    if count != len(bodies):
        return False
    # Where there are no more brackets than bodies, which begin with one, no object can begin elsewhere.
    if dialect is WireFormat.JSON and whole.count(b"{") == count:
        return True
    return [*map(len, _RAWS[dialect](whole))] == [*map(len, bodies)]


def _keys(asked: GetAction) -> int:
    """Return how many known keys a request has; type, id and observation are there."""
    return 3 + bool(asked.reward) + (asked.seq is not None)


def _all_plain(whole: bytes, asked: Sequence[GetAction | None]) -> bool:
    """Return whether each object of a list in JSON surely has each key once.

    None has fewer colons than keys, so that one look at all of them tells what one at each would.
    """
    colons = whole.count(b":")
    known = [one for one in asked if one is not None]
    # What `_keys` says of each.
    numbers = len(known) - [one.seq for one in known].count(None)
    if colons == 3 * len(known) + numbers + sum([len(one.reward) > 0 for one in known]):
        return True
    found = _JSON_FIELDS(whole)
    if colons == sum(map(len, found)):
        return True
    # Some are in values; the same holds of quotes, and those in values can be told.
    values = b"".join(chain.from_iterable([one.values() for one in found]))
    return whole.count(b'"') == 2 * sum(map(len, found)) + values.count(b'"')


# SEAM menv.serving.questions
# Questions: the actions that clients ask for in one round of the loop, read and handed to the sampler all at
# once.
#
# An `Intake` puts off bodies that look like one. What is in order but for its observation is asked with the
# others, and
# `Interactive` has everything asked before it does anything else. A message by itself costs little that way;
# what is done with parsers and numpy, under locks and in other threads is done once. It knows no connections,
# and not
# which message may come when: that `Interactive` tells of whatever is not simply the next question of an
# episode.


_DIALECTS = tuple(WireFormat)
_MOST_BYTES = 65_536
"""Bytes of observations that are read in one go."""

_number = attrgetter("link.number")
Decision: TypeAlias = (
    "tuple[Sequence[ActionRequest], Mapping[Any, Any] | Actions | BaseException] | Callable[[], None]"
)
"""One question and the actions of its agents, or several and the action of each one's agent; or why there are none.

Or what answers another message, to be called in the loop.
"""
Decided: TypeAlias = Callable[[Decision], None]
Refused: TypeAlias = Callable[[BadMessageError | CallOrderError, Responder, int | None], None]
"""Answers a message that cannot be taken: why, where to, and the message's number."""


class ActionRequest(Struct, eq=False):
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

    link: OpenEpisode
    request: GetAction
    answerer: Responder
    size: int
    paid: LoggedReturns | None
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


class EpisodeLookup(Protocol):
    """Who knows episodes."""

    def link(self, state: ClientState, request: GetAction, answerer: Responder) -> OpenEpisode | None:
        """Return the episode that a message belongs to, in which nobody waits; None if the message came before.

        Raises:
            BadMessageError: It cannot be taken, and was not.
        """

    def paid(self, state: ClientState, request: GetAction, dialect: WireFormat) -> LoggedReturns | None:
        """Return what came with a question, as in `menv.adapters.episode_channel.ActionCall`.

        Raises:
            BadMessageError: That cannot be taken.
        """


class ActionRequestBatcher:
    """Questions of this round of the loop. Everything is called in the loop.

    Args:
        switchboard: Where the sampler is.
        values: Reads observations.
        episodes: Tells of what is not simply the next question.
        limits: How much may wait.
        decided: Called in the sampler's thread.
        refused: Answers those that cannot be asked.

    Attributes:
        put_off: See `menv.serving.session.DeferredBody`.
        asked_by_others: Called where something is put off and somebody else has it asked; None where the loop does,
            before it looks at its sockets again.
    """

    def __init__(
        self,
        switchboard: EpisodeBroker,
        values: StepColumns,
        episodes: EpisodeLookup,
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
        self._added: list[ActionRequest] = []
        self._bytes = 0

    @property
    def waiting(self) -> int:
        """How many there are, those included that nobody has read."""
        return len(self.put_off) + len(self._added)

    def begin(self) -> None:
        """Have what was put off read soon, at once if it is much; see `menv.serving.session.DeferredBody`."""
        if len(self.put_off) >= MOST_PUT_OFF:
            self.ask()
        elif self.asked_by_others is not None:
            self.asked_by_others()
        else:
            asyncio.get_running_loop().call_soon(self.ask)

    def take(self, state: ClientState, request: GetAction, answerer: Responder) -> None:
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
            ActionRequest(link, request, answerer, size, paid, self._decided, link.seq, link.answer)
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
        calls: list[ActionCall] = []
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
        for (_, _, asked, _, _), error in self._board.request_many(calls):
            assert isinstance(asked, ActionRequest)
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

    def _column(self, questions: list[ActionRequest], dialect: WireFormat) -> Column | None:
        """Return what the one agent of each question observes; None where that has to be read question by question."""
        raws = [question.request.observation for question in questions]
        try:
            return self._values.column(raws, dialect, "GET_ACTION")
        except Exception:
            # Whose fault it was is found one by one, so that it costs nobody else anything.
            return None

    def _ask_round(self, questions: list[ActionRequest], column: Column) -> bool:
        """Ask questions all at once; False, and nothing has been done, where they are not alike."""
        rewards = [0.0 if question.paid is None else question.rewarded for question in questions]
        if None in rewards or not isinstance(column, np.ndarray):
            return False
        ids = [question.link.board_id for question in questions]
        asked = RequestBatch(ids, column, np.array(rewards), questions, self._decided_together)
        return self._board.request_batch(asked)

    def _decided_together(self, questions: Sequence[Any], actions: Actions | BaseException) -> None:
        """Take what was decided for a round; called in the sampler's thread."""
        self._decided((questions, actions))

    def _observed(
        self, questions: list[ActionRequest], dialect: WireFormat, column: Column | None
    ) -> Iterator[dict[Any, Any] | Exception]:
        if column is not None:
            for element in column:
                yield {SINGLE_AGENT: element}
            return
        for question in questions:
            request = question.request
            try:
                gone = self._board.done_agents(question.link.board_id, request.done)
                yield self._values.observations(request.observation, dialect, "GET_ACTION", gone=gone)
            except Exception as error:
                yield error

    def _refuse(self, question: ActionRequest, error: Exception) -> None:
        """Take a question back: nothing of its message has been taken."""
        link = question.link
        waiting, link.waiting = link.waiting, []
        link.seq, link.answer = question.seq_before, question.answer_before
        for answerer in waiting:
            if isinstance(error, BadMessageError | CallOrderError):
                self._refused(error, answerer, question.request.seq)
            else:
                _fault(answerer, error)


def _by_dialect(answerers: Sequence[Responder]) -> list[tuple[WireFormat, Sequence[int]]]:
    """Return the places of those who speak each dialect; nearly always all speak the same one."""
    dialects = [answerer.dialect for answerer in answerers]
    if dialects.count(dialects[0]) == len(dialects):
        return [(dialects[0], range(len(dialects)))]
    return [
        (dialect, [place for place, own in enumerate(dialects) if own is dialect]) for dialect in _DIALECTS
    ]


def _fault(answerer: Responder, error: Exception) -> None:
    answerer.close()
    asyncio.get_running_loop().call_exception_handler({"message": "GET_ACTION", "exception": error})


_MOST_REPEATED = 16


class ActionRequestHandler:
    """The interactive episodes of a server's clients.

    Args:
        switchboard: Where the sampler is.
        ioctx: The spaces.
        limits: How many episodes and agents.
        decided: Called in the sampler's thread.
        refused: Answers questions that turn out to be none.

    Attributes:
        questions: Those of this round of the loop.
    """

    def __init__(
        self,
        switchboard: EpisodeBroker,
        ioctx: InputContext,
        limits: Limits,
        decided: Decided,
        refused: Refused,
    ) -> None:
        self._board = switchboard
        self._ioctx = ioctx
        self._limits = limits
        self._decided = decided
        self._values = StepColumns(ioctx, limits.max_agents)
        self.questions = ActionRequestBatcher(switchboard, self._values, self, limits, decided, refused)

    def settle(self) -> None:
        """Do what has been put off: what comes next finds everything done that came before it."""
        self.questions.ask()

    def start(self, state: ClientState, request: StartEpisode, answerer: Responder) -> None:
        """Begin an episode."""
        name = request.episode_id or secrets.token_hex(16)
        link = state.links.get(name)
        if link is not None and request.seq is not None and link.seq == request.seq and link.answer:
            answerer.send(link.answer)
            return
        if link is not None or name in state.finished or name in state.chunks:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                "START_EPISODE.episode_id: was used before, expected a new one, or none at all",
            )
        state.check_room(self._limits, self._board.open_episodes, "START_EPISODE")
        state.check_backlog(0, self._limits, "START_EPISODE")
        board_id = self._board.start(
            f"{state.token[:12]}/{name}", request.training_enabled, budget=state.backlog
        )
        link = state.links[name] = OpenEpisode(board_id, -1 if request.seq is None else request.seq)
        link.answer = EpisodeStarted(episode_id=name, seq=request.seq)
        answerer.send(link.answer)

    def paid(self, state: ClientState, request: GetAction, dialect: WireFormat) -> LoggedReturns | None:
        """Return what came with a question; see `menv.serving.action_requests.EpisodeLookup`."""
        told = len(request.info)
        if told:
            state.check_backlog(told, self._limits, "info")
        returns = self._returns(request, dialect)
        if returns is None:
            return None
        rewards, infos, done = returns
        return rewards, infos or {}, done or {}, told

    def turn(self, state: ClientState, request: Turn, answerer: Responder) -> None:
        """Take one message of an episode that asks for nothing.

        Raises:
            BadMessageError: It cannot be taken, and was not.
        """
        link = self.link(state, request, answerer)
        if link is None:
            return
        try:
            answer = self._take(state, link, request, answerer)
        except EpisodeError as error:
            raise BadMessageError(ErrorCode.WRONG_ORDER, str(error)) from None
        if request.seq is not None:
            link.seq = request.seq
        link.answer, link.said = answer, type(request)
        if isinstance(request, EndEpisode):
            state.finish(request.episode_id)
        if not (isinstance(request, LogAction) and request.wait):
            answerer.send(answer)

    def link(self, state: ClientState, request: Turn, answerer: Responder) -> OpenEpisode | None:
        """Return the episode that a message belongs to; see `menv.serving.action_requests.EpisodeLookup`."""
        name, seq = request.episode_id, request.seq
        link = state.links.get(name)
        if link is not None and not link.waiting and (seq is None or seq == link.seq + 1):
            return link
        # What was put off may change what there is to say.
        self.settle()
        ended = state.finished.get(name) if link is None else None
        # Of an episode that is over only its last message comes again.
        known = link if ended is None or seq != ended.seq else ended
        if known is not None and seq is not None and self._came_before(known, seq, request, answerer):
            return None
        if link is None:
            why = "was not found" if ended is None else "is completed"
            raise BadMessageError(
                ErrorCode.UNKNOWN_EPISODE,
                f"episode_id: this episode {why}, expected an open one; send START_EPISODE",
            )
        if link.waiting:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{type(request).__struct_config__.tag}: the action that was asked for has not been answered, expected "
                "one message after the other within an episode; wait for it",
            )
        return link

    def _came_before(self, link: OpenEpisode, seq: int, request: Turn, answerer: Responder) -> bool:
        """Answer a message that comes again as before; False if it is the next one."""
        where = f"{type(request).__struct_config__.tag}.seq"
        if seq != link.seq:
            if seq != link.seq + 1 and link.seq >= 0:
                raise BadMessageError(
                    ErrorCode.WRONG_ORDER,
                    f"{where}: {seq} after {link.seq}, expected {link.seq + 1}; number the messages of an episode one "
                    "by one",
                )
            return False
        # The reply was lost, or is still to come.
        asked = link.answer is None or isinstance(link.answer, Action | Error)
        if type(request) is not (GetAction if asked else link.said):
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{where}: {seq} was the number of another message, which has been taken, expected {seq + 1}; send a "
                "message again as it was",
            )
        if link.answer is not None:
            answerer.send(link.answer)
        elif len(link.waiting) < _MOST_REPEATED:
            link.waiting.append(answerer)
        else:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where}: {seq} has come {_MOST_REPEATED} times, expected fewer; wait for the answer",
            )
        return True

    def _take(self, state: ClientState, link: OpenEpisode, request: Turn, answerer: Responder) -> Answer:
        # Everything is read before anything is done: a message is taken whole or not at all.
        dialect, board, seq = answerer.dialect, self._board, request.seq
        if not isinstance(request, LogReturns):
            board.check(type(request).__name__, link.board_id)
        told, size = len(memoryview(request.info)), 0
        if told:
            state.check_backlog(told, self._limits, "info")
        returns = self._returns(request, dialect)
        if isinstance(request, LogAction | EndEpisode):
            size = len(memoryview(request.observation))
        if isinstance(request, EndEpisode):
            obs = self._values.observations(request.observation, dialect, "END_EPISODE", final=True)
            self._pay(link, returns, told)
            board.end(link.board_id, obs, truncated=request.truncated, size=size)
        elif isinstance(request, LogAction):
            state.check_backlog(size, self._limits, "LOG_ACTION")
            gone = board.done_agents(link.board_id, request.done)
            obs = self._values.observations(request.observation, dialect, "LOG_ACTION", gone=gone)
            actions = self._values.actions(request.action, obs, dialect, gone)
            self._pay(link, returns, told)
            taken = partial(self._logged, answerer, seq) if request.wait else None
            board.log_action(link.board_id, obs, actions, wait=False, size=size, callback=taken)
        else:
            self._pay(link, returns, told)
        return Ok(seq=seq)

    def _logged(self, answerer: Responder, seq: int | None, why: object) -> None:
        """Answer that an action was taken, or why not; called in the sampler's thread."""
        error = Error(code=str(ErrorCode.STOPPING), message=str(why), seq=seq)
        self._decided(partial(answerer.send, error if isinstance(why, BaseException) else Ok(seq=seq)))

    def _pay(self, link: OpenEpisode, returns: tuple[Any, Any, Any] | None, size: int) -> None:
        if returns is not None:
            self._board.log_returns(link.board_id, *returns, size)

    def _returns(self, request: Turn, dialect: WireFormat) -> tuple[Any, Any, Any] | None:
        multi, told = self._ioctx.multi_agent, len(memoryview(request.reward)) > 0
        info = _plain(request.info, dialect)
        if not told and not info and not request.done:
            if isinstance(request, LogReturns):
                raise BadMessageError(ErrorCode.MISSING_FIELD, "LOG_RETURNS: no field 'reward', expected it")
            return None
        paid = value_readers.reward(request.reward, dialect) if told else ({} if multi else 0.0)
        if isinstance(paid, dict) is not multi:
            kind = "an object of numbers by agent" if multi else "a number"
            raise BadMessageError(ErrorCode.WRONG_TYPE, f"reward: not {kind}, expected {kind}")
        if not isinstance(paid, dict):
            return {SINGLE_AGENT: paid}, {SINGLE_AGENT: info} if info else None, None
        for agent in (*paid, *info, *(agent for agent in request.done or () if agent != ALL)):
            self._values.spaces(agent, "reward")
        if not all(isinstance(own, dict) for own in info.values()):
            raise BadMessageError(ErrorCode.WRONG_TYPE, "info: expected an object of objects by agent")
        return paid, info or None, request.done


def _plain(raw: msgspec.Raw, dialect: WireFormat) -> dict[str, Any]:
    if not len(memoryview(raw)):
        return {}
    read = msgspec.json.decode if dialect is WireFormat.JSON else msgspec.msgpack.decode
    info = read(raw)
    if info is not None and not isinstance(info, dict):
        raise BadMessageError(ErrorCode.WRONG_TYPE, "info: expected an object")
    return info or {}
