"""Session: the state machine of one connection, whatever carries it.

A transport hands it bodies in the server's loop. It knows which message may come when, and leaves what episodes mean
to `interactive` and `chunks`.
"""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from menv.adapters.episode_channel import ByteBudget
from menv.errors import CallOrderError, MenvError
from menv.serving.body_parser_pool import BodyParserPool, Outcome, ParseJob, translated
from menv.serving.client_state import ClientState, PublishedPolicies, Responder
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat, dialect_of
from menv.serving.protocol import (
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
    Turn,
    decode,
)
from menv.serving.transports.server import CooperativeScheduler, Then, Work
from menv.serving.transports.transport import Peer, Reply

if TYPE_CHECKING:
    from menv.serving.server_sessions import ServerSessions


# SEAM menv.serving.intake
# Intake: the bodies of one connection, read one after the other, here or by the translator.
#
# A session hands its bodies in and gets requests. What takes long is waited for: the next body of this
# connection comes
# after it, those of others meanwhile. What asks for an action, by the looks of it, is read with those of
# others. It knows
# no request.


Close = Callable[[], None]
Unread: TypeAlias = "tuple[MessageReader, bytes, Responder]"
"""A body, and where it came from: the intake and the way back."""

_SHORT = 2_000
"""Bytes that are read in no time, whatever they are."""
_ASKS = b"GET_ACTION"
MOST_PUT_OFF = 512
"""Bodies that are read in one go."""


class MessageHandler(Protocol):
    """Whose bodies they are."""

    admitted: bool
    """Whether large bodies are read at all, and questions with those of others."""
    state: ClientState
    """Whose questions they are."""

    def answer(self, request: Request, answerer: Responder, *, translated: bool = False) -> None:
        """Do what a request says; `translated` is that of `ChunkDesk.take`."""

    def refuse(self, error: BadMessageError, answerer: Responder) -> None:
        """Answer a body that holds no request."""


class DeferredBody(Protocol):
    """Where bodies wait for others that come with the same look at the sockets."""

    put_off: list[Unread]
    """Bodies whose questions are taken, or which their intakes read after all, before `ask` returns."""

    def begin(self) -> None:
        """Have that done soon; called with the first body that is put off, and when they are `MOST_PUT_OFF`."""

    def ask(self) -> None:
        """Have everything done that was put off."""


class MessageReader:
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
        listener: MessageHandler,
        questions: DeferredBody,
        translation: BodyParserPool,
        slices: CooperativeScheduler,
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
        self._job: ParseJob | None = None
        self._work: Work | None = None
        self.hold: Future[None] | None = None
        self._waiting: deque[tuple[bytes, Reply, Close]] = deque()
        self._last: Responder | None = None

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
            self.listener.refuse(error, Responder(reply, _dialect_of(body), close))
            return
        self._read_at_once(body, reply, close)

    def _read_at_once(self, body: bytes, reply: Reply, close: Close) -> None:
        try:
            request, dialect = decode(body, self._max_depth)
        except BadMessageError as error:
            self.listener.refuse(error, Responder(reply, _dialect_of(body), close))
            return
        self.listener.answer(request, self._answerer_of(reply, dialect, close), translated=False)

    def _answerer_of(self, reply: Reply, dialect: WireFormat, close: Close) -> Responder:
        """Return the way back for a body that was read here; over a stream it is nearly always the same."""
        last = self._last
        if last is not None and last.reply is reply and last.dialect is dialect:
            return last
        answerer = Responder(reply, dialect, close, self._always)
        # With a reply to each request there is another way back for each, which ends with it.
        self._last = None if self._always else answerer
        return answerer

    def _read_in_turn(self, body: bytes, reply: Reply, close: Close) -> None:
        """Read a body here that may take some milliseconds: those of several peers are not read in one go."""
        read: list[tuple[Request, WireFormat]] = []

        def work() -> Iterator[None]:
            read.append(decode(body, self._max_depth))
            yield

        def then(error: Exception | None) -> None:
            if isinstance(error, BadMessageError):
                self.listener.refuse(error, Responder(reply, _dialect_of(body), close))
            elif error is not None:
                raise error
            else:
                request, dialect = read[0]
                self.listener.answer(
                    request, Responder(reply, dialect, close, self._always), translated=False
                )

        self.run(work(), then, close)

    def _have_read(self, body: bytes, reply: Reply, close: Close) -> None:
        """Have a large body read elsewhere; what comes next waits.

        Raises:
            BadMessageError: It will not be.
        """
        dialect = dialect_of(body)
        if not self.listener.admitted:
            raise BadMessageError(
                ErrorCode.NOT_ALLOWED, "GET_CONFIG.token: is missing, expected the server's token first"
            )

        def then(outcome: Outcome) -> None:
            self._job = None
            self._go_on(lambda: self._was_read(outcome, body, reply, dialect, close), close)

        self._job = self._translation.add(body, then)
        self._wait()

    def _was_read(
        self, outcome: Outcome, body: bytes, reply: Reply, dialect: WireFormat, close: Close
    ) -> None:
        try:
            request, flat, read_as = translated(outcome, body, self._max_depth)
        except BadMessageError as error:
            self.listener.refuse(error, Responder(reply, dialect, close))
            return
        answerer = Responder(reply, read_as, close, self._always, answers_in=dialect)
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


_FIRST_BYTES = {ord("{"): WireFormat.JSON, **dict.fromkeys(range(0x80, 0x90), WireFormat.MSGPACK)}
"""How objects are written that begin so, as nearly all do."""


def _dialect_of(body: bytes) -> WireFormat:
    try:
        return dialect_of(body)
    except BadMessageError:
        return WireFormat.JSON


EXTENSION = "menv-1"
"""What a client asks for in GET_CONFIG that wants more than RLlink."""
STILL_PLAYING_S = 5.0
"""Seconds after which nobody waits any more for steps of a client that has brought some before."""
_MOST_ERRANDS = 64


class Session:
    """One connection.

    Args:
        reception: What all sessions share.
        peer: Who is there.
        admitted: Whether a token is not needed, or was shown already.

    Attributes:
        peer: As given.
        admitted: Whether a token is not needed, or was shown.
        state: What is remembered of the client.
        played_at: When it last brought episodes.
        received: Takes one body; see `Conversation.received`.
    """

    def __init__(self, reception: ServerSessions, peer: Peer, admitted: bool) -> None:
        self.peer = peer
        self.state = ClientState(ByteBudget(reception.backlog))
        self.state.connected = 1
        self.played_at = -math.inf
        self._errands = 0
        self._reception = reception
        self._interactive = reception.interactive
        self.admitted = admitted
        limits, over_http = reception.limits, peer.transport == "http"
        self._intake = MessageReader(
            self, reception.interactive.questions, reception.translation, reception.slices, limits.max_depth,
            over_http,
        )  # fmt: skip
        self.received = self._intake.received

    def answer(self, request: Request, answerer: Responder, *, translated: bool = False) -> None:
        """Do what a request says; see `menv.serving.session`."""
        if type(request) is GetAction and self.admitted:
            self._interactive.questions.take(self.state, request, answerer)
            return
        interactive = self._interactive
        try:
            interactive.settle()
            if self.admitted and isinstance(request, Episodes):
                self._take_episodes(request, answerer, translated)
            else:
                self._handle(request, answerer)
        except (BadMessageError, CallOrderError) as error:
            interactive.settle()
            self._fail(error, answerer, request)

    def refuse(self, error: BadMessageError, answerer: Responder) -> None:
        """Answer a body that holds no request."""
        self._reception.interactive.settle()
        self._reception.refusals += 1
        answerer.refuse(error)
        if error.code in (ErrorCode.NOT_ALLOWED, ErrorCode.INTERNAL):
            answerer.close()

    def lost(self) -> None:
        """The connection is gone; see `Conversation.lost`."""
        self._reception.interactive.settle()
        self._intake.lost()
        self._reception.lost(self)

    def _fail(self, error: BadMessageError | CallOrderError, answerer: Responder, request: Request) -> None:
        self._reception.refuse(error, answerer, getattr(request, "seq", None))

    def _handle(self, request: Request, answerer: Responder) -> None:
        if isinstance(request, Ping):
            answerer.send(Pong())
            return
        if isinstance(request, GetConfig):
            self._greet(request, answerer)
            return
        if not self.admitted:
            raise BadMessageError(
                ErrorCode.NOT_ALLOWED, "GET_CONFIG.token: is missing, expected the server's token first"
            )
        if isinstance(request, GetState):
            self._tell_state(request, answerer)
        elif isinstance(request, GetPolicies):
            self._tell_policies(request, answerer)
        elif isinstance(request, StartEpisode):
            self._reception.interactive.start(self.state, request, answerer)
        elif isinstance(request, Turn):
            self._reception.interactive.turn(self.state, request, answerer)

    def _greet(self, request: GetConfig, answerer: Responder) -> None:
        reception = self._reception
        if not self.admitted and not reception.access.admits(request.token):
            raise BadMessageError(
                ErrorCode.NOT_ALLOWED, "GET_CONFIG.token: is not the server's, expected that"
            )
        self.admitted = True
        facts = reception.facts
        plain = {name: facts[name] for name in ("env_steps_per_sample", "force_on_policy")}
        if EXTENSION not in (request.extensions or ()):
            answerer.send(SetConfig(**plain))
            return
        before = reception.states.get(request.session or "")
        if before is not None and before is not self.state:
            self.state = reception.take_up(self.state, before)
        self.state.extended = True
        self.state.name = request.client or self.state.name
        policies = list(facts.get("policies", {}))
        self.state.only = policies[0] if len(policies) == 1 else None
        reception.states[self.state.token] = self.state
        more = {
            "extensions": [EXTENSION],
            "session": self.state.token,
            "multi_agent": reception.ioctx.multi_agent,
            "policies": facts.get("policies", {}),
            "explore": facts.get("explore"),
            "resume": self.state.standing(),
        }
        answerer.send(SetConfig(**plain, **more, **reception.spaces()))

    def _take_episodes(self, request: Episodes, answerer: Responder, translated: bool) -> None:
        reception = self._reception
        reception.chunks.check_allowed(request)
        if isinstance(request, EpisodesAndGetState):
            self._check_errands()

        def then(error: Exception | None) -> None:
            if isinstance(error, BadMessageError | CallOrderError):
                self._fail(error, answerer, request)
                return
            if error is not None:
                raise error
            self.played_at = time.monotonic()
            if not isinstance(request, EpisodesAndGetState):
                answerer.nothing()
                return
            self._check_errands()
            self._errands += 1
            reception.errands.add_later(self, partial(self._weights_changed, request, answerer))
            # Others may have stopped playing by then.
            asyncio.get_running_loop().call_later(STILL_PLAYING_S, reception.errands.look_again)

        work = reception.chunks.take(self.state, request, answerer.dialect, translated=translated)
        self._intake.run(work, then, answerer.close)

    def _check_errands(self) -> None:
        if self._errands >= _MOST_ERRANDS:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"message: {self._errands} requests for weights or policies wait for their answers, expected at most "
                f"{_MOST_ERRANDS} on one connection; wait for these first",
            )

    def _weights_changed(
        self, request: EpisodesAndGetState, answerer: Responder, error: MenvError | None
    ) -> None:
        self._errands -= 1
        if error is None:
            self._tell_state(request, answerer)
        else:
            _refuse(error, answerer, ErrorCode.UNKNOWN_POLICY)

    def _tell_state(self, request: GetState | EpisodesAndGetState, answerer: Responder) -> None:
        """Answer with the weights that were published last, at once where somebody has asked for them before."""
        latest = self._reception.latest

        def send(result: SetState | MenvError) -> None:
            if isinstance(result, MenvError):
                _refuse(result, answerer, ErrorCode.UNKNOWN_POLICY)
            else:
                self.state.weights_seq_no = result.weights_seq_no
                answerer.send(result)

        def done(result: SetState | MenvError) -> None:
            self._errands -= 1
            send(result)

        try:
            send(self._state_of(request, latest, latest.made))
        except KeyError:
            self._check_errands()
            self._errands += 1
            self._reception.errands.add(lambda: self._state_of(request, latest, latest.make), done)

    def _state_of(
        self,
        request: GetState | EpisodesAndGetState,
        latest: PublishedPolicies,
        form: Callable[[str, str], Any],
    ) -> SetState:
        """Return the answer with the weights, whose forms `form` returns.

        Raises:
            MenvError: There is no such policy, or none in this form.
        """
        number, known = latest.weights_seq_no, list(latest.policies)
        chosen = known if request.policy_ids is None else request.policy_ids
        # Who has a policy that is gone wants to know of the others.
        gone = self._reception.retired if request.have is not None else ()
        chosen = [name for name in chosen if name not in gone]
        for name in chosen:
            if name not in known:
                raise BadMessageError(
                    ErrorCode.UNKNOWN_POLICY,
                    f"policy_ids: no policy {name[:40]!r}, expected one of {known[:20]}",
                )
        others = self.state.only is not None and known != [self.state.only]
        told: dict[str, Any] = {"weights_seq_no": number, "ask_policies": others}
        if request.have == number:
            return SetState(**told)
        if request.form == "bundle":
            return SetState(**told, bundles={name: form("bundle", name) for name in chosen})
        if request.form == "weights":
            # Weights alone bring no connectors; without `have` nobody says that there is a policy to put them into.
            have = number if request.have is None else request.have
            whole = [name for name in chosen if have < latest.connectors_since(name)]
            return SetState(
                **told,
                weights={name: form("weights", name) for name in chosen if name not in whole},
                bundles={name: form("bundle", name) for name in whole} or None,
            )
        if len(chosen) != 1:
            raise BadMessageError(
                ErrorCode.UNKNOWN_POLICY,
                f"policy_ids: an ONNX file holds one policy, expected one of {known[:20]}; name it",
            )
        return SetState(weights_seq_no=number, onnx_file=form("onnx", chosen[0]))

    def _tell_policies(self, request: GetPolicies, answerer: Responder) -> None:
        state, name, reception = self.state, request.episode_id, self._reception
        self._check_agents(request)
        told = dict(state.chunks[name].policies) if name in state.chunks else {}
        try:
            for agent in request.agent_ids:
                if agent not in told:
                    told[agent] = reception.latest.policy_for(f"{state.token}/{name}", agent)
        except MenvError as error:
            _refuse(error, answerer, ErrorCode.UNKNOWN_AGENT)
            return
        except Exception as error:
            # A user's own policy_mapping_fn: train() raises it.
            reception.switchboard.fail(error)
            raise BadMessageError(
                ErrorCode.INTERNAL,
                "policy_mapping_fn: raised an error, expected a policy; see the server's report",
            ) from error
        if request.training_enabled:
            reception.chunks.announce(state, name, told)
        answerer.send(Policies(policy_ids={agent: told[agent] for agent in request.agent_ids}))

    def _check_agents(self, request: GetPolicies) -> None:
        if len(request.agent_ids) > self._reception.limits.max_agents:
            raise BadMessageError(
                ErrorCode.TOO_MANY, f"GET_POLICIES.agent_ids: {len(request.agent_ids)} agents are too many"
            )
        for agent in request.agent_ids:
            if self._reception.ioctx.multi_agent and self._reception.chunks.spaces_of(agent) is None:
                raise BadMessageError(
                    ErrorCode.UNKNOWN_AGENT,
                    f"GET_POLICIES.agent_ids: no agent {agent[:40]!r}, expected one of the environment's",
                )


def _refuse(error: MenvError, answerer: Responder, code: ErrorCode) -> None:
    """Answer why there are no weights or policies; `code` is that of errors which are no answers yet."""
    answerer.refuse(error if isinstance(error, BadMessageError) else BadMessageError(code, str(error)))
