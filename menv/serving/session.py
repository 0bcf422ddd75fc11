"""Session: the state machine of one connection, whatever carries it.

A transport hands it bodies in the server's loop. It knows which message may come when, and leaves what episodes mean
to `interactive` and `chunks`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from menv.backlog import Backlog
from menv.errors import CallOrderError, MenvError
from menv.serving.answerer import Answerer
from menv.serving.carriers.transport import Peer
from menv.serving.client_state import ClientState
from menv.serving.errands import Do, Then
from menv.serving.intake import Intake
from menv.serving.trainer import Trainer
from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.messages import (
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
)

if TYPE_CHECKING:
    from menv.serving.reception import Reception

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

    def __init__(self, reception: Reception, peer: Peer, admitted: bool) -> None:
        self.peer = peer
        self.state = ClientState(Backlog(reception.backlog))
        self.state.connected = 1
        self.played_at = -math.inf
        self._errands = 0
        self._reception = reception
        self._interactive = reception.interactive
        self.admitted = admitted
        limits, over_http = reception.limits, peer.transport == "http"
        self._intake = Intake(
            self, reception.interactive.questions, reception.translation, reception.slices, limits.max_depth,
            over_http,
        )  # fmt: skip
        self.received = self._intake.received

    def answer(self, request: Request, answerer: Answerer, *, translated: bool = False) -> None:
        """Do what a request says; see `menv.serving.intake`."""
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

    def refuse(self, error: BadMessageError, answerer: Answerer) -> None:
        """Answer a body that holds no request."""
        self._reception.interactive.settle()
        self._reception.refusals += 1
        answerer.refuse(error)
        if error.code in (Code.NOT_ALLOWED, Code.INTERNAL):
            answerer.close()

    def lost(self) -> None:
        """The connection is gone; see `Conversation.lost`."""
        self._reception.interactive.settle()
        self._intake.lost()
        self._reception.lost(self)

    def _fail(self, error: BadMessageError | CallOrderError, answerer: Answerer, request: Request) -> None:
        """Answer a request that cannot be taken."""
        self._reception.refuse(error, answerer, getattr(request, "seq", None))

    def _handle(self, request: Request, answerer: Answerer) -> None:
        """Answer a request, now or later."""
        if isinstance(request, Ping):
            answerer.send(Pong())
            return
        if isinstance(request, GetConfig):
            self._greet(request, answerer)
            return
        if not self.admitted:
            raise BadMessageError(
                Code.NOT_ALLOWED, "GET_CONFIG.token: is missing, expected the server's token first"
            )
        if isinstance(request, GetState):
            self._have_done(self._reception.errands.add, self._state_of(request), self._sender(answerer))
        elif isinstance(request, GetPolicies):
            self._tell_policies(request, answerer)
        elif isinstance(request, StartEpisode):
            self._reception.interactive.start(self.state, request, answerer)
        elif isinstance(request, Turn):
            self._reception.interactive.turn(self.state, request, answerer)

    def _greet(self, request: GetConfig, answerer: Answerer) -> None:
        """Tell a client what it needs to know, and take it up again if it was here before."""
        reception = self._reception
        if not self.admitted and not reception.access.admits(request.token):
            raise BadMessageError(Code.NOT_ALLOWED, "GET_CONFIG.token: is not the server's, expected that")
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

    def _take_episodes(self, request: Episodes, answerer: Answerer, translated: bool) -> None:
        """Take what a client played by itself."""
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
            later = partial(reception.errands.add_later, self)
            self._have_done(later, self._state_of(request), self._sender(answerer))
            # Others may have stopped playing by then.
            asyncio.get_running_loop().call_later(STILL_PLAYING_S, reception.errands.look_again)

        work = reception.chunks.take(self.state, request, answerer.dialect, translated=translated)
        self._intake.run(work, then, answerer.close)

    def _check_errands(self) -> None:
        """Refuse more requests that wait for the sampler where there are too many."""
        if self._errands >= _MOST_ERRANDS:
            raise BadMessageError(
                Code.TOO_MANY,
                f"message: {self._errands} requests for weights or policies wait for their answers, expected at most "
                f"{_MOST_ERRANDS} on one connection; wait for these first",
            )

    def _have_done(self, add: Callable[[Do, Then], None], do: Do, then: Then) -> None:
        """Have something done in the sampler's thread."""
        self._check_errands()
        self._errands += 1

        def done(result: Any) -> None:
            self._errands -= 1
            then(result)

        add(do, done)

    def _state_of(self, request: GetState | EpisodesAndGetState) -> Callable[[Trainer], SetState]:
        """Return what makes the answer with the weights, in the sampler's thread."""

        def made(trainer: Trainer) -> SetState:
            number, known = trainer.weights_seq_no, list(trainer.policies())
            chosen = known if request.policy_ids is None else request.policy_ids
            # Who has a policy that is gone wants to know of the others.
            gone = self._reception.retired if request.have is not None else ()
            chosen = [name for name in chosen if name not in gone]
            for name in chosen:
                if name not in known:
                    raise BadMessageError(
                        Code.UNKNOWN_POLICY,
                        f"policy_ids: no policy {name[:40]!r}, expected one of {known[:20]}",
                    )
            others = self.state.only is not None and known != [self.state.only]
            told: dict[str, Any] = {"weights_seq_no": number, "ask_policies": others}
            if request.have == number:
                return SetState(**told)
            if request.form == "bundle":
                return SetState(**told, bundles={name: trainer.bundle(name) for name in chosen})
            if request.form == "weights":
                # Weights alone bring no connectors; without `have` nobody says that there is a policy to put them into.
                have = number if request.have is None else request.have
                whole = [name for name in chosen if have < trainer.connectors_since(name)]
                return SetState(
                    **told,
                    weights={name: trainer.weights(name) for name in chosen if name not in whole},
                    bundles={name: trainer.bundle(name) for name in whole} or None,
                )
            if len(chosen) != 1:
                raise BadMessageError(
                    Code.UNKNOWN_POLICY,
                    f"policy_ids: an ONNX file holds one policy, expected one of {known[:20]}; name it",
                )
            return SetState(weights_seq_no=number, onnx_file=trainer.onnx_file(chosen[0]))

        return made

    def _sender(self, answerer: Answerer) -> Callable[[Any], None]:
        """Return what sends the weights, or why there are none."""

        def send(result: SetState | MenvError) -> None:
            if isinstance(result, BadMessageError):
                answerer.refuse(result)
            elif isinstance(result, MenvError):
                answerer.refuse(BadMessageError(Code.UNKNOWN_POLICY, str(result)))
            else:
                self.state.weights_seq_no = result.weights_seq_no
                answerer.send(result)

        return send

    def _tell_policies(self, request: GetPolicies, answerer: Answerer) -> None:
        """Tell who answers for whom in an episode that the client plays by itself."""
        state, name = self.state, request.episode_id
        self._check_agents(request)
        # Kept as it is now: the episode may be forgotten before the answer goes out.
        known = dict(state.chunks[name].policies) if name in state.chunks else {}
        asked = [agent for agent in request.agent_ids if agent not in known]

        def made(trainer: Trainer) -> dict[str, str]:
            return {agent: trainer.policy_for(f"{state.token}/{name}", agent) for agent in asked}

        def send(result: dict[str, str] | MenvError) -> None:
            if isinstance(result, BadMessageError):
                answerer.refuse(result)
                return
            if isinstance(result, MenvError):
                answerer.refuse(BadMessageError(Code.UNKNOWN_AGENT, str(result)))
                return
            told = {**known, **result}
            try:
                if request.training_enabled:
                    self._reception.chunks.announce(state, name, told)
            except (BadMessageError, CallOrderError) as error:
                self._reception.refuse(error, answerer)
                return
            answerer.send(Policies(policy_ids={agent: told[agent] for agent in request.agent_ids}))

        self._have_done(self._reception.errands.add, made, send)

    def _check_agents(self, request: GetPolicies) -> None:
        """Refuse to tell who answers for agents that there cannot be."""
        if len(request.agent_ids) > self._reception.limits.max_agents:
            raise BadMessageError(
                Code.TOO_MANY, f"GET_POLICIES.agent_ids: {len(request.agent_ids)} agents are too many"
            )
        for agent in request.agent_ids:
            if self._reception.ioctx.multi_agent and self._reception.chunks.spaces_of(agent) is None:
                raise BadMessageError(
                    Code.UNKNOWN_AGENT,
                    f"GET_POLICIES.agent_ids: no agent {agent[:40]!r}, expected one of the environment's",
                )
