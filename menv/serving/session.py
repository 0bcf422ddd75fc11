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
from menv.serving.intake import Intake
from menv.serving.trainer import PublishedPolicies
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
        self._reception.refuse(error, answerer, getattr(request, "seq", None))

    def _handle(self, request: Request, answerer: Answerer) -> None:
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
            self._tell_state(request, answerer)
        elif isinstance(request, GetPolicies):
            self._tell_policies(request, answerer)
        elif isinstance(request, StartEpisode):
            self._reception.interactive.start(self.state, request, answerer)
        elif isinstance(request, Turn):
            self._reception.interactive.turn(self.state, request, answerer)

    def _greet(self, request: GetConfig, answerer: Answerer) -> None:
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
                Code.TOO_MANY,
                f"message: {self._errands} requests for weights or policies wait for their answers, expected at most "
                f"{_MOST_ERRANDS} on one connection; wait for these first",
            )

    def _weights_changed(
        self, request: EpisodesAndGetState, answerer: Answerer, error: MenvError | None
    ) -> None:
        self._errands -= 1
        if error is None:
            self._tell_state(request, answerer)
        else:
            _refuse(error, answerer, Code.UNKNOWN_POLICY)

    def _tell_state(self, request: GetState | EpisodesAndGetState, answerer: Answerer) -> None:
        """Answer with the weights that were published last, at once where somebody has asked for them before."""
        latest = self._reception.latest

        def send(result: SetState | MenvError) -> None:
            if isinstance(result, MenvError):
                _refuse(result, answerer, Code.UNKNOWN_POLICY)
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
                    Code.UNKNOWN_POLICY, f"policy_ids: no policy {name[:40]!r}, expected one of {known[:20]}"
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
                Code.UNKNOWN_POLICY,
                f"policy_ids: an ONNX file holds one policy, expected one of {known[:20]}; name it",
            )
        return SetState(weights_seq_no=number, onnx_file=form("onnx", chosen[0]))

    def _tell_policies(self, request: GetPolicies, answerer: Answerer) -> None:
        state, name, reception = self.state, request.episode_id, self._reception
        self._check_agents(request)
        told = dict(state.chunks[name].policies) if name in state.chunks else {}
        try:
            for agent in request.agent_ids:
                if agent not in told:
                    told[agent] = reception.latest.policy_for(f"{state.token}/{name}", agent)
        except MenvError as error:
            _refuse(error, answerer, Code.UNKNOWN_AGENT)
            return
        except Exception as error:
            # A user's own policy_mapping_fn: train() raises it.
            reception.switchboard.fail(error)
            raise BadMessageError(
                Code.INTERNAL,
                "policy_mapping_fn: raised an error, expected a policy; see the server's report",
            ) from error
        if request.training_enabled:
            reception.chunks.announce(state, name, told)
        answerer.send(Policies(policy_ids={agent: told[agent] for agent in request.agent_ids}))

    def _check_agents(self, request: GetPolicies) -> None:
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


def _refuse(error: MenvError, answerer: Answerer, code: Code) -> None:
    """Answer why there are no weights or policies; `code` is that of errors which are no answers yet."""
    answerer.refuse(error if isinstance(error, BadMessageError) else BadMessageError(code, str(error)))
