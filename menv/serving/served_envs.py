"""ServedEnvs: the environments of remote clients as a `BaseEnv`, behind one server.

`PolicyServerInput` and `RLlinkInput` are kinds of it. Each poll of the sampler serves clients until one has said
something, takes that, and does what they want done with policies; between fragments the serving thread serves them.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from menv.adapters.episode_broker import EpisodeBroker
from menv.adapters.external import ExternalEnvs
from menv.base_env import SINGLE_AGENT, Ready
from menv.env_context import InputContext
from menv.errors import CallOrderError, ConfigError
from menv.external_env import stopped
from menv.inference.network_policy import NetworkPolicy
from menv.policy import Policy
from menv.serialization import space_to_json
from menv.serving.client_state import Trainer
from menv.serving.codec import BadMessageError, ErrorCode
from menv.serving.server_sessions import SamplerTaskQueue, ServerSessions
from menv.serving.session import STILL_PLAYING_S
from menv.serving.transports.access import Access
from menv.serving.transports.server import Server
from menv.serving.transports.transport import Limits, Transport
from menv.spaces import leaves

# SEAM menv.serving.interrupts
# Ctrl-C while clients are served in the main thread: held back until nothing is halfway done.
#
# In the midst of a callback of the server's loop it would leave bodies unread, answers unsent, or the loop
# without one of
# its tasks. `ServedEnvs` holds it back from poll to poll. It knows no server.


class Interrupts:
    """A context that holds Ctrl-C back in the main thread, unless somebody handles it in a way of their own.

    A second one is not held back, and what was is raised at the end.

    Args:
        wake: Called with the first one, from amidst anything: has whoever waits for clients look here.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._holds = self._held = False

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._holds = True
            signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *_: object) -> None:
        if self._holds:
            self._holds = False
            if signal.getsignal(signal.SIGINT) == self._note:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self.check()

    def check(self) -> None:
        """Raise what was held back.

        Raises:
            KeyboardInterrupt: There was one.
        """
        if self._held:
            self._held = False
            raise KeyboardInterrupt

    def _note(self, *_: Any) -> None:
        self.check()
        self._held = True
        self._wake()


Kind: TypeAlias = tuple[int, int, str]
"""How many numbers a policy remembers and draws actions from, and what the latter are."""

_OF_A_NUMBER = 26
"""Most bytes of a float in JSON, with a comma and a blank."""
_OF_A_STEP = 150
"""Bytes of flags and names, where each episode has one step."""
_READ_AHEAD = 16
"""Bodies that are read together while others are waited for."""


class ServedEnvs(ExternalEnvs):
    """What clients play, over any transports.

    Args:
        ioctx: What the function `config["input"]` was given.
        transports: One for each port.
        limits: Of each client.
        access: Who is let in.
        idle_timeout: Seconds without a step after which `train()` returns, and says so; None waits for ever.
        max_staleness: Updates that weights may be behind when PPO learns from what they did; None for any.
        return_s: Seconds that a client that lost its connection may take to return to its episodes.
        batch_wait: Most seconds that an action waits for others to be decided with it.
        env_steps_per_sample: Env steps that clients that act by themselves send at once; None takes those of a
            fragment, but no more than surely fit into `Limits.max_body` in JSON.
        force_on_policy: Whether these wait for the next weights; None leaves it to the algorithm.

    Attributes:
        server: The transports.

    Raises:
        ConfigError: A setting is of the wrong kind.
    """

    def __init__(
        self,
        ioctx: InputContext,
        transports: Sequence[Transport],
        *,
        limits: Limits | None = None,
        access: Access | None = None,
        idle_timeout: float | None = 30.0,
        max_staleness: int | None = None,
        return_s: float = 60.0,
        batch_wait: float = 0.0005,
        env_steps_per_sample: int | None = None,
        force_on_policy: bool | None = None,
    ) -> None:
        _check(
            limits=limits, access=access, transports=transports, idle_timeout=idle_timeout, max_staleness=max_staleness,
            return_s=return_s, batch_wait=batch_wait, env_steps_per_sample=env_steps_per_sample,
            force_on_policy=force_on_policy,
        )  # fmt: skip
        _check_spaces(type(self).__name__, ioctx)
        board = EpisodeBroker()
        super().__init__(
            board, observation_space=ioctx.observation_space, action_space=ioctx.action_space,
            possible_agents=ioctx.possible_agents, idle_timeout=idle_timeout,
        )  # fmt: skip
        self.observation_spaces, self.action_spaces = (
            dict(ioctx.observation_spaces),
            dict(ioctx.action_spaces),
        )
        self.max_staleness = max_staleness
        self._batch_wait = batch_wait
        self._env_steps_per_sample, self._force_on_policy = env_steps_per_sample, force_on_policy
        self._trainer: Trainer | None = None
        # Of all policies that there have been, which clients may still have.
        self._kinds: set[Kind | None] = set()
        limits, access = limits or Limits(), access or Access()
        self._errands = SamplerTaskQueue(self._wake, self._post)
        self._reception = ServerSessions(board, ioctx, limits, access, self._errands, return_s)
        self.server = Server(self._reception, transports, limits, access)
        board.on_message = self.server.pause
        self._interrupts = Interrupts(lambda: self.server.rouse(self._wake))

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each transport."""
        return list(self.server.addresses)

    def connect(self, trainer: Trainer) -> None:
        """Let clients in; see `ExternalEnvs.connect`."""
        self._trainer = trainer
        self._look_at(trainer)
        forced = self._force_on_policy
        reception = self._reception
        fit = _most_steps(reception.ioctx, reception.chunks.widths, reception.limits)
        reception.facts = {
            "env_steps_per_sample": self._env_steps_per_sample or min(trainer.env_steps_per_sample, fit),
            "force_on_policy": trainer.force_on_policy if forced is None else forced,
            "policies": _described(trainer),
            "explore": trainer.explore,
        }
        reception.trainer = trainer
        self._reception.chunks.refused = trainer.observation_fn
        self.server.start()

    def published(self) -> None:
        """Let clients go on that wait for new weights; see `ExternalEnvs.published`."""
        if (trainer := self._trainer) is not None:
            self._look_at(trainer)
            self._reception.tell_policies(_described(trainer))
            # The forms that clients want are there before they ask.
            self._errands.add(trainer.latest.make_ready, lambda _: None)
        self._errands.weights_changed()

    def _look_at(self, trainer: Trainer) -> None:
        self._kinds.update(map(_kind, trainer.latest.policies.values()))
        self._reception.chunks.widths = _widths(self._kinds)

    def poll(self, timeout: float | None = None) -> Ready:
        """Return what clients have said; see `ExternalEnvs.poll`.

        Until `rest` the calling thread serves the clients itself while it waits for them. It raises the Ctrl-C that
        `unbroken` holds back.
        """
        if self._trainer is None:
            raise CallOrderError(
                f"{type(self).__name__}: polled before an algorithm was built on it, expected `connect` first; give "
                'it as config["input"]'
            )
        until = None if timeout is None else time.monotonic() + timeout
        borrowed = self.server.borrow()
        while True:
            self._interrupts.check()
            if not self.broker.ready and self._everybody_waits():
                self._errands.weights_changed()
            left = None if until is None else max(0.0, until - time.monotonic())
            if borrowed:
                self._serve(left)
                left = 0.0
            ready = super().poll(left)
            # Who asked for nobody's action has an answer already.
            self._flush()
            if len(ready.slots) or ready.played or ready.ended or ready.episodes or ready.unclaimed:
                return ready
            if until is not None and time.monotonic() >= until:
                # Whoever waits for weights that nobody makes plays on with those there are.
                self._errands.weights_changed()
                return ready

    def rest(self) -> None:
        """Let the serving thread serve the clients again; see `BaseEnv.rest`."""
        questions = self._reception.interactive.questions
        if questions.asked_by_others is not None:
            questions.asked_by_others = None
            self._post(questions.ask)
        self.server.give_back()

    def unbroken(self) -> Interrupts:
        """Hold Ctrl-C back until the next poll; see `BaseEnv.unbroken`."""
        return self._interrupts

    def _serve(self, seconds: float | None) -> None:
        """Serve clients until one of them has said something, and a little longer for the others."""
        board, questions = self.broker, self._reception.interactive.questions
        questions.asked_by_others = self.server.pause
        seen = 0

        def all_here() -> bool:
            """Whether everybody is there, or those answered together last and nobody else since the last look."""
            nonlocal seen
            here = board.ready + questions.waiting
            more, seen = here > seen, here
            if not here or (here >= board.expected and (not more or here >= board.open_episodes)):
                return True
            if len(questions.put_off) >= _READ_AHEAD:
                # What has to be done anyway is done while others are waited for.
                questions.read()
            return False

        # Also where something is there already: what was decided last goes out in the loop.
        here = board.ready or questions.waiting
        self.server.run(0.0 if here else seconds, self._batch_wait, all_here, questions.ask)

    def _wake(self) -> None:
        self.broker.wake()
        self.server.pause()

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer clients; see `BaseEnv.send_actions`."""
        if isinstance(actions, np.ndarray) and actions.ndim == 1 and actions.dtype.kind in "iu":
            # Messages hold plain numbers; made all at once they cost nothing.
            actions = actions.tolist()
        super().send_actions(slots, actions)
        self._flush()

    def status(self) -> dict[str, Any]:
        """Return who is there, and what went wrong with them."""
        return {
            "clients_connected": len(self._reception.sessions),
            **super().status(),
            "steps_sent_again": self._reception.chunks.repeated,
            "messages_refused": self._reception.refusals,
            "server_faults": self.server.faults.count,
        }

    def stop(self) -> None:
        """Tell clients that nobody samples any more, and free ports and threads."""
        super().stop()
        self._errands.stop(BadMessageError(ErrorCode.STOPPING, str(stopped())))
        self._flush()
        try:
            self.server.stop()
        finally:
            self._reception.translation.stop()

    def _everybody_waits(self) -> bool:
        """Return whether all who play by themselves wait for weights, so that nobody brings more steps."""
        errands, since = self._errands, time.monotonic() - STILL_PLAYING_S
        return bool(errands.waiting) and not any(
            session.played_at > since and not errands.waits(session)
            for session in list(self._reception.sessions)
        )

    def _flush(self) -> None:
        """Have everything that was decided sent, by the sampler's thread or by the one that stops it."""
        with self._lock:
            self._reception.flush(self._post)

    def _post(self, callback: Any) -> None:
        self.server.post(callback)


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "limits": (lambda value: value is None or isinstance(value, Limits), "a Limits or None"),
    "access": (lambda value: value is None or isinstance(value, Access), "an Access or None"),
    "transports": (
        lambda value: all(isinstance(one, Transport) for one in value or [0]),
        "one Transport at least",
    ),
    "idle_timeout": (
        lambda value: value is None or (_seconds(value) and value > 0),
        "seconds above 0 or None",
    ),
    "max_staleness": (lambda value: value is None or _whole(value), "a whole number from 0 or None"),
    "return_s": (_seconds, "seconds from 0"),
    "batch_wait": (_seconds, "seconds from 0"),
    "env_steps_per_sample": (
        lambda value: value is None or (_whole(value) and value > 0),
        "a whole number above 0",
    ),
    "force_on_policy": (lambda value: value is None or isinstance(value, bool), "True, False or None"),
}


def _check(**settings: Any) -> None:
    for name, value in settings.items():
        is_right, expected = _RULES[name]
        if not is_right(value):
            raise ConfigError(
                f"{name}: got {value!r:.60}, expected {expected}; leave it out for what is usual"
            )


def _check_spaces(name: str, ioctx: InputContext) -> None:
    for kind in ("observation", "action"):
        if getattr(ioctx, f"{kind}_space") is None and not getattr(ioctx, f"{kind}_spaces"):
            raise ConfigError(
                f"{name}: no {kind} space is known, expected those of a stub or of the config; give env=..., a stub, a "
                "MultiAgentEnv if clients name agents, or observation_space and action_space"
            )
    agents = (*ioctx.possible_agents, *ioctx.observation_spaces, *ioctx.action_spaces)
    unnamed = [agent for agent in agents if not isinstance(agent, str)]
    if ioctx.multi_agent and unnamed:
        raise ConfigError(
            f"{name}: agent {unnamed[0]!r:.60} is a {type(unnamed[0]).__name__}, expected texts, by which messages "
            "name agents; have the stub call it by one, and give its spaces under that"
        )


def _described(trainer: Trainer) -> dict[str, Any]:
    return {
        name: {
            "observation_space": space_to_json(policy.observation_space),
            "action_space": space_to_json(policy.action_space),
        }
        for name, policy in trainer.latest.policies.items()
    }


def _most_steps(ioctx: InputContext, widths: Mapping[str, Collection[int]], limits: Limits) -> int:
    """Return how many env steps surely fit into one body in JSON, where all agents act in each; 1 at least."""
    numbers = 2 + sum(max(widths.get(name, ()), default=0) for name in ("dist_inputs", "state_in"))
    beside = _OF_A_STEP + _OF_A_NUMBER * numbers
    sizes = [
        beside + sum(_written(space) for space in ioctx.spaces_of(agent) if space is not None)
        for agent in ioctx.possible_agents or (SINGLE_AGENT,)
    ]
    # There is one observation more than actions.
    return max(1, limits.max_body // sum(sizes) - 1)


def _written(space: Any) -> int:
    size = 0
    for leaf in leaves(space):
        each = _OF_A_NUMBER
        if leaf.dtype is not None and leaf.dtype.kind in "iu":
            # 255 may be written as 255.0, and a comma and a blank follow.
            each = 4 + max(len(f"{end}") for end in (np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max))
        size += each * (getattr(leaf, "max_length", 0) or math.prod(leaf.shape or ()))
    return size


def _kind(policy: Policy) -> Kind | None:
    """Return what a policy remembers and draws actions from; None if nobody knows."""
    if not isinstance(policy, NetworkPolicy):
        return None
    head = policy.networks.backend.head
    return sum(policy.networks.state_sizes), head.inputs, head.kind


def _widths(kinds: Collection[Kind | None]) -> dict[str, frozenset[int]]:
    """Return how many numbers policies draw actions from and remember; nothing if somebody's are unknown."""
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return {}
    states, inputs = frozenset(kind[0] for kind in known), frozenset(kind[1] for kind in known)
    # Without a memory, states are left alone; Q-values are not looked at.
    told = any(kind[2] != "q_values" for kind in known)
    return {
        "dist_inputs": inputs if told else frozenset(),
        "state_in": frozenset() if 0 in states else states,
    }
