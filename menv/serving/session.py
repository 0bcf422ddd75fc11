"""The sessions of a server: one for each connection, whatever transport carries it.

A transport hands bodies to `Session.received`, which decodes them one after the other: short ones at once, requests for
actions in batches, long ones in turn with those of other connections. `ServerSessions` keeps the state of clients that
may reconnect, and sends them the sampler's decisions. Everything but `send_decisions` runs in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from menv.adapters.episode_broker import EpisodeBroker
from menv.adapters.episode_channel import ByteBudget
from menv.base_env import SINGLE_AGENT
from menv.env_context import InputContext
from menv.errors import CallOrderError, EpisodeError, MenvError
from menv.serialization import space_to_json
from menv.serving.action_requests import (
    MAX_DEFERRED,
    ActionRequestHandler,
    ClientState,
    Decision,
    Responder,
)
from menv.serving.episodes import EpisodeIngest
from menv.serving.limits import MOST_BEFORE_TOKEN, Limits
from menv.serving.protocol import (
    EXTENSION,
    Action,
    Answer,
    BadMessageError,
    EndEpisode,
    EpisodeMessage,
    Episodes,
    EpisodesAndGetState,
    Error,
    ErrorCode,
    GetAction,
    GetConfig,
    GetPolicies,
    GetState,
    LogAction,
    LogReturns,
    Ping,
    Policies,
    Pong,
    Request,
    SetConfig,
    SetState,
    StartEpisode,
    WireFormat,
    decode,
    encode,
    wire_format_of,
)
from menv.serving.transports.access import Access
from menv.serving.transports.server import CooperativeScheduler
from menv.serving.transports.transport import Peer, Reply
from menv.serving.value_readers import action_spaces_json

Close = Callable[[], None]
Work = Coroutine[Any, Any, None]

NO_TOKEN = "GET_CONFIG.token: is missing, expected the server's token first (menv serve --token-file)"
_SHORT = 2_000
"""Bodies of at most this many bytes are decoded at once, whatever they hold."""
_GET_ACTION = b"GET_ACTION"

if TYPE_CHECKING:
    from menv.serving.policy_server import PublishedPolicies, Trainer


_FIRST_BYTES = {ord("{"): WireFormat.JSON, **dict.fromkeys(range(0x80, 0x90), WireFormat.MSGPACK)}
"""Wire format by the first byte, for nearly all bodies."""


def _wire_format_of(body: bytes) -> WireFormat:
    try:
        return wire_format_of(body)
    except BadMessageError:
        return WireFormat.JSON


STILL_PLAYING_S = 5.0  # after the last EPISODES
_MAX_PENDING = 64


class Session:
    """The state machine of one connection: it decodes the bodies in their order and checks which message may come when.

    A body that takes long is waited for: `hold` is a task that transports await before they hand over the next body.
    Short bodies that look like GET_ACTION are deferred, so that many are decoded at once.

    Attributes:
        state: The client's state, which may outlive the connection.
        played_at: Time of the last EPISODES.
    """

    def __init__(self, sessions: ServerSessions, peer: Peer, admitted: bool) -> None:
        self.peer = peer
        self.state = ClientState(ByteBudget(sessions.backlog))
        self.state.connected = 1
        self.played_at = -math.inf
        self.admitted = admitted
        self.hold: asyncio.Task[None] | None = None
        self._sessions = sessions
        self._action_requests = sessions.action_requests
        self._scheduler = sessions.scheduler
        self._max_depth = sessions.limits.max_depth
        self._always_reply = peer.transport == "http"
        self._pending_replies = 0
        # Bodies that came while `hold` was under way.
        self._waiting: deque[tuple[bytes, Responder]] = deque()
        self._last: Responder | None = None

    def received(self, body: bytes, reply: Reply, close: Close) -> asyncio.Future[None] | None:
        if self.hold is None and len(body) <= _SHORT and body.find(_GET_ACTION) >= 0:
            wire_format = _FIRST_BYTES.get(body[0])
            if wire_format is not None and self.admitted:
                deferred = self._action_requests.deferred
                deferred.append((self, body, self._responder_of(reply, wire_format, close)))
                if len(deferred) == 1 or len(deferred) >= MAX_DEFERRED:
                    self._action_requests.schedule_flush()
                return self.hold
        # Deferred bodies came before this one.
        self._action_requests.flush()
        self.read(body, self._responder_of(reply, _wire_format_of(body), close))
        return self.hold

    def read(self, body: bytes, responder: Responder) -> None:
        """Decode one body on its own, after everything before it."""
        if self.hold is not None:
            self._waiting.append((body, responder))
            return
        if len(body) <= _SHORT:
            try:
                request, _ = decode(body, self._max_depth)
            except Exception as error:
                self._refuse(error, responder)
                return
            work = self._answer(request, responder)
        else:
            work = self._read_long(body, responder)
        if work is not None:
            self.hold = asyncio.get_running_loop().create_task(self._finish(work, responder))

    def _responder_of(self, reply: Reply, wire_format: WireFormat, close: Close) -> Responder:
        """Return the responder for a body; a stream connection nearly always reuses the last one."""
        last = self._last
        if last is not None and last.reply is reply and last.wire_format is wire_format:
            return last
        responder = Responder(reply, wire_format, close, self._always_reply)
        # Over HTTP each request has its own reply callable, which ends with the response.
        self._last = None if self._always_reply else responder
        return responder

    async def _finish(self, work: Work, responder: Responder) -> None:
        """Do the work of one body, then read the bodies that came meanwhile."""
        try:
            await self._guarded(work, responder)
            while self._waiting:
                body, responder = self._waiting.popleft()
                await self._guarded(self._read_long(body, responder), responder)
        finally:
            self.hold = None

    async def _read_long(self, body: bytes, responder: Responder) -> None:
        """Decode a body in its turn, so that other peers are served in between."""
        if not self.admitted and len(body) > MOST_BEFORE_TOKEN:
            raise BadMessageError(ErrorCode.NOT_ALLOWED, NO_TOKEN)
        async with self._scheduler:
            request, _ = decode(body, self._max_depth)
        work = self._answer(request, responder)
        if work is not None:
            await work

    def _answer(self, request: Request, responder: Responder) -> Work | None:
        """Handle a decoded request, and return the work that is left, if any."""
        if type(request) is GetAction and self.admitted:
            self._action_requests.add(self.state, request, responder)
            return None
        try:
            self._action_requests.flush()
            if not self.admitted and type(request) not in (Ping, GetConfig):
                raise BadMessageError(ErrorCode.NOT_ALLOWED, NO_TOKEN)
            return _HANDLERS[type(request)](self, request, responder)
        except Exception as error:
            self._refuse(error, responder, getattr(request, "seq", None))
        return None

    async def _guarded(self, work: Work, responder: Responder) -> None:
        """Do the work of a request; an error is its answer."""
        try:
            await work
        except Exception as error:
            self._refuse(error, responder)

    def _refuse(self, error: Exception, responder: Responder, seq: int | None = None) -> None:
        """Answer a body that is refused, after everything before it."""
        self._action_requests.flush()
        self._sessions.refuse(error, responder, seq)

    def lost(self) -> None:
        self._action_requests.flush()
        self._waiting.clear()
        self._last = None
        if self.hold is not None:
            self.hold.cancel()
        self._sessions.lost(self)

    def _ping(self, _: Ping, responder: Responder) -> None:
        responder.send(Pong())

    def _start(self, request: StartEpisode, responder: Responder) -> None:
        self._action_requests.start(self.state, request, responder)

    def _step(self, request: EpisodeMessage, responder: Responder) -> None:
        self._action_requests.step(self.state, request, responder)

    def _greet(self, request: GetConfig, responder: Responder) -> None:
        sessions = self._sessions
        if not self.admitted and not sessions.access.admits(request.token):
            raise BadMessageError(
                ErrorCode.NOT_ALLOWED,
                "GET_CONFIG.token: is not the server's, expected that (menv serve --token-file)",
            )
        self.admitted = True
        config = sessions.config
        plain = {name: config[name] for name in ("env_steps_per_sample", "force_on_policy")}
        if EXTENSION not in (request.extensions or ()):
            responder.send(SetConfig(**plain))
            return
        before = sessions.states.get(request.session or "")
        if before is not None and before is not self.state:
            self.state = sessions.resume(self.state, before)
        self.state.extended = True
        self.state.name = request.client or self.state.name
        policies = list(config.get("policies", {}))
        self.state.only_policy = policies[0] if len(policies) == 1 else None
        sessions.states[self.state.token] = self.state
        more = {
            "extensions": [EXTENSION],
            "session": self.state.token,
            "multi_agent": sessions.ioctx.multi_agent,
            "policies": config.get("policies", {}),
            "explore": config.get("explore"),
            "resume": self.state.resume_points(),
        }
        responder.send(SetConfig(**plain, **more, **sessions.spaces()))

    async def _take_episodes(self, request: Episodes, responder: Responder) -> None:
        await self._ingest(request, responder)
        responder.nothing()

    async def _take_episodes_first(self, request: EpisodesAndGetState, responder: Responder) -> None:
        self._check_pending()
        await self._ingest(request, responder)
        self._check_pending()
        self._pending_replies += 1
        self._sessions.tasks.add_later(self, partial(self._weights_changed, request, responder))
        # Look again then: other clients may have stopped playing.
        asyncio.get_running_loop().call_later(STILL_PLAYING_S, self._sessions.tasks.wake)

    async def _ingest(self, request: Episodes, responder: Responder) -> None:
        sessions, state = self._sessions, self.state
        await sessions.scheduler.run(sessions.ingest.take(state, request, responder.wire_format))
        self.played_at = time.monotonic()
        number = state.weights_seq_no if request.weights_seq_no is None else request.weights_seq_no
        if number is not None:
            sessions.figures.staleness.add([max(0, sessions.broker.weights_seq_no - number)])

    def _check_pending(self) -> None:
        if self._pending_replies >= _MAX_PENDING:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"message: {self._pending_replies} requests for the next weights wait for their answers, expected at "
                f"most {_MAX_PENDING} on one connection; wait for these first",
            )

    def _weights_changed(
        self, request: EpisodesAndGetState, responder: Responder, error: MenvError | None
    ) -> None:
        self._pending_replies -= 1
        if error is None:
            work = self._guarded(self._send_state(request, responder), responder)
            asyncio.get_running_loop().create_task(work)
        else:
            self._refuse(error, responder)

    async def _send_state(self, request: GetState | EpisodesAndGetState, responder: Responder) -> None:
        """Answer with the latest weights; if they are not encoded already, a thread encodes them."""
        latest = self._sessions.latest
        try:
            state = self._state_of(request, latest, latest.made)
        except KeyError:
            state = await self._sessions.tasks.make(partial(self._state_of, request, latest, latest.make))
        self.state.weights_seq_no = state.weights_seq_no
        responder.send(state)

    def _state_of(
        self,
        request: GetState | EpisodesAndGetState,
        latest: PublishedPolicies,
        form: Callable[[str, str], Any],
    ) -> SetState:
        """Build SET_STATE; `form(kind, policy_id)` returns encoded weights or raises `KeyError`."""
        number, known = latest.weights_seq_no, list(latest.policies)
        chosen = known if request.policy_ids is None else request.policy_ids
        # A client may still have policies that were removed; they are left out.
        gone = self._sessions.retired if request.have is not None else ()
        chosen = [name for name in chosen if name not in gone]
        for name in chosen:
            if name not in known:
                raise BadMessageError(
                    ErrorCode.UNKNOWN_ID,
                    f"policy_ids: no policy {name[:40]!r}, expected one of {known[:20]}",
                )
        ask = self.state.only_policy is not None and known != [self.state.only_policy]
        common: dict[str, Any] = {"weights_seq_no": number, "ask_policies": ask}
        if request.have == number:
            return SetState(**common)
        if request.form == "bundle":
            return SetState(**common, bundles={name: form("bundle", name) for name in chosen})
        if request.form == "weights":
            # Weights come without connectors, so a policy whose connectors changed since is sent as a bundle.
            # Without `have` the client may have no policy to load weights into.
            have = number if request.have is None else request.have
            whole = [name for name in chosen if have < latest.connectors_since(name)]
            return SetState(
                **common,
                weights={name: form("weights", name) for name in chosen if name not in whole},
                bundles={name: form("bundle", name) for name in whole} or None,
            )
        if len(chosen) != 1:
            raise BadMessageError(
                ErrorCode.UNKNOWN_ID,
                f"policy_ids: an ONNX file holds one policy, expected one of {known[:20]}; name it",
            )
        return SetState(weights_seq_no=number, onnx_file=form("onnx", chosen[0]))

    def _send_policies(self, request: GetPolicies, responder: Responder) -> None:
        state, name, sessions = self.state, request.episode_id, self._sessions
        self._check_agents(request)
        env_id, policies = f"{state.token}/{name}", dict[str, str]()
        if request.training_enabled:
            env_id, policies = sessions.ingest.announce(state, name, request.agent_ids)
        try:
            for agent in request.agent_ids:
                if agent not in policies:
                    policies[agent] = sessions.latest.policy_for(env_id, agent)
        except MenvError:
            raise
        except Exception as error:
            # An error of the user's policy_mapping_fn; `train()` raises it.
            sessions.broker.fail(error)
            raise BadMessageError(
                ErrorCode.INTERNAL,
                "policy_mapping_fn: raised an error, expected a policy; see the server's report",
            ) from error
        responder.send(Policies(policy_ids={agent: policies[agent] for agent in request.agent_ids}))

    def _check_agents(self, request: GetPolicies) -> None:
        if len(request.agent_ids) > self._sessions.limits.max_agents:
            raise BadMessageError(
                ErrorCode.TOO_MANY, f"GET_POLICIES.agent_ids: {len(request.agent_ids)} agents are too many"
            )
        for agent in request.agent_ids:
            if self._sessions.ioctx.multi_agent and self._sessions.ingest.spaces_of(agent) is None:
                raise BadMessageError(
                    ErrorCode.UNKNOWN_ID,
                    f"GET_POLICIES.agent_ids: no agent {agent[:40]!r}, expected one of the environment's",
                )


def _refusal(error: Exception) -> BadMessageError:
    """Return the answer to a request that raised an error; an error that is none of menv's is a bug and reported."""
    if isinstance(error, BadMessageError):
        return error
    if isinstance(error, MenvError):
        code = ErrorCode.STOPPING if isinstance(error, CallOrderError) else ErrorCode.UNKNOWN_ID
        return BadMessageError(ErrorCode.WRONG_ORDER if isinstance(error, EpisodeError) else code, str(error))
    asyncio.get_running_loop().call_exception_handler({"message": "session", "exception": error})
    return BadMessageError(
        ErrorCode.INTERNAL, "message: the server failed, expected an answer; see the server's report"
    )


_HANDLERS: dict[type[Request], Callable[..., Work | None]] = {
    Ping: Session._ping,
    GetConfig: Session._greet,
    GetState: Session._send_state,
    Episodes: Session._take_episodes,
    EpisodesAndGetState: Session._take_episodes_first,
    GetPolicies: Session._send_policies,
    StartEpisode: Session._start,
    **dict.fromkeys((LogAction, LogReturns, EndEpisode), Session._step),
}
"""The methods that handle requests; a coroutine does what takes long."""


_log = logging.getLogger("menv.serving")

_MAX_AWAY = 1_000  # clients without a connection
_MAX_TOLD = 20
"""Reasons that are logged as warnings; peers choose the names in them."""


class ServerSessions:
    """Opens sessions; the `Handler` of a server.

    Attributes:
        config: Fields of SET_CONFIG, complete once there is an algorithm.
        retired: Policies that were removed, which some clients may still have.
        states: Clients by token.
    """

    def __init__(
        self,
        broker: EpisodeBroker,
        ioctx: InputContext,
        limits: Limits,
        access: Access,
        tasks: SamplerTaskQueue,
        return_s: float,
    ) -> None:
        self.broker = broker
        self.ioctx = ioctx
        self.limits = limits
        self.access = access
        self.tasks = tasks
        self.return_s = return_s
        # Decisions of the sampler's thread since the last `send_decisions`.
        self._decisions: deque[Decision] = deque()
        # Number of actions sent since the last `latency`, and the sum and maximum of their seconds.
        self._waited = (0, 0.0, 0.0)
        self.action_requests = ActionRequestHandler(
            broker, ioctx, limits, self._decisions.append, self.refuse
        )
        self.ingest = EpisodeIngest(broker, ioctx, limits)
        self.scheduler = CooperativeScheduler()
        self._agent_spaces = action_spaces_json(ioctx)
        self.config: dict[str, Any] = {"env_steps_per_sample": 1, "force_on_policy": True}
        self.trainer: Trainer | None = None
        self._expected = False
        self.retired: frozenset[str] = frozenset()
        self.states: dict[str, ClientState] = {}
        self.connected: set[Session] = set()
        self.figures = ServerMetrics(lambda: len(self.connected), lambda: broker.open_episodes)
        self.backlog = ByteBudget()
        self._told: set[str] = set()

    def set_policies(self, described: dict[str, Any]) -> None:
        """Replace the policies that SET_CONFIG describes. Called in the sampler's thread."""
        self.retired = (self.retired | self.config.get("policies", {}).keys()) - described.keys()
        self.config = {**self.config, "policies": described}

    @property
    def latest(self) -> PublishedPolicies:
        assert self.trainer is not None
        return self.trainer.latest

    def open(self, peer: Peer, token: str | None) -> Session:
        if not self._expected and self.trainer is not None:
            self._expected = True
            self.tasks.prepare(self.latest.expect_clients)
        session = Session(self, peer, admitted=token is not None or self.access.token is None)
        self.connected.add(session)
        _log.info("%s client %s connected", peer.transport, peer.address)
        return session

    def refused(self, why: str) -> bytes:
        self.action_requests.flush()
        word, _, sentence = why.partition(": ")
        code = ErrorCode(word) if word in set(ErrorCode) else ErrorCode.NOT_ALLOWED
        self.count_refusal(code, sentence or why)
        return encode(Error(code=code, message=sentence or why), WireFormat.JSON)

    def count_refusal(self, code: str, why: str) -> None:
        """Count and log a refused message or connection."""
        self.figures.refusals[str(code)] += 1
        _log.info("refused, %s: %s", code, why)
        if code == ErrorCode.NOT_ALLOWED and why not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(why)
            _log.warning("a client was refused, which is said once: %s", why)

    def metrics(self) -> bytes:
        return self.figures.text()

    def spaces(self) -> dict[str, Any]:
        """Return the fields of SET_CONFIG that describe the spaces."""
        if self.ioctx.multi_agent:
            return self._agent_spaces
        observation, action = self.ioctx.spaces_of(SINGLE_AGENT)
        if observation is None or action is None:
            return {}
        return {"observation_space": space_to_json(observation), "action_space": space_to_json(action)}

    def refuse(self, error: Exception, responder: Responder, seq: int | None = None) -> None:
        """Answer a request that is refused."""
        refusal = _refusal(error)
        if refusal.code is not ErrorCode.STOPPING:
            self.count_refusal(refusal.code, refusal.text)
        responder.refuse(refusal, seq)
        if refusal.code in (ErrorCode.NOT_ALLOWED, ErrorCode.INTERNAL):
            responder.close()

    def send_decisions(self, post: Callable[[Callable[[], object]], None]) -> None:
        """Have all decisions sent by the event loop; called in the sampler's thread."""
        if self._decisions:
            decisions = [self._decisions.popleft() for _ in range(len(self._decisions))]
            post(partial(self._send, decisions, self.broker.weights_seq_no))

    def _send(self, decisions: list[Decision], number: int) -> None:
        replies: list[tuple[Reply, bytes]] = []
        waited: list[float] = []
        now = time.monotonic()
        for decision in decisions:
            if callable(decision):
                decision()
                continue
            requests, decided = decision
            messages = [request.message for request in requests]
            waited += [now - request.since for request in requests]
            if isinstance(decided, BaseException):
                code, why = str(ErrorCode.STOPPING), str(decided)
                answers: list[Answer] = [Error(code=code, message=why, seq=one.seq) for one in messages]
            else:
                answers = [
                    Action(episode_id=one.episode_id, action=action, weights_seq_no=number, seq=one.seq)
                    for one, action in zip(messages, self._actions(decided), strict=True)
                ]
            for request, answer in zip(requests, answers, strict=True):
                episode = request.episode
                episode.answer = answer
                waiting, episode.waiting = episode.waiting, []
                for responder in waiting:
                    replies.append((responder.reply, responder.body(answer)))
        count, total, most = self._waited
        self._waited = count + len(waited), total + sum(waited), max([most, *waited])
        # Encode everything first, then send: a peer that waits in between falls asleep, and waking it is expensive.
        for reply, body in replies:
            reply(body)
        self.figures.latency.add(waited)

    def latency(self) -> dict[str, float | None]:
        """Return milliseconds from receiving a request to sending its action, since the last call."""
        (count, total, most), self._waited = self._waited, (0, 0.0, 0.0)
        return {
            "latency_ms_mean": 1e3 * total / count if count else None,
            "latency_ms_max": 1e3 * most if count else None,
        }

    def _actions(self, decided: Any) -> Sequence[Any]:
        if isinstance(decided, Mapping):
            decided = [dict(decided) if self.ioctx.multi_agent else decided[SINGLE_AGENT]]
        if type(decided[0]) is int:
            # All are integers then.
            return decided  # type: ignore[no-any-return]
        # An encoder hook for numpy types is much slower.
        return [
            action.tolist() if isinstance(action, np.generic | np.ndarray) else action for action in decided
        ]

    def lost(self, session: Session) -> None:
        """Handle the end of a connection; the client loses its episodes unless it may reconnect."""
        self.action_requests.flush()
        self.connected.discard(session)
        _log.info("%s client %s left", session.peer.transport, session.peer.address)
        self.tasks.drop(session)
        state = session.state
        state.connected -= 1
        if state.connected <= 0:
            state.lost_at = time.monotonic()
            if state.extended:
                self._make_room()
                asyncio.get_running_loop().call_later(self.return_s, self._give_up_if_away, state.token)
            else:
                self.give_up(state, "the connection of its client ended")

    def resume(self, state: ClientState, before: ClientState) -> ClientState:
        """Return the state with which a connection continues, and lose the episodes begun over it alone."""
        state.connected -= 1
        if state.connected <= 0:
            self.give_up(state, "its client went on with another session")
        before.connected += 1
        return before

    def give_up(self, state: ClientState, why: str) -> None:
        """Lose the episodes of a client."""
        self.states.pop(state.token, None)
        self.broker.lose(state.broker_ids(), why)
        state.clear()

    def _make_room(self) -> None:
        away = [state for state in self.states.values() if state.connected <= 0]
        if len(away) > _MAX_AWAY:
            self.give_up(
                min(away, key=lambda state: state.lost_at),
                f"more than {_MAX_AWAY} clients are without a connection",
            )

    def _give_up_if_away(self, token: str) -> None:
        # Looked up by token, so that the timer does not keep the state of a lost client in memory.
        state = self.states.get(token)
        if state is not None and state.connected <= 0 and time.monotonic() - state.lost_at >= self.return_s:
            self.give_up(state, f"its client did not come back within {self.return_s:g} s")


Then = Callable[[MenvError | None], None]
Result = TypeVar("Result")


class SamplerTaskQueue:
    """A thread that encodes weights for clients, and the requests that wait until the weights change.

    `wake` lets a sampler that waits for clients check again. `post` schedules a call in the event loop.
    """

    def __init__(self, wake: Callable[[], None], post: Callable[[Callable[[], object]], None]) -> None:
        self.wake = wake
        self._post = post
        self._executor = ThreadPoolExecutor(1, "menv-serving-weights")
        self._later: dict[object, list[Then]] = {}
        self._over: MenvError | None = None

    def prepare(self, do: Callable[[], object]) -> None:
        """Run `do` in the thread, before a client requests what it makes. From any thread."""
        with contextlib.suppress(RuntimeError):  # The queue was stopped, perhaps just now.
            self._executor.submit(self._run, do)

    async def make(self, do: Callable[[], Result]) -> Result:
        """Return what `do` returns in the thread; called in the event loop."""
        try:
            return await asyncio.wrap_future(self._executor.submit(do))
        except (RuntimeError, asyncio.CancelledError):
            if self._over is None:
                raise
            raise self._over from None

    def add_later(self, client: object, then: Then) -> None:
        """Call `then(None)` after the next change of the weights; `client` may wait several times."""
        self._later.setdefault(client, []).append(then)
        if self._over is not None:
            self.weights_changed(self._over)
        self.wake()

    def drop(self, client: object) -> None:
        self._later.pop(client, None)
        self.wake()

    @property
    def waiting(self) -> int:
        """Number of clients that wait for new weights."""
        return len(self._later)

    def waits(self, client: object) -> bool:
        return client in self._later

    def stop(self, error: MenvError) -> None:
        """Answer all requests with an error, now and later. From any thread."""
        self._over = error
        self._executor.shutdown(cancel_futures=True)
        self.weights_changed(error)

    def weights_changed(self, error: MenvError | None = None, keep: Collection[object] = ()) -> None:
        """Answer the clients that wait now, except those to `keep`, and none that comes meanwhile. From any thread."""
        later = {client: self._later.pop(client, []) for client in list(self._later) if client not in keep}
        if later:
            self._post(lambda: [then(error) for thens in later.values() for then in thens])

    def _run(self, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:
            self._post(partial(_raise, error))


def _raise(error: Exception) -> None:
    raise error


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_UPDATES = (0, 1, 2, 5, 10, 50)


class Histogram:
    """Counts values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative count of each bound, as text, and the sum of all values."""
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True)), self._sum


class ServerMetrics:
    """The figures that `GET /metrics` returns for Prometheus."""

    def __init__(self, clients: Callable[[], int], open_episodes: Callable[[], int]) -> None:
        self._clients, self._open_episodes = clients, open_episodes
        self.latency = Histogram(_SECONDS)
        self.staleness = Histogram(_UPDATES)
        self.refusals: Counter[str] = Counter()

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format. Needs the package prometheus_client."""
        from prometheus_client import CollectorRegistry, generate_latest

        # Not the global registry: a process may run several servers.
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics; called by Prometheus' registry."""
        from prometheus_client import core

        yield core.GaugeMetricFamily("menv_clients", "Connected clients.", self._clients())
        yield core.GaugeMetricFamily("menv_open_episodes", "Open episodes.", self._open_episodes())
        buckets, total = self.latency.buckets()
        yield core.CounterMetricFamily("menv_actions", "Actions sent.", buckets[-1][1])
        yield core.HistogramMetricFamily(
            "menv_action_latency_seconds", "From receiving a request to sending its action.", buckets, total
        )
        buckets, total = self.staleness.buckets()
        yield core.HistogramMetricFamily(
            "menv_staleness_updates", "Updates by which the weights of episodes are behind.", buckets, total
        )
        refusals = core.CounterMetricFamily(
            "menv_refusals", "Refused messages and connections.", labels=["code"]
        )
        for code, count in sorted(self.refusals.items()):
            refusals.add_metric([code], count)
        yield refusals
