"""What a server remembers of a client, and the episodes whose actions the client requests one by one.

Sessions hand START_EPISODE, GET_ACTION, LOG_ACTION, LOG_RETURNS and END_EPISODE to `ActionRequestHandler`, which reads
everything before anything changes and passes it to the broker. A repeated message is recognised by its number and
answered as before.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import msgspec

from menv.adapters.episode_broker import ByteBudget, EpisodeBroker, LoggedReturns
from menv.base_env import ALL, SINGLE_AGENT
from menv.env_context import InputContext
from menv.serving.limits import Limits
from menv.serving.protocol import (
    Answer,
    BadMessageError,
    EndEpisode,
    EpisodeRequest,
    EpisodeStarted,
    Error,
    ErrorCode,
    GetAction,
    LogAction,
    LogReturns,
    Ok,
    StartEpisode,
    TypedDecoder,
    encode,
)
from menv.serving.transports.server import Reply
from menv.serving.value_readers import REWARDS, StepReader


@dataclass(slots=True)
class Responder:
    """Answers one request; with `always` the transport needs a reply to every body, as HTTP does."""

    reply: Reply
    close: Callable[[], None]
    always: bool = False

    def send(self, message: Answer) -> None:
        self.reply(encode(message))

    def refuse(self, error: BadMessageError, seq: int | None = None) -> None:
        self.send(Error(code=error.code, message=error.text, seq=error.seq if seq is None else seq))

    def nothing(self) -> None:
        """Reply to a request that has no answer, if the transport needs a reply."""
        if self.always:
            self.send(Ok())


_KEPT_ENDED = 1_000
_CLIENTS = 4
"""All clients together may have this many times `Limits.max_waiting` waiting."""


@dataclass(slots=True)
class OpenEpisode:
    """An episode whose actions the client requests one by one.

    Attributes:
        seq: Number of the last message, -1 before the first.
        answer: The answer to the last message, None while it waits.
        last_type: Type of the last message.
        waiting: Responders of the unanswered request; several if it was repeated.
    """

    broker_id: str
    seq: int = -1
    answer: Answer | None = None
    last_type: type[StartEpisode | EpisodeRequest] = StartEpisode
    waiting: list[Responder] = field(default_factory=list)


@dataclass(slots=True)
class ChunkProgress:
    """An episode whose actions the client chooses itself and sends in trajectory chunks.

    Attributes:
        t: Steps taken so far, by agent.
        ends: Steps taken at the latest end of each agent.
        last_obs: The observation with which the next chunk begins, if the episode has no id.
        policies: The policy of each agent that the client has asked for.
    """

    broker_id: str
    t: dict[str | None, int] = field(default_factory=dict)
    ends: dict[str | None, int] = field(default_factory=dict)
    last_obs: Any = None
    policies: dict[str, str] = field(default_factory=dict)


class ClientState:
    """One client.

    Attributes:
        backlog: Bytes of its episodes that wait for the sampler.
        token: Identifies the client when it reconnects.
        chunks: Episodes that it sends in chunks, by its own ids.
        unnamed: The episode without an id that it sends in chunks.
        ended: Ids of episodes that ended lately, to recognise what is sent again; with the episode if its actions were
            requested.
        weights_seq_no: The weights that it received last.
        only_policy: The only policy when it connected, with which it acts without asking.
    """

    def __init__(self, backlog: ByteBudget) -> None:
        self.backlog = backlog
        self.token = secrets.token_hex(16)
        self.episodes: dict[str, OpenEpisode] = {}
        self.chunks: dict[str, ChunkProgress] = {}
        self.unnamed: ChunkProgress | None = None
        self.ended: OrderedDict[str, OpenEpisode | None] = OrderedDict()
        self.weights_seq_no: int | None = None
        self.only_policy: str | None = None
        self.connected = 0
        self.lost_at = 0.0

    def check_room(self, limits: Limits, everywhere: int, where: str) -> None:
        """Raise `BadMessageError` if this client, or all clients together, have too many open episodes."""
        counts = {"max_episodes": len(self.broker_ids()), "max_open_episodes": everywhere}
        for name, count in counts.items():
            most = getattr(limits, name)
            if count >= most:
                whose = "" if name == "max_episodes" else " of all clients"
                raise BadMessageError(
                    ErrorCode.TOO_MANY,
                    f"{where}: {count} episodes{whose} are open, expected fewer than {most} (Limits.{name}); end some "
                    "first",
                )

    def check_backlog(self, size: int, limits: Limits, where: str) -> None:
        """Raise `BadMessageError` if too many bytes wait for the sampler."""
        backlog, total = self.backlog, self.backlog.total
        if backlog.waiting + size > limits.max_waiting or (
            total is not None and total.waiting + size > _CLIENTS * limits.max_waiting
        ):
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where}: {self.backlog.waiting} bytes of this client wait to be sampled, expected at most "
                f"{limits.max_waiting} (Limits.max_waiting); ask for new weights and wait for them before you continue",
            )

    def finish(self, episode_id: str, episode: OpenEpisode | None = None) -> None:
        """Remember an ended episode for a while."""
        self.episodes.pop(episode_id, None)
        self.chunks.pop(episode_id, None)
        self.ended[episode_id] = episode
        if len(self.ended) > _KEPT_ENDED:
            self.ended.popitem(last=False)

    def clear(self) -> None:
        self.episodes.clear()
        self.chunks.clear()
        self.ended.clear()
        self.unnamed = None

    def broker_ids(self) -> list[str]:
        """Return the broker's ids of all open episodes."""
        unnamed = () if self.unnamed is None else (self.unnamed,)
        return [one.broker_id for one in (*self.episodes.values(), *self.chunks.values(), *unnamed)]


_MAX_INFO_BYTES = 65_536
_MAX_INFO_DEPTH = 32
_MAX_REPEATED = 16
_OBSERVATIONS = {
    kind: f"{kind.__struct_config__.tag}.observation" for kind in (GetAction, LogAction, EndEpisode)
}
"""What errors call the observation of a message."""

Decided: TypeAlias = Callable[
    [OpenEpisode, GetAction | LogAction, float, Mapping[Any, Any] | BaseException], None
]
"""Receives an episode, its message, when that came in seconds of `time.monotonic`, and the actions or an error."""


class ActionRequestHandler:
    """The episodes of a server's clients whose actions the algorithm's policies choose. Used in the event loop only.

    `decided` is called in the sampler's thread.
    """

    def __init__(self, broker: EpisodeBroker, ioctx: InputContext, limits: Limits, decided: Decided) -> None:
        self._broker = broker
        self._multi_agent = ioctx.multi_agent
        self._limits = limits
        self._decided = decided
        self._values = StepReader(ioctx, limits)

    def start(self, state: ClientState, request: StartEpisode, responder: Responder) -> None:
        name = request.episode_id or secrets.token_hex(16)
        episode = state.episodes.get(name)
        if episode is not None and request.seq is not None and episode.seq == request.seq and episode.answer:
            responder.send(episode.answer)
            return
        if episode is not None or name in state.ended or name in state.chunks:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                "START_EPISODE.episode_id: was used before, expected a new one, or none at all",
            )
        state.check_room(self._limits, self._broker.open_episodes, "START_EPISODE")
        state.check_backlog(0, self._limits, "START_EPISODE")
        broker_id = self._broker.start(
            f"{state.token[:12]}/{name}", request.training_enabled is not False, budget=state.backlog
        )
        episode = state.episodes[name] = OpenEpisode(broker_id, -1 if request.seq is None else request.seq)
        episode.answer = EpisodeStarted(episode_id=name, seq=request.seq)
        responder.send(episode.answer)

    def step(self, state: ClientState, request: EpisodeRequest, responder: Responder) -> None:
        """Handle a message within an episode; everything is decoded before anything changes."""
        episode = self._find_episode(state, request, responder)
        if episode is None:
            return
        waits = self._take(state, episode, request)
        if request.seq is not None:
            episode.seq = request.seq
        episode.last_type = type(request)
        if waits:
            episode.answer, episode.waiting = None, [responder]
            return
        episode.answer = Ok(seq=request.seq)
        if isinstance(request, EndEpisode):
            state.finish(request.episode_id, episode)
        responder.send(episode.answer)

    def _take(self, state: ClientState, episode: OpenEpisode, request: EpisodeRequest) -> bool:
        """Pass a message to the broker; return whether its answer waits for the sampler."""
        broker, name = self._broker, episode.broker_id
        returns = self._returns(state, request) if request.reward or request.info or request.done else None
        if isinstance(request, LogReturns):
            if returns is None:
                raise BadMessageError(ErrorCode.MALFORMED, "LOG_RETURNS: no field 'reward', expected one")
            broker.log_returns(name, *returns)
            return False
        where, size = _OBSERVATIONS[type(request)], len(request.observation)
        gone = broker.done_agents(name, request.done) if self._multi_agent else set()
        if isinstance(request, EndEpisode):
            obs = self._values.observations(request.observation, where, final=True)
            broker.end(name, obs, truncated=bool(request.truncated), size=size, returns=returns)
            return False
        state.check_backlog(size, self._limits, where)
        obs = self._values.observations(request.observation, where, gone=gone)
        waiting = partial(self._decided, episode, request, time.monotonic())
        if isinstance(request, GetAction):
            broker.request_actions(name, obs, waiting, size, returns)
            return True
        actions = self._values.actions(request.action, obs.keys(), gone)
        callback = waiting if request.wait else None
        broker.log_action(name, obs, actions, wait=False, size=size, callback=callback, returns=returns)
        return callback is not None

    def _find_episode(
        self, state: ClientState, request: EpisodeRequest, responder: Responder
    ) -> OpenEpisode | None:
        """Return the episode of a message, in which no request waits; None if the message was repeated and answered."""
        name, seq = request.episode_id, request.seq
        episode = state.episodes.get(name)
        known = episode or state.ended.get(name)
        if known is not None and seq is not None and seq == known.seq:
            self._answer_again(known, request, f"{_kind(request)}.seq: {seq}", responder)
            return None
        if episode is None:
            why = "was not found" if known is None else "is completed"
            raise BadMessageError(
                ErrorCode.UNKNOWN_EPISODE,
                f"episode_id: this episode {why}, expected an open one; send START_EPISODE",
            )
        if episode.waiting:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{_kind(request)}: the action that was asked for has not been answered, expected one message after "
                "the other within an episode; wait for it",
            )
        if seq is not None and episode.seq >= 0 and seq != episode.seq + 1:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{_kind(request)}.seq: {seq} after {episode.seq}, expected {episode.seq + 1}; number the messages of "
                "an episode one by one",
            )
        return episode

    def _answer_again(
        self, episode: OpenEpisode, request: EpisodeRequest, where: str, responder: Responder
    ) -> None:
        """Answer a repeated message, whose reply was lost or was not sent yet."""
        if type(request) is not episode.last_type:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{where} was the number of another message, which has been taken, expected {episode.seq + 1}; send a "
                "message again as it was",
            )
        if episode.answer is not None:
            responder.send(episode.answer)
        elif len(episode.waiting) < _MAX_REPEATED:
            episode.waiting.append(responder)
        else:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where} has come {_MAX_REPEATED} times, expected fewer; wait for the answer",
            )

    def _returns(self, state: ClientState, request: EpisodeRequest) -> LoggedReturns | None:
        """Return the reward, infos and ended agents that came with a message, and the bytes of the infos."""
        multi, size = self._multi_agent, len(request.info)
        if size:
            state.check_backlog(size, self._limits, "info")
        info, done = read_info(request.info), request.done or {}
        if not request.reward and not info and not done:
            return None
        paid = REWARDS.read(request.reward, "reward") if request.reward else ({} if multi else 0.0)
        if isinstance(paid, dict) is not multi:
            kind = "an object of numbers by agent" if multi else "a number"
            raise BadMessageError(ErrorCode.WRONG_TYPE, f"reward: not {kind}, expected {kind}")
        if not isinstance(paid, dict):
            return {SINGLE_AGENT: paid}, {SINGLE_AGENT: info} if info else {}, {}, size
        for agent in (*paid, *info, *(agent for agent in done if agent != ALL)):
            self._values.spaces(agent, "reward")
        if not all(isinstance(one, dict) for one in info.values()):
            raise BadMessageError(ErrorCode.WRONG_TYPE, "info: expected an object of objects by agent")
        return paid, info, done, size


def _kind(request: EpisodeRequest) -> str:
    return str(request.__struct_config__.tag)


_INFO = TypedDecoder(dict[str, Any] | None)


def read_info(raw: msgspec.Raw) -> dict[str, Any]:
    """Return an info; no space bounds it, so its size and its depth are."""
    size = len(raw)
    if not size:
        return {}
    if size > _MAX_INFO_BYTES:
        raise BadMessageError(
            ErrorCode.TOO_LARGE, f"info: {size} bytes, expected at most {_MAX_INFO_BYTES}; send less"
        )
    info: dict[str, Any] | None = _INFO.read(raw, "info")
    if _is_deeper(info, _MAX_INFO_DEPTH):
        raise BadMessageError(
            ErrorCode.TOO_LARGE, f"info: more than {_MAX_INFO_DEPTH} levels, expected fewer; flatten it"
        )
    return info or {}


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels <= 0 or any(_is_deeper(one, levels - 1) for one in inner)
