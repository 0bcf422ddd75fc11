"""All clients of one server and what they share.

`ServerSessions` opens a session for each connection, keeps the state of clients that may reconnect, and sends them the
sampler's decisions. Everything but `send_decisions` runs in the event loop, in whichever thread that runs.
"""

from __future__ import annotations

import asyncio
import logging
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
from menv.serving.body_parser import BodyParserPool
from menv.serving.client_state import ClientState, Responder
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat
from menv.serving.episode_ingest import EpisodeIngest
from menv.serving.limits import Limits
from menv.serving.metrics import ServerMetrics
from menv.serving.protocol import Action, Answer, Error, encode
from menv.serving.session import Session
from menv.serving.step_columns import action_spaces_json
from menv.serving.trainer import PublishedPolicies, Trainer
from menv.serving.transports.access import Access
from menv.serving.transports.server import CooperativeScheduler
from menv.serving.transports.transport import Peer, Reply

_log = logging.getLogger("menv.serving")

_TRANSPORT_CODES = {"timeout": ErrorCode.TOO_SLOW, "too_many_connections": ErrorCode.TOO_MANY}
"""Error codes of transports whose name differs."""
_NUMPY = (np.generic, np.ndarray)
_MAX_AWAY = 1_000
"""Most clients without a connection that are remembered; beyond that, the one that left first is forgotten."""


class ServerSessions:
    """Opens sessions; the `Handler` of a server.

    Attributes:
        action_requests: Episodes whose actions are requested one by one.
        ingest: Episodes that clients send in trajectory chunks.
        scheduler: Runs long work of the event loop in small steps.
        parsers: Decodes large bodies in another process.
        config: Fields of SET_CONFIG, complete once there is an algorithm.
        trainer: The algorithm.
        retired: Policies that were removed, which some clients may still have.
        states: Clients by token.
        connected: Sessions with a connection.
        figures: What `metrics` shows.
        backlog: Bytes of all clients' episodes that wait for the sampler.
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
        self.parsers = BodyParserPool(ioctx, limits)
        self._agent_spaces = action_spaces_json(ioctx)
        self.config: dict[str, Any] = {"env_steps_per_sample": 1, "force_on_policy": True}
        self.trainer: Trainer | None = None
        self._expected = False
        self.retired: frozenset[str] = frozenset()
        self.states: dict[str, ClientState] = {}
        self.connected: set[Session] = set()
        self.figures = ServerMetrics(lambda: len(self.connected), lambda: broker.open_episodes)
        self.backlog = ByteBudget()

    def set_policies(self, described: dict[str, Any]) -> None:
        """Replace the policies that SET_CONFIG describes. Called in the sampler's thread."""
        self.retired = (self.retired | self.config.get("policies", {}).keys()) - described.keys()
        self.config = {**self.config, "policies": described}

    @property
    def latest(self) -> PublishedPolicies:
        assert self.trainer is not None
        return self.trainer.latest

    def open(self, peer: Peer, token: str | None) -> Session:
        """Open the session of a peer; see `Handler.open`."""
        if not self._expected and self.trainer is not None:
            self._expected = True
            self.tasks.add(self.latest.expect_clients, lambda _: None)
        session = Session(self, peer, admitted=token is not None or self.access.token is None)
        self.connected.add(session)
        _log.info("%s client %s connected", peer.transport, peer.address)
        return session

    def refused(self, why: str) -> bytes:
        """Encode the ERROR for a peer that a transport refuses; see `Handler.refused`."""
        self.action_requests.flush()
        word, _, sentence = why.partition(": ")
        code = _TRANSPORT_CODES.get(word) or (
            ErrorCode(word) if word in set(ErrorCode) else ErrorCode.NOT_ALLOWED
        )
        self.count_refusal(code, sentence or why)
        return encode(Error(code=code, message=sentence or why), WireFormat.JSON)

    def count_refusal(self, code: str, why: str) -> None:
        """Count and log a refused message or connection."""
        self.figures.refusals[str(code)] += 1
        _log.info("refused, %s: %s", code, why)

    def metrics(self) -> bytes:
        """Return the figures for Prometheus; see `Handler.metrics`."""
        return self.figures.text()

    def spaces(self) -> dict[str, Any]:
        """Return the fields of SET_CONFIG that describe the spaces."""
        if self.ioctx.multi_agent:
            return self._agent_spaces
        observation, action = self.ioctx.spaces_of(SINGLE_AGENT)
        if observation is None or action is None:
            return {}
        return {"observation_space": space_to_json(observation), "action_space": space_to_json(action)}

    def refuse(
        self, error: BadMessageError | CallOrderError, responder: Responder, seq: int | None = None
    ) -> None:
        """Answer a request that is refused."""
        if isinstance(error, EpisodeError):
            error = BadMessageError(ErrorCode.WRONG_ORDER, str(error))
        elif not isinstance(error, BadMessageError):
            responder.refuse(BadMessageError(ErrorCode.STOPPING, str(error)), seq)
            return
        self.count_refusal(error.code, error.text)
        responder.refuse(error, seq)
        if error.code == ErrorCode.NOT_ALLOWED:
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
        return [action.tolist() if isinstance(action, _NUMPY) else action for action in decided]

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


Then = Callable[[Any], None]


class SamplerTaskQueue:
    """Requests for weights that cannot be answered at once: encoded by a thread, or kept until the weights change.

    Neither the event loop nor the sampler waits for them. `wake` lets a sampler that waits for clients check again.
    `post` schedules a call in the event loop, where all callbacks run.
    """

    def __init__(self, wake: Callable[[], None], post: Callable[[Callable[[], object]], None]) -> None:
        self.wake = wake
        self._post = post
        self._executor = ThreadPoolExecutor(1, "menv-serving-weights")
        self._later: dict[object, list[Then]] = {}
        self._over: MenvError | None = None

    def add(self, do: Callable[[], Any], then: Then) -> None:
        """Run `do` in the thread; `then` gets its result, or the `MenvError` that it raised."""
        try:
            made = self._executor.submit(do)
        except RuntimeError:
            # The queue was stopped, perhaps just now.
            then(self._over)
            return
        made.add_done_callback(lambda made: self._post(lambda: self._finish(made, then)))

    def add_later(self, client: object, then: Then) -> None:
        """Call `then(None)` after the next change of the weights; `client` may wait several times."""
        self._later.setdefault(client, []).append(then)
        if self._over is not None:
            self._release(self._over)
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

    def weights_changed(self) -> None:
        """Answer the clients that wait for new weights. From any thread."""
        self._release(None)

    def stop(self, error: MenvError) -> None:
        """Answer all requests with an error, now and later. From any thread."""
        self._over = error
        self._executor.shutdown(cancel_futures=True)
        self._release(error)

    def _release(self, error: MenvError | None) -> None:
        """Answer the clients that wait now, not clients that begin to wait before the loop runs the call."""
        later, self._later = self._later, {}
        if later:
            self._post(lambda: [then(error) for thens in later.values() for then in thens])

    def _finish(self, made: Future[Any], then: Then) -> None:
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
