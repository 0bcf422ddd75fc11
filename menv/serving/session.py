"""The session of one connection, whatever transport carries it.

A transport hands bodies to `Session.received` in the server's event loop. `MessageReader` decodes them one after the
other: short ones at once, requests for actions in batches, large ones in the body parser process. `Session` checks
which message is allowed when, and passes episodes on to `ActionRequestHandler` and `EpisodeIngest`.
"""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import Future, Task
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from menv.adapters.episode_channel import ByteBudget
from menv.errors import CallOrderError, MenvError
from menv.serving.client_state import ClientState, Responder
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat, wire_format_of
from menv.serving.episode_messages import WireEpisode
from menv.serving.protocol import (
    EXTENSION,
    EpisodeMessage,
    Episodes,
    EpisodesAndGetState,
    GetAction,
    GetConfig,
    GetPolicies,
    GetState,
    Ping,
    Policies,
    Pong,
    Request,
    SetConfig,
    SetState,
    StartEpisode,
    decode,
)
from menv.serving.trainer import PublishedPolicies
from menv.serving.transports.transport import Peer, Reply

if TYPE_CHECKING:
    from menv.serving.server_sessions import ServerSessions


Close = Callable[[], None]
Unread: TypeAlias = "tuple[MessageReader, bytes, Responder]"
"""A deferred body, with its reader and its responder."""

NO_TOKEN = "GET_CONFIG.token: is missing, expected the server's token first"
_SHORT = 2_000
"""Bodies of at most this many bytes are decoded at once, whatever they hold."""
_GET_ACTION = b"GET_ACTION"
MAX_DEFERRED = 512
"""Deferred bodies that are decoded in one batch."""


class MessageReader:
    """Decodes the bodies of one connection in their order.

    A body that takes long is waited for: `hold` is a task that transports await before they hand over the next body.
    Short bodies that look like GET_ACTION are deferred to the batcher, which decodes many at once.
    """

    def __init__(self, session: Session, sessions: ServerSessions, always_reply: bool) -> None:
        self.session = session
        self._batcher = sessions.action_requests.batcher
        self._deferred = self._batcher.deferred
        self._parsers = sessions.parsers
        self._scheduler = sessions.scheduler
        self._max_depth = sessions.limits.max_depth
        self._always_reply = always_reply
        self._short = min(_SHORT, self._parsers.longest_inline)
        # Work that takes longer. The following bodies wait for it.
        self.hold: Task[None] | None = None
        self._waiting: deque[tuple[bytes, Reply, Close]] = deque()
        self._last: Responder | None = None

    def received(self, body: bytes, reply: Reply, close: Close) -> Future[None] | None:
        """Take one body; see `SessionProtocol.received`."""
        if self.hold is None and len(body) <= self._short and body.find(_GET_ACTION) >= 0:
            wire_format = _FIRST_BYTES.get(body[0])
            if wire_format is not None and self.session.admitted:
                # The usual path: the reply goes the same way as the last one.
                last = self._last
                if last is None or last.reply is not reply or last.wire_format is not wire_format:
                    last = self._responder_of(reply, wire_format, close)
                deferred = self._deferred
                deferred.append((self, body, last))
                if len(deferred) == 1 or len(deferred) >= MAX_DEFERRED:
                    self._batcher.schedule_flush()
                return self.hold
        # Deferred bodies came before this one.
        self._batcher.flush()
        self.read(body, reply, close)
        return self.hold

    def read(self, body: bytes, reply: Reply, close: Close) -> None:
        """Decode one body on its own, after everything before it."""
        if self.hold is not None:
            self._waiting.append((body, reply, close))
        elif len(body) <= self._short:
            responder = self._responder_of(reply, _wire_format_of(body), close)
            try:
                request, _ = decode(body, self._max_depth)
            except BadMessageError as error:
                self.session.refuse(error, responder)
                return
            work = self.session.answer(request, responder)
            if work is not None:
                self._begin(work, close)
        else:
            self._begin(self._read_long(body, reply, close), close)

    def lost(self) -> None:
        """Drop bodies that are not decoded and work that is not finished."""
        self._waiting.clear()
        self._last = None
        if self.hold is not None:
            self.hold.cancel()

    def _responder_of(self, reply: Reply, wire_format: WireFormat, close: Close) -> Responder:
        """Return the responder for a body; a stream connection nearly always reuses the last one."""
        last = self._last
        if last is not None and last.reply is reply and last.wire_format is wire_format:
            return last
        responder = Responder(reply, wire_format, close, self._always_reply)
        # Over HTTP each request has its own reply callable, which ends with the response.
        self._last = None if self._always_reply else responder
        return responder

    def _begin(self, work: Coroutine[Any, Any, None], close: Close) -> None:
        self.hold = asyncio.get_running_loop().create_task(self._finish(work, close))

    async def _finish(self, work: Coroutine[Any, Any, None], close: Close) -> None:
        """Do the work of one body, then read the bodies that came meanwhile."""
        try:
            await work
            while self._waiting:
                body, reply, close = self._waiting.popleft()
                await self._read_long(body, reply, close)
        except Exception as error:
            close_after(error, close)
        finally:
            self.hold = None

    async def _read_long(self, body: bytes, reply: Reply, close: Close) -> None:
        """Decode a body without holding up other peers: in their turn, or in the parser process."""
        wire_format = _wire_format_of(body)
        episodes = None
        try:
            if not self._parsers.takes(body):
                async with self._scheduler:
                    request, read_as = decode(body, self._max_depth)
            elif not self.session.admitted:
                raise BadMessageError(ErrorCode.NOT_ALLOWED, NO_TOKEN)
            else:
                request, episodes, read_as = await self._parsers.parse(body, self._max_depth)
        except BadMessageError as error:
            self.session.refuse(error, Responder(reply, wire_format, close))
            return
        responder = Responder(reply, read_as, close, self._always_reply, reply_format=wire_format)
        work = self.session.answer(request, responder, episodes)
        if work is not None:
            await work


_FIRST_BYTES = {ord("{"): WireFormat.JSON, **dict.fromkeys(range(0x80, 0x90), WireFormat.MSGPACK)}
"""Wire format by the first byte, for nearly all bodies."""


def close_after(error: Exception, close: Close) -> None:
    """A bug in the server costs the connection and is reported by the event loop."""
    close()
    asyncio.get_running_loop().call_exception_handler({"message": "session", "exception": error})


def _wire_format_of(body: bytes) -> WireFormat:
    try:
        return wire_format_of(body)
    except BadMessageError:
        return WireFormat.JSON


STILL_PLAYING_S = 5.0
"""A client counts as playing for this many seconds after its last EPISODES."""
_MAX_PENDING = 64


class Session:
    """The state machine of one connection.

    Attributes:
        admitted: Whether the peer has shown the token, or needs none.
        state: The client's state, which may outlive the connection.
        played_at: Time of the last EPISODES.
        received: Takes one body; see `SessionProtocol.received`.
    """

    def __init__(self, sessions: ServerSessions, peer: Peer, admitted: bool) -> None:
        self.peer = peer
        self.state = ClientState(ByteBudget(sessions.backlog))
        self.state.connected = 1
        self.played_at = -math.inf
        self._pending_replies = 0
        self._sessions = sessions
        self._action_requests = sessions.action_requests
        self.admitted = admitted
        self._reader = MessageReader(self, sessions, always_reply=peer.transport == "http")
        self.received = self._reader.received

    def answer(
        self, request: Request, responder: Responder, episodes: Sequence[WireEpisode] | None = None
    ) -> Coroutine[Any, Any, None] | None:
        """Handle a decoded request, and return the work that is left, if any.

        `episodes` are its episodes if the parser process has read them.
        """
        action_requests = self._action_requests
        if type(request) is GetAction and self.admitted:
            action_requests.batcher.add(self.state, request, responder)
            return None
        try:
            action_requests.flush()
            if self.admitted and isinstance(request, Episodes):
                self._sessions.ingest.check_allowed(request)
                if isinstance(request, EpisodesAndGetState):
                    self._check_pending()
                return self._take_episodes(request, responder, episodes)
            self._handle(request, responder)
        except (BadMessageError, CallOrderError) as error:
            action_requests.flush()
            self._sessions.refuse(error, responder, getattr(request, "seq", None))
        return None

    def refuse(self, error: BadMessageError, responder: Responder) -> None:
        """Answer a body that is not a request."""
        self._sessions.action_requests.flush()
        self._sessions.count_refusal(error.code, error.text)
        responder.refuse(error)
        if error.code in (ErrorCode.NOT_ALLOWED, ErrorCode.INTERNAL):
            responder.close()

    def lost(self) -> None:
        """Handle the end of the connection; see `SessionProtocol.lost`."""
        self._sessions.action_requests.flush()
        self._reader.lost()
        self._sessions.lost(self)

    def _handle(self, request: Request, responder: Responder) -> None:
        if not self.admitted and type(request) not in (Ping, GetConfig):
            raise BadMessageError(ErrorCode.NOT_ALLOWED, NO_TOKEN)
        _HANDLERS.get(type(request), Session._step)(self, request, responder)

    def _ping(self, _: Ping, responder: Responder) -> None:
        responder.send(Pong())

    def _start(self, request: StartEpisode, responder: Responder) -> None:
        self._sessions.action_requests.start(self.state, request, responder)

    def _step(self, request: EpisodeMessage, responder: Responder) -> None:
        self._sessions.action_requests.step(self.state, request, responder)

    def _greet(self, request: GetConfig, responder: Responder) -> None:
        sessions = self._sessions
        if not self.admitted and not sessions.access.admits(request.token):
            raise BadMessageError(
                ErrorCode.NOT_ALLOWED, "GET_CONFIG.token: is not the server's, expected that"
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

    async def _take_episodes(
        self, request: Episodes, responder: Responder, episodes: Sequence[WireEpisode] | None
    ) -> None:
        sessions, state = self._sessions, self.state
        try:
            await sessions.scheduler.run(
                sessions.ingest.take(state, request, responder.wire_format, episodes)
            )
            self.played_at = time.monotonic()
            number = state.weights_seq_no if request.weights_seq_no is None else request.weights_seq_no
            if number is not None:
                sessions.figures.staleness.add([max(0, sessions.broker.weights_seq_no - number)])
            if not isinstance(request, EpisodesAndGetState):
                responder.nothing()
                return
            self._check_pending()
        except (BadMessageError, CallOrderError) as error:
            sessions.refuse(error, responder)
            return
        self._pending_replies += 1
        sessions.tasks.add_later(self, partial(self._weights_changed, request, responder))
        # Look again then: other clients may have stopped playing.
        asyncio.get_running_loop().call_later(STILL_PLAYING_S, sessions.tasks.wake)

    def _check_pending(self) -> None:
        if self._pending_replies >= _MAX_PENDING:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"message: {self._pending_replies} requests for weights or policies wait for their answers, expected "
                f"at most {_MAX_PENDING} on one connection; wait for these first",
            )

    def _weights_changed(
        self, request: EpisodesAndGetState, responder: Responder, error: MenvError | None
    ) -> None:
        self._pending_replies -= 1
        if error is None:
            self._send_state(request, responder)
        else:
            _refuse(error, responder, ErrorCode.UNKNOWN_ID)

    def _send_state(self, request: GetState | EpisodesAndGetState, responder: Responder) -> None:
        """Answer with the latest weights: at once if they are encoded already, else when a thread has encoded them."""
        latest = self._sessions.latest

        def send(result: SetState | MenvError) -> None:
            if isinstance(result, MenvError):
                _refuse(result, responder, ErrorCode.UNKNOWN_ID)
            else:
                self.state.weights_seq_no = result.weights_seq_no
                responder.send(result)

        def done(result: SetState | MenvError) -> None:
            self._pending_replies -= 1
            send(result)

        try:
            send(self._state_of(request, latest, latest.made))
        except KeyError:
            self._check_pending()
            self._pending_replies += 1
            self._sessions.tasks.add(lambda: self._state_of(request, latest, latest.make), done)

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
        policies = dict(state.chunks[name].policies) if name in state.chunks else {}
        try:
            for agent in request.agent_ids:
                if agent not in policies:
                    policies[agent] = sessions.latest.policy_for(f"{state.token}/{name}", agent)
        except MenvError as error:
            _refuse(error, responder, ErrorCode.UNKNOWN_ID)
            return
        except Exception as error:
            # An error of the user's policy_mapping_fn; `train()` raises it.
            sessions.broker.fail(error)
            raise BadMessageError(
                ErrorCode.INTERNAL,
                "policy_mapping_fn: raised an error, expected a policy; see the server's report",
            ) from error
        if request.training_enabled:
            sessions.ingest.announce(state, name, policies)
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


def _refuse(error: MenvError, responder: Responder, code: ErrorCode) -> None:
    responder.refuse(error if isinstance(error, BadMessageError) else BadMessageError(code, str(error)))


_HANDLERS: dict[type[Request], Callable[[Session, Any, Responder], None]] = {
    Ping: Session._ping,
    GetConfig: Session._greet,
    GetState: Session._send_state,
    GetPolicies: Session._send_policies,
    StartEpisode: Session._start,
}
