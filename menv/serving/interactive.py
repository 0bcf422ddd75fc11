"""Episodes whose actions a client asks for one by one: START_EPISODE, GET_ACTION, LOG_ACTION, LOG_RETURNS, END_EPISODE.

A session hands it these requests. A message that comes again is recognised by its number, and answered as before.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import msgspec

from menv.base_env import ALL, SINGLE_AGENT
from menv.errors import EpisodeError
from menv.input_context import InputContext
from menv.line import Paid
from menv.round_board import RoundBoard
from menv.serving.answerer import Answerer
from menv.serving.carriers.limits import Limits
from menv.serving.client_state import ClientState, Link
from menv.serving.questions import Decided, Questions, Refused
from menv.serving.turn_values import TurnValues
from menv.serving.wire import columns
from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.dialect import Dialect
from menv.serving.wire.messages import (
    Action,
    Answer,
    EndEpisode,
    EpisodeStarted,
    Error,
    GetAction,
    LogAction,
    LogReturns,
    Ok,
    StartEpisode,
    Turn,
)

_MOST_REPEATED = 16


class Interactive:
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
        switchboard: RoundBoard,
        ioctx: InputContext,
        limits: Limits,
        decided: Decided,
        refused: Refused,
    ) -> None:
        self._board = switchboard
        self._ioctx = ioctx
        self._limits = limits
        self._decided = decided
        self._values = TurnValues(ioctx, limits.max_agents)
        self.questions = Questions(switchboard, self._values, self, limits, decided, refused)

    def settle(self) -> None:
        """Do what has been put off: what comes next finds everything done that came before it."""
        self.questions.ask()

    def start(self, state: ClientState, request: StartEpisode, answerer: Answerer) -> None:
        """Begin an episode."""
        name = request.episode_id or secrets.token_hex(16)
        link = state.links.get(name)
        if link is not None and request.seq is not None and link.seq == request.seq and link.answer:
            answerer.send(link.answer)
            return
        if link is not None or name in state.finished or name in state.chunks:
            raise BadMessageError(
                Code.WRONG_ORDER,
                "START_EPISODE.episode_id: was used before, expected a new one, or none at all",
            )
        state.check_room(self._limits, self._board.open_episodes, "START_EPISODE")
        state.check_backlog(0, self._limits, "START_EPISODE")
        board_id = self._board.start(
            f"{state.token[:12]}/{name}", request.training_enabled, backlog=state.backlog
        )
        link = state.links[name] = Link(board_id, -1 if request.seq is None else request.seq)
        link.answer = EpisodeStarted(episode_id=name, seq=request.seq)
        answerer.send(link.answer)

    def paid(self, state: ClientState, request: GetAction, dialect: Dialect) -> Paid | None:
        """Return what came with a question; see `menv.serving.questions.Episodes`."""
        told = len(request.info)
        if told:
            state.check_backlog(told, self._limits, "info")
        returns = self._returns(request, dialect)
        if returns is None:
            return None
        rewards, infos, done = returns
        return rewards, infos or {}, done or {}, told

    def turn(self, state: ClientState, request: Turn, answerer: Answerer) -> None:
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
            raise BadMessageError(Code.WRONG_ORDER, str(error)) from None
        if request.seq is not None:
            link.seq = request.seq
        link.answer, link.said = answer, type(request)
        if isinstance(request, EndEpisode):
            state.finish(request.episode_id)
        if not (isinstance(request, LogAction) and request.wait):
            answerer.send(answer)

    def link(self, state: ClientState, request: Turn, answerer: Answerer) -> Link | None:
        """Return the episode that a message belongs to; see `menv.serving.questions.Episodes`."""
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
                Code.UNKNOWN_EPISODE,
                f"episode_id: this episode {why}, expected an open one; send START_EPISODE",
            )
        if link.waiting:
            raise BadMessageError(
                Code.WRONG_ORDER,
                f"{type(request).__struct_config__.tag}: the action that was asked for has not been answered, expected "
                "one message after the other within an episode; wait for it",
            )
        return link

    def _came_before(self, link: Link, seq: int, request: Turn, answerer: Answerer) -> bool:
        """Answer a message that comes again as before; False if it is the next one."""
        where = f"{type(request).__struct_config__.tag}.seq"
        if seq != link.seq:
            if seq != link.seq + 1 and link.seq >= 0:
                raise BadMessageError(
                    Code.WRONG_ORDER,
                    f"{where}: {seq} after {link.seq}, expected {link.seq + 1}; number the messages of an episode one "
                    "by one",
                )
            return False
        # The reply was lost, or is still to come.
        asked = link.answer is None or isinstance(link.answer, Action | Error)
        if type(request) is not (GetAction if asked else link.said):
            raise BadMessageError(
                Code.WRONG_ORDER,
                f"{where}: {seq} was the number of another message, which has been taken, expected {seq + 1}; send a "
                "message again as it was",
            )
        if link.answer is not None:
            answerer.send(link.answer)
        elif len(link.waiting) < _MOST_REPEATED:
            link.waiting.append(answerer)
        else:
            raise BadMessageError(
                Code.TOO_MANY,
                f"{where}: {seq} has come {_MOST_REPEATED} times, expected fewer; wait for the answer",
            )
        return True

    def _take(self, state: ClientState, link: Link, request: Turn, answerer: Answerer) -> Answer:
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
            gone = board.gone(link.board_id, request.done)
            obs = self._values.observations(request.observation, dialect, "LOG_ACTION", gone=gone)
            actions = self._values.actions(request.action, obs, dialect, gone)
            self._pay(link, returns, told)
            taken = partial(self._logged, answerer, seq) if request.wait else None
            board.log(link.board_id, obs, actions, wait=False, size=size, taken=taken)
        else:
            self._pay(link, returns, told)
        return Ok(seq=seq)

    def _logged(self, answerer: Answerer, seq: int | None, why: object) -> None:
        """Answer that an action was taken, or why not; called in the sampler's thread."""
        error = Error(code=str(Code.STOPPING), message=str(why), seq=seq)
        self._decided(partial(answerer.send, error if isinstance(why, BaseException) else Ok(seq=seq)))

    def _pay(self, link: Link, returns: tuple[Any, Any, Any] | None, size: int) -> None:
        if returns is not None:
            self._board.pay(link.board_id, *returns, size)

    def _returns(self, request: Turn, dialect: Dialect) -> tuple[Any, Any, Any] | None:
        multi, told = self._ioctx.multi_agent, len(memoryview(request.reward)) > 0
        info = _plain(request.info, dialect)
        if not told and not info and not request.done:
            if isinstance(request, LogReturns):
                raise BadMessageError(Code.MISSING_FIELD, "LOG_RETURNS: no field 'reward', expected it")
            return None
        paid = columns.reward(request.reward, dialect) if told else ({} if multi else 0.0)
        if isinstance(paid, dict) is not multi:
            kind = "an object of numbers by agent" if multi else "a number"
            raise BadMessageError(Code.WRONG_TYPE, f"reward: not {kind}, expected {kind}")
        if not isinstance(paid, dict):
            return {SINGLE_AGENT: paid}, {SINGLE_AGENT: info} if info else None, None
        for agent in (*paid, *info, *(agent for agent in request.done or () if agent != ALL)):
            self._values.spaces(agent, "reward")
        if not all(isinstance(own, dict) for own in info.values()):
            raise BadMessageError(Code.WRONG_TYPE, "info: expected an object of objects by agent")
        return paid, info or None, request.done


def _plain(raw: msgspec.Raw, dialect: Dialect) -> dict[str, Any]:
    if not len(memoryview(raw)):
        return {}
    read = msgspec.json.decode if dialect is Dialect.JSON else msgspec.msgpack.decode
    info = read(raw)
    if info is not None and not isinstance(info, dict):
        raise BadMessageError(Code.WRONG_TYPE, "info: expected an object")
    return info or {}
