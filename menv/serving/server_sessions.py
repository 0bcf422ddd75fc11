"""Reception: every client of one server, and what they share.

It opens a session for each connection, keeps the state of clients that may return, and carries what the sampler
decided back to them. All of it but `flush` runs in the loop, whichever thread runs that.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from menv.adapters.episode_broker import EpisodeBroker
from menv.adapters.episode_channel import ByteBudget
from menv.base_env import SINGLE_AGENT
from menv.env_context import InputContext
from menv.errors import CallOrderError, EpisodeError, MenvError
from menv.serialization import space_to_json
from menv.serving.action_requests import ActionRequestHandler, Decision
from menv.serving.body_parser_pool import BodyParserPool
from menv.serving.client_state import ClientState, PublishedPolicies, Responder, Trainer
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat
from menv.serving.episode_ingest import EpisodeIngest
from menv.serving.protocol import Action, Answer, Error, encode
from menv.serving.session import Session
from menv.serving.step_columns import told_action_spaces
from menv.serving.transports.access import Access
from menv.serving.transports.server import CooperativeScheduler
from menv.serving.transports.transport import Limits, Peer, Reply

# SEAM menv.serving.errands
# Errands: requests for weights that cannot be answered at once, made by a thread of their own or kept for
# later.
#
# Sessions hand them in, in the server's loop, and are called back there. Neither the loop nor the sampler
# waits.


Then = Callable[[Any], None]


class SamplerTaskQueue:
    """Answers that are being made, and clients that wait for new weights.

    Args:
        wake: Lets a sampler that waits for callers see who waits.
        post: Has the loop call something.
    """

    def __init__(self, wake: Callable[[], None], post: Callable[[Callable[[], object]], None]) -> None:
        self.look_again = wake
        self._post = post
        self._maker = ThreadPoolExecutor(1, "menv-serving-weights")
        self._later: dict[object, list[Then]] = {}
        self._over: MenvError | None = None

    def add(self, do: Callable[[], Any], then: Then) -> None:
        """Have something made that may take some time.

        Args:
            do: Called in the thread that makes answers.
            then: Called in the server's loop with what `do` returned, or with the `MenvError` that it raised.
        """
        try:
            made = self._maker.submit(do)
        except RuntimeError:
            # It was stopped, perhaps this very moment.
            then(self._over)
            return
        made.add_done_callback(lambda made: self._post(lambda: self._tell(made, then)))

    def add_later(self, who: object, then: Then) -> None:
        """Call `then` in the server's loop once the weights have changed, with None; `who` may wait several times."""
        self._later.setdefault(who, []).append(then)
        if self._over is not None:
            self._release(self._over)
        self.look_again()

    def drop(self, who: object) -> None:
        """Forget what a client waits for."""
        self._later.pop(who, None)
        self.look_again()

    @property
    def waiting(self) -> int:
        """How many different `who` wait for new weights."""
        return len(self._later)

    def waits(self, who: object) -> bool:
        """Return whether `who` waits for new weights."""
        return who in self._later

    def weights_changed(self) -> None:
        """Answer those who wait for new weights. From any thread."""
        self._release(None)

    def stop(self, error: MenvError) -> None:
        """Answer all who wait with an error, now and from now on. From any thread."""
        self._over = error
        self._maker.shutdown(cancel_futures=True)
        self._release(error)

    def _release(self, error: MenvError | None) -> None:
        """Answer those who wait now, but not those who come before the loop has its turn."""
        later, self._later = self._later, {}
        if later:
            self._post(lambda: [then(error) for thens in later.values() for then in thens])

    def _tell(self, made: Future[Any], then: Then) -> None:
        if made.cancelled():
            then(self._over)
            return
        error = made.exception()
        if error is None or isinstance(error, MenvError):
            then(error or made.result())
            return
        then(
            BadMessageError(
                ErrorCode.INTERNAL, "weights: could not be made, expected them; see the server's report"
            )
        )
        raise error


_OF_TRANSPORTS = {"timeout": ErrorCode.TOO_SLOW, "too_many_connections": ErrorCode.TOO_MANY}
"""What transports say that have words of their own."""
_NUMPY = (np.generic, np.ndarray)
_MOST_AWAY = 1_000
"""Clients without a connection that are remembered; others that leave take the place of who left first."""


class ServerSessions:
    """Opens sessions; the `Handler` of a server.

    Args:
        switchboard: Where the sampler is.
        ioctx: The spaces.
        limits: Of each client.
        access: Who is let in.
        errands: Answers that are made beside the loop, and clients that wait for weights.
        return_s: Seconds that a client without a connection keeps its episodes, if it asked for that.

    Attributes:
        interactive: Episodes whose actions are asked for.
        chunks: Episodes that clients play by themselves.
        slices: Work that takes long.
        translation: Large bodies, which are read elsewhere.
        facts: What SET_CONFIG tells, once there is an algorithm.
        trainer: The algorithm.
        retired: Policies that there were once, which some clients may still have.
        states: The clients, by token.
        sessions: Connections.
        refusals: How many messages and connections were refused.
        backlog: What of all clients waits for the sampler.
    """

    def __init__(
        self,
        switchboard: EpisodeBroker,
        ioctx: InputContext,
        limits: Limits,
        access: Access,
        errands: SamplerTaskQueue,
        return_s: float,
    ) -> None:
        self.switchboard = switchboard
        self.ioctx = ioctx
        self.limits = limits
        self.access = access
        self.errands = errands
        self.return_s = return_s
        # What the sampler's thread has decided since the last `flush`.
        self._decisions: deque[Decision] = deque()
        self.interactive = ActionRequestHandler(
            switchboard, ioctx, limits, self._decisions.append, self.refuse
        )
        self.chunks = EpisodeIngest(switchboard, ioctx, limits)
        self.slices = CooperativeScheduler()
        self.translation = BodyParserPool(ioctx, limits)
        self._of_agents = told_action_spaces(ioctx)
        self.facts: dict[str, Any] = {"env_steps_per_sample": 1, "force_on_policy": True}
        self.trainer: Trainer | None = None
        self._expected = False
        self.retired: frozenset[str] = frozenset()
        self.states: dict[str, ClientState] = {}
        self.sessions: set[Session] = set()
        self.refusals = 0
        self.backlog = ByteBudget()

    def tell_policies(self, described: dict[str, Any]) -> None:
        """Tell clients of these policies from now on. In the sampler's thread."""
        self.retired = (self.retired | self.facts.get("policies", {}).keys()) - described.keys()
        self.facts = {**self.facts, "policies": described}

    @property
    def latest(self) -> PublishedPolicies:
        """The policies and weights that were published last."""
        assert self.trainer is not None
        return self.trainer.latest

    def open(self, peer: Peer, token: str | None) -> Session:
        """Begin to talk with a peer; see `Handler.open`."""
        if not self._expected and self.trainer is not None:
            self._expected = True
            self.errands.add(self.latest.expect_clients, lambda _: None)
        session = Session(self, peer, admitted=token is not None or self.access.token is None)
        self.sessions.add(session)
        return session

    def refused(self, why: str) -> bytes:
        """Return the ERROR for what a transport refuses; see `Handler.refused`."""
        self.interactive.settle()
        self.refusals += 1
        word, _, sentence = why.partition(": ")
        code = _OF_TRANSPORTS.get(word) or (
            ErrorCode(word) if word in set(ErrorCode) else ErrorCode.NOT_ALLOWED
        )
        return encode(Error(code=code, message=sentence or why), WireFormat.JSON)

    def spaces(self) -> dict[str, Any]:
        """Return the spaces of a single agent as JSON; of several agents what they act in."""
        if self.ioctx.multi_agent:
            return self._of_agents
        observation, action = self.ioctx.spaces_of(SINGLE_AGENT)
        if observation is None or action is None:
            return {}
        return {"observation_space": space_to_json(observation), "action_space": space_to_json(action)}

    def refuse(
        self, error: BadMessageError | CallOrderError, answerer: Responder, seq: int | None = None
    ) -> None:
        """Answer a request that cannot be taken; `seq` is its number."""
        if isinstance(error, EpisodeError):
            error = BadMessageError(ErrorCode.WRONG_ORDER, str(error))
        elif not isinstance(error, BadMessageError):
            answerer.refuse(BadMessageError(ErrorCode.STOPPING, str(error)), seq)
            return
        self.refusals += 1
        answerer.refuse(error, seq)
        if error.code == ErrorCode.NOT_ALLOWED:
            answerer.close()

    def flush(self, post: Callable[[Callable[[], object]], None]) -> None:
        """Have everything that was decided sent; called in the sampler's thread."""
        if self._decisions:
            decisions = [self._decisions.popleft() for _ in range(len(self._decisions))]
            post(partial(self._send, decisions, self.switchboard.weights_seq_no))

    def _send(self, decisions: list[Decision], number: int) -> None:
        replies: list[tuple[Reply, bytes]] = []
        for decision in decisions:
            if callable(decision):
                decision()
                continue
            questions, decided = decision
            if isinstance(decided, BaseException):
                answers: list[Answer] = [
                    Error(code=str(ErrorCode.STOPPING), message=str(decided), seq=question.request.seq)
                    for question in questions
                ]
            else:
                answers = [
                    Action(
                        episode_id=request.episode_id, action=action, weights_seq_no=number, seq=request.seq
                    )
                    for request, action in zip(
                        [question.request for question in questions], self._actions(decided), strict=True
                    )
                ]
            for question, answer in zip(questions, answers, strict=True):
                link = question.link
                link.answer = answer
                waiting, link.waiting = link.waiting, []
                for answerer in waiting:
                    replies.append((answerer.reply, answerer.body(answer)))
        # One right after the other: a peer that comes to the end of its work in between falls asleep, and waking it
        # costs as much as sending.
        for reply, body in replies:
            reply(body)

    def _actions(self, decided: Any) -> Sequence[Any]:
        if isinstance(decided, Mapping):
            decided = [dict(decided) if self.ioctx.multi_agent else decided[SINGLE_AGENT]]
        if type(decided[0]) is int:
            # So are the others then.
            return decided  # type: ignore[no-any-return]
        # An encoder takes much longer over what it has to ask for.
        return [action.tolist() if isinstance(action, _NUMPY) else action for action in decided]

    def lost(self, session: Session) -> None:
        """Forget a connection; its client loses its episodes unless it may return."""
        self.interactive.settle()
        self.sessions.discard(session)
        self.errands.drop(session)
        state = session.state
        state.connected -= 1
        if state.connected <= 0:
            state.lost_at = time.monotonic()
            if state.extended:
                self._make_room()
                asyncio.get_running_loop().call_later(self.return_s, self._give_up_if_away, state.token)
            else:
                self.give_up(state, "the connection of its client ended")

    def take_up(self, state: ClientState, before: ClientState) -> ClientState:
        """Return the client that a connection goes on as; what was begun over this connection alone is broken off."""
        state.connected -= 1
        if state.connected <= 0:
            self.give_up(state, "its client went on with another session")
        before.connected += 1
        return before

    def give_up(self, state: ClientState, why: str) -> None:
        """Break off what a client leaves behind."""
        self.states.pop(state.token, None)
        self.switchboard.lose(state.board_ids(), why)
        state.clear()

    def _make_room(self) -> None:
        away = [state for state in self.states.values() if state.connected <= 0]
        if len(away) > _MOST_AWAY:
            self.give_up(
                min(away, key=lambda state: state.lost_at),
                f"more than {_MOST_AWAY} clients are without a connection",
            )

    def _give_up_if_away(self, token: str) -> None:
        # By its token: of clients that were given up before nothing is kept until then.
        state = self.states.get(token)
        if state is not None and state.connected <= 0 and time.monotonic() - state.lost_at >= self.return_s:
            self.give_up(state, f"its client did not come back within {self.return_s:g} s")
