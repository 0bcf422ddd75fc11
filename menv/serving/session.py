"""The sessions of a server: one for each connection, whatever transport carries it.

A transport hands bodies to `Session.received`, which handles them one after the other. `ServerSessions` keeps the
state of clients that may reconnect, and sends them the sampler's decisions. Everything but `send_decisions` runs in the
event loop, or in the thread that has borrowed it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

from menv.adapters.episode_broker import ByteBudget, EpisodeBroker
from menv.base_env import SINGLE_AGENT
from menv.env_context import InputContext
from menv.errors import CallOrderError, EpisodeError, MenvError
from menv.serving.action_requests import ActionRequestHandler, ClientState, OpenEpisode, Responder
from menv.serving.episodes import EpisodeIngest
from menv.serving.limits import Limits
from menv.serving.protocol import (
    EXTENSION,
    Action,
    Answer,
    BadMessageError,
    EpisodeRequest,
    Episodes,
    EpisodesAndGetState,
    Error,
    ErrorCode,
    GetAction,
    GetConfig,
    GetPolicies,
    GetState,
    LogAction,
    Ok,
    Ping,
    Policies,
    Pong,
    Request,
    SetConfig,
    SetState,
    StartEpisode,
    decode,
    encode,
)
from menv.serving.transports.access import Access
from menv.serving.transports.server import Peer, Reply
from menv.serving.value_readers import check_num_agents, known_spaces, spaces_json

Close = Callable[[], None]
Work = Coroutine[Any, Any, None]
Decision = tuple[OpenEpisode, GetAction | LogAction, float, Mapping[Any, Any] | BaseException]
"""See `menv.serving.action_requests.Decided`."""

NO_TOKEN = "GET_CONFIG.token: is missing, expected the server's token first (menv serve --token-file)"
_SLICE_S = 0.001
"""Seconds after which other peers are served in the middle of a long message."""
_REST = 3
"""Where others are connected, a peer's next body waits up to so many times the duration of its last ones."""
_SHORT = 10_000
"""Bytes of episodes that are read at once."""

if TYPE_CHECKING:
    from menv.serving.policy_server import PublishedPolicies, Trainer


STILL_PLAYING_S = 5.0  # after the last EPISODES
_MAX_PENDING = 64


class Session:
    """The state machine of one connection: it handles the bodies in their order and checks which message may come when.

    A body that takes long is a task. Transports await it before they hand over the next body; over HTTP another
    connection of the client may bring one, which waits for the task.

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
        self._sessions = sessions
        self._action_requests = sessions.action_requests
        self._always_reply = peer.transport == "http"
        # Seconds spent on its bodies since then.
        self._spent, self._since = 0.0, time.perf_counter()
        # The tasks under way, each of which waits for the one before.
        self._tasks: list[asyncio.Task[None]] = []

    def received(self, body: bytes, reply: Reply, close: Close) -> asyncio.Future[None] | None:
        responder = Responder(reply, close, self._always_reply)
        began = time.perf_counter()
        work = self._after(self._tasks[-1], body, responder) if self._tasks else self._handle(body, responder)
        rest = self._rest(began)
        if work is None and rest > 0:
            work = asyncio.sleep(rest)
        if work is None:
            return None
        task = asyncio.get_running_loop().create_task(self._finish(work, responder))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
        # A task that is canceled before it begins has not awaited it.
        task.add_done_callback(lambda _: work.close())
        return task

    def _rest(self, began: float) -> float:
        """Return the seconds that others are served before the next body, so that this peer gets a quarter of them."""
        now = time.perf_counter()
        self._spent += now - began
        if self._spent < _SLICE_S:
            return 0.0
        rest = self._sessions.rest * self._spent - (now - self._since - self._spent)
        self._spent, self._since = 0.0, now + max(0.0, rest)
        return rest

    def _handle(self, body: bytes, responder: Responder) -> Work | None:
        """Decode and handle one body, and return the work that is left, if any."""
        seq = None
        try:
            request = decode(body)
            seq = getattr(request, "seq", None)
            if not self.admitted and type(request) not in (Ping, GetConfig):
                raise BadMessageError(ErrorCode.NOT_ALLOWED, NO_TOKEN)
            return _HANDLERS[type(request)](self, request, responder)
        except Exception as error:
            self._sessions.refuse(error, responder, seq)
        return None

    async def _after(self, task: asyncio.Task[None], body: bytes, responder: Responder) -> None:
        await asyncio.wait([task])
        work = self._handle(body, responder)
        if work is not None:
            await work

    async def _finish(self, work: Work, responder: Responder) -> None:
        """Do the work of a request; an error is its answer."""
        try:
            await work
        except Exception as error:
            self._sessions.refuse(error, responder)

    def lost(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._sessions.lost(self)

    def _step(self, request: EpisodeRequest, responder: Responder) -> None:
        self._action_requests.step(self.state, request, responder)

    def _greet(self, request: GetConfig, responder: Responder) -> None:
        sessions = self._sessions
        if not self.admitted and not sessions.access.admits(request.token):
            raise BadMessageError(
                ErrorCode.NOT_ALLOWED,
                "GET_CONFIG.token: is not the token of this server, expected the one in its --token-file",
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
        if request.client is not None:
            _log.info("%s client %s is %r", self.peer.transport, self.peer.address, request.client)
        policies = list(config.get("policies", {}))
        self.state.only_policy = policies[0] if len(policies) == 1 else None
        sessions.states[self.state.token] = self.state
        more = {
            "extensions": [EXTENSION],
            "session": self.state.token,
            "multi_agent": sessions.ioctx.multi_agent,
            "policies": config.get("policies", {}),
            "explore": config.get("explore"),
        }
        responder.send(SetConfig(**plain, **more, **spaces_json(sessions.ioctx)))

    async def _take_episodes(self, request: Episodes, responder: Responder) -> None:
        await self._ingest(request, responder)
        responder.nothing()

    async def _take_episodes_first(self, request: EpisodesAndGetState, responder: Responder) -> None:
        sessions = self._sessions
        sessions.check_waiting(self)
        await self._ingest(request, responder)
        # Later messages are handled meanwhile.
        waiting = self._finish(
            self._send_next_state(request, responder, sessions.next_weights(self)), responder
        )
        asyncio.get_running_loop().create_task(waiting)
        # Look again then: other clients may have stopped playing.
        asyncio.get_running_loop().call_later(STILL_PLAYING_S, sessions.broker.wake)

    async def _send_next_state(
        self, request: EpisodesAndGetState, responder: Responder, changed: asyncio.Future[None]
    ) -> None:
        await changed
        await self._send_state(request, responder)

    async def _ingest(self, request: Episodes, responder: Responder) -> None:
        sessions = self._sessions
        taking = sessions.ingest.take(self.state, request)
        if sum(len(memoryview(raw)) for raw in request.episodes) <= _SHORT:
            for _ in taking:
                pass
        else:
            async with sessions.turn:
                await self._take_in_slices(taking)
        self.played_at = time.monotonic()

    async def _take_in_slices(self, taking: Iterator[None]) -> None:
        began = time.perf_counter()
        until = began + _SLICE_S
        try:
            for _ in taking:
                if time.perf_counter() > until:
                    await asyncio.sleep(0)
                    until = time.perf_counter() + _SLICE_S
        finally:
            # Clients that send without a pause leave most of the time to the others.
            await asyncio.sleep(self._sessions.rest * (time.perf_counter() - began))

    async def _send_state(self, request: GetState | EpisodesAndGetState, responder: Responder) -> None:
        """Answer with the latest weights, which another thread encodes."""
        state = await asyncio.to_thread(self._state_of, request, self._sessions.latest)
        self.state.weights_seq_no = state.weights_seq_no
        responder.send(state)

    def _state_of(self, request: GetState | EpisodesAndGetState, latest: PublishedPolicies) -> SetState:
        """Return SET_STATE. Called in the thread that encodes weights."""
        number, known = latest.weights_seq_no, list(latest.policies)
        chosen = known if request.policy_ids is None else request.policy_ids
        # A client may still have policies that were removed; they are left out.
        gone = self._sessions.retired if request.have is not None else ()
        chosen = [name for name in chosen if name not in gone]
        for name in chosen:
            if name not in known:
                raise BadMessageError(
                    ErrorCode.UNKNOWN_ID, f"policy_ids: no policy {name[:40]!r}, expected one of {known[:20]}"
                )
        ask = self.state.only_policy is not None and known != [self.state.only_policy]
        common: dict[str, Any] = {"weights_seq_no": number, "ask_policies": ask}
        if request.have == number:
            return SetState(**common)
        if request.form == "bundle":
            return SetState(**common, bundles={name: latest.form("bundle", name) for name in chosen})
        if request.form == "weights":
            # Weights come without connectors, so a policy whose connectors changed since is sent as a bundle.
            # Without `have` the client may have no policy to load weights into.
            have = number if request.have is None else request.have
            whole = [name for name in chosen if have < latest.connectors_since(name)]
            return SetState(
                **common,
                weights={name: latest.form("weights", name) for name in chosen if name not in whole},
                bundles={name: latest.form("bundle", name) for name in whole} or None,
            )
        if len(chosen) != 1:
            raise BadMessageError(
                ErrorCode.UNKNOWN_ID,
                f"policy_ids: an ONNX file holds one policy, expected one of {known[:20]}; name it",
            )
        return SetState(weights_seq_no=number, onnx_file=latest.form("onnx", chosen[0]))

    def _send_policies(self, request: GetPolicies, responder: Responder) -> None:
        state, name, sessions = self.state, request.episode_id, self._sessions
        check_num_agents(request.agent_ids, sessions.limits, "GET_POLICIES.agent_ids")
        for agent in request.agent_ids if sessions.ioctx.multi_agent else ():
            known_spaces(sessions.ingest.spaces_of, agent, "GET_POLICIES.agent_ids")
        env_id, policies = f"{state.token}/{name}", dict[str, str]()
        if request.training_enabled is not False:
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


def _refusal(error: Exception) -> BadMessageError:
    """Return the answer to a request that raised an error; other errors than menv's are bugs, which are reported."""
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
    Ping: lambda session, request, responder: responder.send(Pong()),
    GetConfig: Session._greet,
    GetState: Session._send_state,
    Episodes: Session._take_episodes,
    EpisodesAndGetState: Session._take_episodes_first,
    GetPolicies: Session._send_policies,
    StartEpisode: lambda session, *args: session._action_requests.start(session.state, *args),
    **dict.fromkeys(get_args(EpisodeRequest), Session._step),
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
        post: Callable[[Callable[[], object]], None],
        return_s: float,
    ) -> None:
        self.broker = broker
        self.ioctx = ioctx
        self.limits = limits
        self.access = access
        self.return_s = return_s
        self._post = post
        # Requests that wait for the next weights; and the error of later ones, once the server stops.
        self._waiting: dict[Session, list[asyncio.Future[None]]] = {}
        self._over: MenvError | None = None
        # Decisions of the sampler's thread since the last `send_decisions`.
        self._decisions: deque[Decision] = deque()
        # Number of actions sent and the sum of their seconds, also at the last `latency`; the most seconds since then.
        self._waited = self._reported = (0, 0.0)
        self._longest = 0.0
        self.action_requests = ActionRequestHandler(
            broker, ioctx, limits, lambda *decision: self._decisions.append(decision)
        )
        self.ingest = EpisodeIngest(broker, ioctx, limits)
        # Long work is done one after the other.
        self.turn = asyncio.Lock()
        self.config: dict[str, Any] = {"env_steps_per_sample": 1, "force_on_policy": True}
        self.trainer: Trainer | None = None
        self.retired: frozenset[str] = frozenset()
        self.states: dict[str, ClientState] = {}
        self.connected: set[Session] = set()
        self.num_refused = 0
        self.backlog = ByteBudget()
        self._told: set[str] = set()

    @property
    def rest(self) -> int:
        """How many times as long as a peer's bodies others are served before its next ones."""
        return _REST if len(self.connected) > 1 else 0

    def set_policies(self, described: dict[str, Any]) -> None:
        """Replace the policies that SET_CONFIG describes. Called in the sampler's thread."""
        self.retired = (self.retired | self.config.get("policies", {}).keys()) - described.keys()
        self.config = {**self.config, "policies": described}

    @property
    def latest(self) -> PublishedPolicies:
        assert self.trainer is not None
        return self.trainer.latest

    def open(self, peer: Peer, token: str | None) -> Session:
        session = Session(self, peer, admitted=token is not None or self.access.token is None)
        self.connected.add(session)
        _log.info("%s client %s connected", peer.transport, peer.address)
        return session

    def refused(self, why: str) -> bytes:
        word, _, sentence = why.partition(": ")
        code = ErrorCode(word) if word in set(ErrorCode) else ErrorCode.NOT_ALLOWED
        self.count_refusal(code, sentence or why)
        return encode(Error(code=code, message=sentence or why))

    def count_refusal(self, code: str, why: str) -> None:
        """Count and log a refused message or connection."""
        self.num_refused += 1
        _log.info("refused, %s: %s", code, why)
        if code == ErrorCode.NOT_ALLOWED and why not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(why)
            _log.warning("a client was refused (logged once): %s", why)

    def refuse(self, error: Exception, responder: Responder, seq: int | None = None) -> None:
        """Answer a request that is refused."""
        refusal = _refusal(error)
        if refusal.code is not ErrorCode.STOPPING:
            self.count_refusal(refusal.code, refusal.text)
        responder.refuse(refusal, seq)
        if refusal.code in (ErrorCode.NOT_ALLOWED, ErrorCode.INTERNAL):
            responder.close()

    def check_waiting(self, session: Session) -> None:
        """Raise `BadMessageError` if too many requests of a connection wait for the next weights."""
        count = len(self._waiting.get(session, ()))
        if count >= _MAX_PENDING:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"message: {count} requests for the next weights wait for their answers, expected at most "
                f"{_MAX_PENDING} on one connection; wait for these first",
            )

    def next_weights(self, session: Session) -> asyncio.Future[None]:
        """Return a future that is done when the weights change, or the server stops."""
        changed = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, []).append(changed)
        if self._over is not None:
            self.weights_changed()
        self.broker.wake()
        return changed

    def all_wait_for_weights(self) -> bool:
        """Return whether all clients with local inference wait for weights, so that none sends more steps."""
        since = time.monotonic() - STILL_PLAYING_S
        return bool(self._waiting) and not any(
            one.played_at > since and one not in self._waiting for one in list(self.connected)
        )

    def weights_changed(self, keep: Collection[Session] = ()) -> None:
        """Answer the clients that wait now, except those to `keep`, and none that comes meanwhile. From any thread."""
        waiting = [self._waiting.pop(session, []) for session in list(self._waiting) if session not in keep]
        if waiting:
            self._post(partial(_finish_all, waiting, self._over))

    def stop(self, error: MenvError) -> None:
        """Answer the clients that wait with an error, now and later. From any thread."""
        self._over = error
        self.weights_changed()

    def send_decisions(self) -> None:
        """Have all decisions sent by the event loop; called in the sampler's thread."""
        if self._decisions:
            decisions = [self._decisions.popleft() for _ in range(len(self._decisions))]
            self._post(partial(self._send, decisions, self.broker.weights_seq_no))

    def _send(self, decisions: list[Decision], number: int) -> None:
        replies: list[tuple[Reply, bytes]] = []
        now = time.monotonic()
        waited = [now - since for _, _, since, _ in decisions]
        for episode, message, _, decided in decisions:
            answer: Answer
            if isinstance(decided, BaseException):
                answer = Error(code=str(ErrorCode.STOPPING), message=str(decided), seq=message.seq)
            elif isinstance(message, LogAction):
                answer = Ok(seq=message.seq)
            else:
                answer = Action(
                    episode_id=message.episode_id,
                    action=decided if self.ioctx.multi_agent else decided[SINGLE_AGENT],
                    weights_seq_no=number,
                    seq=message.seq,
                )
            episode.answer = answer
            waiting, episode.waiting = episode.waiting, []
            body = encode(answer)
            replies += [(responder.reply, body) for responder in waiting]
        self._waited = self._waited[0] + len(waited), self._waited[1] + sum(waited)
        self._longest = max([self._longest, *waited])
        # Encode everything first, then send: a peer that waits in between falls asleep, and waking it is expensive.
        for reply, body in replies:
            reply(body)

    def latency(self) -> dict[str, float | None]:
        """Return milliseconds from receiving a request to sending its action, since the last call."""
        count, total = (now - then for now, then in zip(self._waited, self._reported, strict=True))
        self._reported, most, self._longest = self._waited, self._longest, 0.0
        return {
            "latency_ms_mean": 1e3 * total / count if count else None,
            "latency_ms_max": 1e3 * most if count else None,
        }

    def metrics(self) -> str:
        """Return figures since the start in the text format of Prometheus."""
        figures = {
            "clients_connected": len(self.connected),
            "open_episodes": self.broker.open_episodes,
            "actions_total": self._waited[0],
            "action_latency_seconds_total": self._waited[1],
            "messages_refused_total": self.num_refused,
        }
        kinds = {True: "counter", False: "gauge"}
        return "".join(
            f"# TYPE menv_{name} {kinds[name.endswith('_total')]}\nmenv_{name} {value}\n"
            for name, value in figures.items()
        )

    def lost(self, session: Session) -> None:
        """Handle the end of a connection; the client loses its episodes unless it may reconnect."""
        self.connected.discard(session)
        _log.info("%s client %s left", session.peer.transport, session.peer.address)
        for changed in self._waiting.pop(session, []):
            changed.cancel()
        self.broker.wake()
        state = session.state
        state.connected -= 1
        if state.connected <= 0:
            state.lost_at = time.monotonic()
            if state.token in self.states:
                self._make_room()
                asyncio.get_running_loop().call_later(self.return_s, self._give_up_if_away, state.token)
            else:
                self.give_up(state, "the connection of its client ended")

    def resume(self, state: ClientState, before: ClientState) -> ClientState:
        """Return the state with which a connection continues, and lose the episodes begun over it alone."""
        state.connected -= 1
        if state.connected <= 0:
            self.give_up(state, "its client continued with another session")
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


def _finish_all(waiting: list[list[asyncio.Future[None]]], error: MenvError | None) -> None:
    for changed in chain.from_iterable(waiting):
        if not changed.done():
            changed.set_result(None) if error is None else changed.set_exception(error)
