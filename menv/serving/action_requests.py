"""What a server remembers of a client, and the episodes whose actions the client requests one by one.

Sessions hand START_EPISODE, GET_ACTION, LOG_ACTION, LOG_RETURNS and END_EPISODE to `ActionRequestHandler`. It collects
the GET_ACTION requests of one round of the event loop, decodes them together and passes them to the broker as one
batch: the cost of parsers, numpy, locks and thread switches is paid once. A repeated message is recognised by its
number and answered as before.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw, Struct

from menv.adapters.episode_broker import EpisodeBroker
from menv.adapters.episode_channel import ActionCall, Actions, ByteBudget, LoggedReturns, RequestBatch
from menv.base_env import ALL, SINGLE_AGENT
from menv.env_context import InputContext
from menv.errors import EpisodeError
from menv.serving import value_readers
from menv.serving.limits import Limits
from menv.serving.protocol import (
    Action,
    Answer,
    BadMessageError,
    EndEpisode,
    EpisodeMessage,
    EpisodeStarted,
    Error,
    ErrorCode,
    GetAction,
    LogAction,
    LogReturns,
    Ok,
    Ping,
    StartEpisode,
    WireFormat,
    encoder,
    error_reply,
    is_plain,
    listed,
)
from menv.serving.transports.transport import Reply
from menv.serving.value_readers import Column, StepColumns

if TYPE_CHECKING:
    from menv.serving.session import Session


class Responder:
    """Answers one request, in the wire format of the request.

    Attributes:
        always: Whether the transport needs a reply to every body, as HTTP does.
        body: Encodes an answer.
    """

    __slots__ = ("always", "body", "close", "reply", "wire_format")

    def __init__(
        self,
        reply: Reply,
        wire_format: WireFormat,
        close: Callable[[], None],
        always: bool = False,
    ) -> None:
        self.reply = reply
        self.body: Callable[[Answer], bytes] = encoder(wire_format)
        self.wire_format = wire_format
        self.close = close
        self.always = always

    def send(self, message: Answer) -> None:
        self.reply(self.body(message))

    def refuse(self, error: BadMessageError, seq: int | None = None) -> None:
        self.send(error_reply(error, seq))

    def nothing(self) -> None:
        """Reply to a request that has no answer, if the transport needs a reply."""
        if self.always:
            self.send(Ok())


_KEPT_FINISHED, _FORGOTTEN_AT_ONCE = 1_000, 64
_CLIENTS = 4
"""All clients together may have this many times `Limits.max_waiting` waiting."""


@dataclass(slots=True)
class OpenEpisode:
    """An episode whose actions the client requests one by one.

    Attributes:
        seq: Number of the last message, -1 before the first.
        answer: The answer to the last message, None while it waits.
        last_type: Type of the last message that was no GET_ACTION.
        waiting: Responders of the unanswered request; several if it was repeated.
        number: Grows with every episode of the server.
    """

    broker_id: str
    seq: int = -1
    answer: Answer | None = None
    last_type: type[StartEpisode | EpisodeMessage] = StartEpisode
    waiting: list[Responder] = field(default_factory=list)
    number: int = field(default_factory=itertools.count().__next__)


@dataclass(slots=True)
class ChunkProgress:
    """An episode whose actions the client chooses itself and sends in trajectory chunks.

    Attributes:
        t: Steps taken so far, by agent.
        ends: Steps taken at the latest end of each agent.
        last_obs: The observation with which the next chunk begins, if the episode has no id.
    """

    broker_id: str
    t: dict[str | None, int] = field(default_factory=dict)
    ends: dict[str | None, int] = field(default_factory=dict)
    last_obs: Any = None
    over: bool = False
    policies: dict[str, str] = field(default_factory=dict)


class ClientState:
    """One client.

    Attributes:
        backlog: Bytes of its episodes that wait for the sampler.
        token: Identifies the client when it reconnects.
        chunks: Episodes that it sends in chunks, by its own ids, including those that ended lately.
        num_chunks_ended: Number of ended episodes in `chunks`; counting them for each episode is too slow.
        weights_seq_no: The weights that it received last.
        only_policy: The only policy when it connected, with which it acts without asking.
    """

    def __init__(self, backlog: ByteBudget) -> None:
        self.backlog = backlog
        self.token = secrets.token_hex(16)
        self.name = ""
        self.extended = False
        self.episodes: dict[str, OpenEpisode] = {}
        self.finished: OrderedDict[str, OpenEpisode] = OrderedDict()
        self.chunks: OrderedDict[str, ChunkProgress] = OrderedDict()
        self.num_chunks_ended = 0
        self.unnamed: list[ChunkProgress] = []
        self.weights_seq_no: int | None = None
        self.only_policy: str | None = None
        self.connected = 0
        self.lost_at = 0.0

    @property
    def num_open(self) -> int:
        """Number of open episodes."""
        return len(self.episodes) + len(self.unnamed) + len(self.chunks) - self.num_chunks_ended

    def check_room(self, limits: Limits, everywhere: int, where: str) -> None:
        """Raise `BadMessageError` if this client, or all clients together, have too many open episodes."""
        counts = {"max_episodes": self.num_open, "max_open_episodes": everywhere}
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
                f"{limits.max_waiting} (Limits.max_waiting); ask for new weights and wait for these before you go on",
            )

    def finish(self, episode_id: str) -> None:
        """Remember an ended episode for a while, to recognise its last message if it is repeated."""
        self.finished[episode_id] = self.episodes.pop(episode_id)
        while len(self.finished) > _KEPT_FINISHED:
            self.finished.popitem(last=False)

    def forget_chunks(self) -> None:
        """Forget the oldest ended episodes, many at once because searching for them is slow."""
        if self.num_chunks_ended <= _KEPT_FINISHED + _FORGOTTEN_AT_ONCE:
            return
        over = [name for name, one in self.chunks.items() if one.over]
        for name in over[:-_KEPT_FINISHED]:
            del self.chunks[name]
            self.num_chunks_ended -= 1

    def clear(self) -> None:
        for kept in (self.episodes, self.finished, self.chunks, self.unnamed):
            kept.clear()

    def broker_ids(self) -> list[str]:
        """Return the broker's ids of all open episodes."""
        chunks = [one.broker_id for one in self.chunks.values() if not one.over]
        return [
            *(one.broker_id for one in self.episodes.values()),
            *chunks,
            *(one.broker_id for one in self.unnamed),
        ]

    def resume_points(self) -> dict[str, Any]:
        """Return the position of each open episode, for a client that reconnects."""
        played = {
            name: {
                "t": one.t.get(None, 0),
                "agents": {agent: t for agent, t in one.t.items() if agent is not None},
            }
            for name, one in self.chunks.items()
            if not one.over
        }
        return {**{name: {"seq": episode.seq} for name, episode in self.episodes.items()}, **played}


MAX_DEFERRED = 512
"""Deferred bodies that are decoded in one batch."""
Unread: TypeAlias = "tuple[Session, bytes, Responder]"
"""A deferred body, with its session and its responder."""


_Requests: TypeAlias = list[GetAction | Ping]
_RAWS: dict[WireFormat, Callable[[bytes], list[Raw]]] = {
    WireFormat.JSON: msgspec.json.Decoder(list[Raw]).decode,
    WireFormat.MSGPACK: msgspec.msgpack.Decoder(list[Raw]).decode,
}
# Decoders of a single type would not check the tag, so `Ping` is there, too.
_TYPED: dict[WireFormat, Callable[[bytes], _Requests]] = {
    WireFormat.JSON: msgspec.json.Decoder(_Requests).decode,
    WireFormat.MSGPACK: msgspec.msgpack.Decoder(_Requests).decode,
}


def read_action_requests(bodies: Sequence[bytes], wire_format: WireFormat) -> list[GetAction | None]:
    """Decode the GET_ACTION requests of R bodies in one call; None for each body that has to be decoded on its own.

    The bodies are short and each begins with an object of the same wire format. `decode` in `menv.serving.protocol`
    handles the others, also with infos and ended agents, and reports what is wrong with them.
    """
    whole = listed(bodies, wire_format)
    try:
        requests = _TYPED[wire_format](whole)
        if not _apart(whole, bodies, len(requests), wire_format):
            return [None] * len(bodies)
        return [
            one
            if type(one) is GetAction
            and not one.info
            and one.done is None
            # Type, id and observation are always there; the first two are strings.
            and is_plain(body, wire_format, 3 + bool(one.reward) + (one.seq is not None), strings=2)
            else None
            for one, body in zip(requests, bodies, strict=True)
        ]
    except (BadMessageError, msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return [None] * len(bodies)


def _apart(whole: bytes, bodies: Sequence[bytes], count: int, wire_format: WireFormat) -> bool:
    """Return whether each object is exactly one body, so that none spans the bodies of two peers."""
    if count != len(bodies):
        return False
    # Each body begins with a bracket. If there are no others, no object begins elsewhere.
    if wire_format is WireFormat.JSON and whole.count(b"{") == count:
        return True
    return [*map(len, _RAWS[wire_format](whole))] == [*map(len, bodies)]


_MAX_BYTES = 65_536
"""Bytes of observations that are decoded in one batch."""

Decision: TypeAlias = (
    "tuple[Sequence[ActionRequest], Mapping[Any, Any] | Actions | BaseException] | Callable[[], None]"
)
"""One request with the actions of its agents, several with one action each, or an error instead of actions.

Or a callable that answers another message in the event loop.
"""
Decided: TypeAlias = Callable[[Decision], None]
Refused: TypeAlias = Callable[[Exception, Responder, int | None], None]
"""Answers a refused message: the error, its responder, and the message's number."""


class ActionRequest(Struct, eq=False):
    """One GET_ACTION on its way to the sampler, which calls it with the actions or an error.

    Attributes:
        paid: The reward, infos and ended agents that came with it.
        seq_before: The episode's `seq` before this message, restored if it is refused.
        since: When it was received, in seconds of `time.monotonic`.
    """

    episode: OpenEpisode
    message: GetAction
    responder: Responder
    size: int
    paid: LoggedReturns | None
    decided: Decided
    seq_before: int
    answer_before: Answer | None
    since: float

    @property
    def reward(self) -> float | None:
        """The reward of a single agent; None if infos, ended agents or a budget came with it."""
        if self.paid is None:
            return 0.0
        rewards, infos, done, size = self.paid
        return None if infos or done or size else rewards[SINGLE_AGENT]

    def __call__(self, actions: Mapping[Any, Any] | BaseException) -> None:
        self.decided(((self,), actions))


_MAX_REPEATED = 16


class ActionRequestHandler:
    """The episodes of a server's clients whose actions the algorithm's policies choose. Used in the event loop only.

    It collects the GET_ACTION requests of one round of the loop. Everything that has to come after them calls `flush`
    first.

    Attributes:
        deferred: Bodies that look like GET_ACTION and are not decoded yet; `flush` empties it.
        on_deferred: Called when a first body is deferred, instead of scheduling a `flush`; the caller flushes.
    """

    def __init__(
        self,
        broker: EpisodeBroker,
        ioctx: InputContext,
        limits: Limits,
        decided: Decided,
        refused: Refused,
    ) -> None:
        self._broker = broker
        self._ioctx = ioctx
        self._limits = limits
        self._decided = decided
        self._refused = refused
        self._values = StepColumns(ioctx, limits.max_agents)
        self.on_deferred: Callable[[], None] | None = None
        self.deferred: list[Unread] = []
        # While bodies are decoded, the requests they add need no `flush` of their own.
        self._decoding = False
        self._added: list[ActionRequest] = []
        self._bytes = 0

    @property
    def waiting(self) -> int:
        """Number of requests that were not passed to the broker yet."""
        return len(self.deferred) + len(self._added)

    def schedule_flush(self) -> None:
        """Flush before the loop polls its sockets again, or at once if many bodies are deferred."""
        if len(self.deferred) >= MAX_DEFERRED:
            self.flush()
        elif self.on_deferred is not None:
            self.on_deferred()
        else:
            asyncio.get_running_loop().call_soon(self.flush)

    def add(self, state: ClientState, message: GetAction, responder: Responder) -> None:
        """Add a request to the batch, or answer it if it is refused; its observation is decoded with the others."""
        try:
            episode, seq = state.episodes.get(message.episode_id), message.seq
            if episode is None or episode.waiting or not (seq is None or seq == episode.seq + 1):
                episode = self._find_episode(state, message, responder)
                if episode is None:
                    return
            size = len(message.observation)
            state.check_backlog(size, self._limits, "GET_ACTION")
            paid = None
            if message.reward or message.info or message.done:
                paid = self._paid(state, message, responder.wire_format)
        except Exception as error:
            self.flush()
            self._refused(error, responder, message.seq)
            return
        if not (self._added or self._decoding):
            asyncio.get_running_loop().call_soon(self.flush)
        self._added.append(
            ActionRequest(
                episode,
                message,
                responder,
                size,
                paid,
                self._decided,
                episode.seq,
                episode.answer,
                time.monotonic(),
            )
        )
        if seq is not None:
            episode.seq = seq
        episode.answer, episode.waiting = None, [responder]
        self._bytes += size
        if self._bytes > _MAX_BYTES:
            self.flush()

    def decode_deferred(self) -> None:
        """Decode the deferred bodies and add their requests to the batch."""
        unread = self.deferred.copy()
        self.deferred.clear()
        self._decoding = True
        try:
            self._decode(unread)
        finally:
            self._decoding = False

    def flush(self) -> None:
        """Pass all requests to the broker; everything that came before the caller is done afterwards."""
        if self.deferred:
            self.decode_deferred()
        if not self._added:
            return
        added, self._added, self._bytes = self._added, [], 0
        # In a fixed order, the same episodes make the same batch, for which the broker looks up nothing again.
        added.sort(key=attrgetter("episode.number"))
        calls: list[ActionCall] = []
        for wire_format, indices in _by_wire_format([request.responder for request in added]):
            requests = added if len(indices) == len(added) else [added[index] for index in indices]
            column = self._column(requests, wire_format)
            if column is not None and self._send_batch(requests, column):
                continue
            for request, obs in zip(requests, self._observations(requests, wire_format, column), strict=True):
                if isinstance(obs, dict):
                    calls.append((request.episode.broker_id, obs, request, request.size, request.paid))
                else:
                    self._refuse(request, obs)
        for (_, _, refused, _, _), error in self._broker.request_many(calls) if calls else ():
            assert isinstance(refused, ActionRequest)
            self._refuse(refused, error)

    def _decode(self, unread: list[Unread]) -> None:
        for (session, body, responder), message in zip(unread, _messages_of(unread), strict=True):
            if message is not None and session.hold is None:
                self.add(session.state, message, responder)
            else:
                session.read(body, responder)

    def _column(self, requests: list[ActionRequest], wire_format: WireFormat) -> Column | None:
        """Decode the observations of single agents together; None if they have to be decoded one by one."""
        try:
            return self._values.column(
                [request.message.observation for request in requests], wire_format, "GET_ACTION"
            )
        except Exception:
            # Decoded one by one, only the wrong observation is refused.
            return None

    def _send_batch(self, requests: list[ActionRequest], column: Column) -> bool:
        """Pass requests to the broker as one batch; False, and nothing is done, if the broker cannot take it."""
        rewards = [0.0 if request.paid is None else request.reward for request in requests]
        if None in rewards or not isinstance(column, np.ndarray):
            return False
        ids = [request.episode.broker_id for request in requests]
        return self._broker.request_batch(
            RequestBatch(ids, column, np.array(rewards), requests, self._batch_decided)
        )

    def _batch_decided(self, requests: Sequence[Any], actions: Actions | BaseException) -> None:
        if isinstance(actions, np.ndarray) and actions.ndim == 1 and actions.dtype.kind in "iu":
            # Messages hold plain numbers; converting them all at once is cheap.
            actions = actions.tolist()
        self._decided((requests, actions))

    def _observations(
        self, requests: list[ActionRequest], wire_format: WireFormat, column: Column | None
    ) -> Iterator[dict[Any, Any] | Exception]:
        if column is not None:
            for element in column:
                yield {SINGLE_AGENT: element}
            return
        for request in requests:
            message = request.message
            try:
                gone = self._broker.done_agents(request.episode.broker_id, message.done)
                yield self._values.observations(message.observation, wire_format, "GET_ACTION", gone=gone)
            except Exception as error:
                yield error

    def _refuse(self, request: ActionRequest, error: Exception) -> None:
        """Undo a request, of which the broker has taken nothing, and answer with the error."""
        episode = request.episode
        waiting, episode.waiting = episode.waiting, []
        episode.seq, episode.answer = request.seq_before, request.answer_before
        for responder in waiting:
            self._refused(error, responder, request.message.seq)

    def start(self, state: ClientState, request: StartEpisode, responder: Responder) -> None:
        name = request.episode_id or secrets.token_hex(16)
        episode = state.episodes.get(name)
        if episode is not None and request.seq is not None and episode.seq == request.seq and episode.answer:
            responder.send(episode.answer)
            return
        if episode is not None or name in state.finished or name in state.chunks:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                "START_EPISODE.episode_id: was used before, expected a new one, or none at all",
            )
        state.check_room(self._limits, self._broker.open_episodes, "START_EPISODE")
        state.check_backlog(0, self._limits, "START_EPISODE")
        broker_id = self._broker.start(
            f"{state.token[:12]}/{name}", request.training_enabled, budget=state.backlog
        )
        episode = state.episodes[name] = OpenEpisode(broker_id, -1 if request.seq is None else request.seq)
        episode.answer = EpisodeStarted(episode_id=name, seq=request.seq)
        responder.send(episode.answer)

    def step(self, state: ClientState, request: EpisodeMessage, responder: Responder) -> None:
        """Handle LOG_ACTION, LOG_RETURNS or END_EPISODE; everything is decoded before anything changes."""
        episode = self._find_episode(state, request, responder)
        if episode is None:
            return
        try:
            answer_now = _STEPS[type(request)](self, state, episode, request, responder)
        except EpisodeError as error:
            raise BadMessageError(ErrorCode.WRONG_ORDER, str(error)) from None
        if request.seq is not None:
            episode.seq = request.seq
        episode.answer, episode.last_type = Ok(seq=request.seq), type(request)
        if answer_now:
            responder.send(episode.answer)

    def _find_episode(
        self, state: ClientState, request: EpisodeMessage, responder: Responder
    ) -> OpenEpisode | None:
        """Return the episode of a message, in which no request waits; None if the message was repeated and answered."""
        name, seq = request.episode_id, request.seq
        episode = state.episodes.get(name)
        if episode is not None and not episode.waiting and (seq is None or seq == episode.seq + 1):
            return episode
        # Requests in the batch may change the answer.
        self.flush()
        ended = state.finished.get(name) if episode is None else None
        # Only the last message of an ended episode can be repeated.
        known = episode if ended is None or seq != ended.seq else ended
        if known is not None and seq is not None and self._came_before(known, seq, request, responder):
            return None
        if episode is None:
            why = "was not found" if ended is None else "is completed"
            raise BadMessageError(
                ErrorCode.UNKNOWN_EPISODE,
                f"episode_id: this episode {why}, expected an open one; send START_EPISODE",
            )
        if episode.waiting:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{type(request).__struct_config__.tag}: the action that was asked for has not been answered, expected "
                "one message after the other within an episode; wait for it",
            )
        return episode

    def _came_before(
        self, episode: OpenEpisode, seq: int, request: EpisodeMessage, responder: Responder
    ) -> bool:
        """Answer a repeated message; False if it is the next one."""
        where = f"{type(request).__struct_config__.tag}.seq"
        if seq != episode.seq:
            if seq != episode.seq + 1 and episode.seq >= 0:
                raise BadMessageError(
                    ErrorCode.WRONG_ORDER,
                    f"{where}: {seq} after {episode.seq}, expected {episode.seq + 1}; number the messages of an "
                    "episode one by one",
                )
            return False
        # The reply was lost, or was not sent yet.
        asked = episode.answer is None or isinstance(episode.answer, Action | Error)
        if type(request) is not (GetAction if asked else episode.last_type):
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{where}: {seq} was the number of another message, which has been taken, expected {seq + 1}; send a "
                "message again as it was",
            )
        if episode.answer is not None:
            responder.send(episode.answer)
        elif len(episode.waiting) < _MAX_REPEATED:
            episode.waiting.append(responder)
        else:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where}: {seq} has come {_MAX_REPEATED} times, expected fewer; wait for the answer",
            )
        return True

    def _log_returns(
        self, state: ClientState, episode: OpenEpisode, request: LogReturns, responder: Responder
    ) -> bool:
        paid = self._paid(state, request, responder.wire_format)
        if paid is None:
            raise BadMessageError(ErrorCode.MALFORMED, "LOG_RETURNS: no field 'reward', expected it")
        self._broker.log_returns(episode.broker_id, *paid)
        return True

    def _log_action(
        self, state: ClientState, episode: OpenEpisode, request: LogAction, responder: Responder
    ) -> bool:
        wire_format, broker, size = responder.wire_format, self._broker, len(request.observation)
        broker.check("LogAction", episode.broker_id)
        paid = self._paid(state, request, wire_format)
        state.check_backlog(size, self._limits, "LOG_ACTION")
        gone = broker.done_agents(episode.broker_id, request.done)
        obs = self._values.observations(request.observation, wire_format, "LOG_ACTION", gone=gone)
        actions = self._values.actions(request.action, obs, wire_format, gone)
        if paid is not None:
            broker.log_returns(episode.broker_id, *paid)
        taken = partial(self._logged, responder, request.seq) if request.wait else None
        broker.log_action(episode.broker_id, obs, actions, wait=False, size=size, callback=taken)
        return not request.wait

    def _end(
        self, state: ClientState, episode: OpenEpisode, request: EndEpisode, responder: Responder
    ) -> bool:
        wire_format, broker, raw = responder.wire_format, self._broker, request.observation
        broker.check("EndEpisode", episode.broker_id)
        paid = self._paid(state, request, wire_format)
        obs = self._values.observations(raw, wire_format, "END_EPISODE", final=True)
        if paid is not None:
            broker.log_returns(episode.broker_id, *paid)
        broker.end(episode.broker_id, obs, truncated=request.truncated, size=len(raw))
        state.finish(request.episode_id)
        return True

    def _logged(self, responder: Responder, seq: int | None, why: object) -> None:
        """Answer LOG_ACTION with `wait`, with an error if the action was not taken; called in the sampler's thread."""
        error = Error(code=str(ErrorCode.STOPPING), message=str(why), seq=seq)
        self._decided(partial(responder.send, error if isinstance(why, BaseException) else Ok(seq=seq)))

    def _paid(
        self, state: ClientState, request: EpisodeMessage, wire_format: WireFormat
    ) -> LoggedReturns | None:
        """Return the reward, infos and ended agents that came with a message, and the bytes of the infos."""
        multi, size = self._ioctx.multi_agent, len(request.info)
        if size:
            state.check_backlog(size, self._limits, "info")
        info, done = _plain(request.info, wire_format), request.done or {}
        if not request.reward and not info and not done:
            return None
        paid = value_readers.reward(request.reward, wire_format) if request.reward else ({} if multi else 0.0)
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


_STEPS: dict[
    type[EpisodeMessage], Callable[[ActionRequestHandler, ClientState, OpenEpisode, Any, Responder], bool]
] = {
    LogReturns: ActionRequestHandler._log_returns,
    LogAction: ActionRequestHandler._log_action,
    EndEpisode: ActionRequestHandler._end,
}
"""The methods that handle messages within an episode; they return whether to answer at once."""


def _messages_of(unread: list[Unread]) -> Sequence[GetAction | None]:
    """Decode deferred bodies together; None for each body that has to be decoded on its own."""
    bodies = [body for _, body, _ in unread]
    messages: list[GetAction | None] = [None] * len(bodies)
    for wire_format, indices in _by_wire_format([responder for _, _, responder in unread]):
        if len(indices) == len(bodies):
            return read_action_requests(bodies, wire_format)
        decoded = read_action_requests([bodies[index] for index in indices], wire_format)
        for index, message in zip(indices, decoded, strict=True):
            messages[index] = message
    return messages


def _by_wire_format(responders: Sequence[Responder]) -> list[tuple[WireFormat, Sequence[int]]]:
    """Return the indices of each wire format; nearly always there is only one."""
    formats = [responder.wire_format for responder in responders]
    if formats.count(formats[0]) == len(formats):
        return [(formats[0], range(len(formats)))]
    return [(one, [index for index, found in enumerate(formats) if found is one]) for one in WireFormat]


def _plain(raw: msgspec.Raw, wire_format: WireFormat) -> dict[str, Any]:
    if not raw:
        return {}
    read = msgspec.json.decode if wire_format is WireFormat.JSON else msgspec.msgpack.decode
    info = read(raw)
    if info is not None and not isinstance(info, dict):
        raise BadMessageError(ErrorCode.WRONG_TYPE, "info: expected an object")
    return info or {}
