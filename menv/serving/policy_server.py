"""`PolicyServerInput` and `RLlinkInput`: an algorithm learns from clients over the network and answers them.

Set `config["input"] = lambda ioctx: PolicyServerInput(ioctx, address, port)`. Both are external environments with a
thread that serves clients; each poll of the sampler waits until one has sent something.
"""

from __future__ import annotations

import importlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from menv.adapters.episode_broker import EpisodeBroker
from menv.adapters.external import ExternalEnvs
from menv.base_env import SINGLE_AGENT, Ready
from menv.env_context import InputContext
from menv.errors import CallOrderError, ConfigError
from menv.external_env import stopped
from menv.inference.network_policy import NetworkPolicy
from menv.interrupts import Interrupts
from menv.policy import Policy
from menv.serialization import space_to_json
from menv.serving.limits import Limits
from menv.serving.protocol import BadMessageError, ErrorCode
from menv.serving.session import ServerSessions
from menv.serving.transports.access import Access
from menv.serving.transports.server import Server, Transport
from menv.spaces import leaves


class PublishedPolicies(Protocol):
    """The policies of one set of weights. It never changes, so clients are answered while the algorithm learns.

    Attributes:
        weights_seq_no: Grows with every update.
        policies: The policies by id.
    """

    weights_seq_no: int
    policies: Mapping[str, Policy]

    def form(self, form: str, policy_id: str) -> Any:
        """Return a policy in one of its forms, which is made once; slow. Called in a thread, not in the server's loop.

        Args:
            form: "bundle" for a packed bundle, "weights" for packed weights, "onnx" for the ONNX file of RLlink
                clients, gzipped, as base64.
            policy_id: The policy.

        Raises:
            ConfigError: The policy has no such form; the sentence says what works instead.
        """

    def connectors_since(self, policy_id: str) -> int:
        """Return the `weights_seq_no` at which the policy's connectors changed last; weights do not include them."""

    def policy_for(self, episode_id: str, agent_id: str) -> str:
        """Return the policy of an agent in an episode of a client. Called in the server's loop."""


class Trainer(Protocol):
    """The algorithm that learns from the clients of a server; `WeightPublisher` implements it.

    Attributes:
        env_steps_per_sample: Env steps of one rollout fragment.
        force_on_policy: Whether clients with local inference wait for the next weights after each fragment.
        explore: Whether clients with local inference sample actions or take the most likely ones.
        observation_fn: Whether policies see the output of an `observation_fn`, which clients do not have.
        latest: The latest policies; another thread may replace it.
    """

    env_steps_per_sample: int
    force_on_policy: bool
    explore: bool
    observation_fn: bool
    latest: PublishedPolicies


TransportName = Literal["http", "tcp"]

_NUMBER_BYTES = 26
"""Most bytes of a float in JSON, with comma and blank."""
_STEP_BYTES = 150
"""Bytes of flags and names if each episode has one step."""


class PolicyServerInput(ExternalEnvs):
    """A server for any number of clients, each with any number of episodes, over any transports.

    Clients request each action, or run the policy themselves and send whole episodes; one port takes both. While the
    algorithm learns, requests for actions wait; the latest weights and policies are sent at once. With an
    `observation_fn`, clients have to request actions: the episodes of clients with local inference are refused, because
    their observations differ from the input of the policy.

    Args:
        ioctx: The argument of the function `config["input"]`.
        address: Address to bind to; any but loopback needs a token.
        port: 0 chooses a free one, see `algo.input_address`.
        transport: "http" or "tcp"; or transports that were made, for several ports.
        limits: Limits of each client.
        token: Token that clients must send, see `Access`.
        access: Who may connect, instead of address and token.
        idle_timeout: Seconds without a step after which `train()` returns and reports it; None waits forever.
        max_staleness: Updates by which weights may be behind when PPO learns from their steps; None for any.
        return_s: Seconds in which a client that lost its connection may return to its episodes.
        batch_wait: Seconds that a request for an action waits for the next one, to be batched with it.
        env_steps_per_sample: Env steps that clients with local inference send at once. None is the length of a rollout
            fragment. Less if it may not fit into `Limits.max_body`.
        force_on_policy: Whether these clients wait for the next weights; None leaves it to the algorithm.
        clients_act: Whether all clients act alone, so that policies must not see the output of an
            `observation_fn`.

    Attributes:
        server: The server with its transports.
        sessions: Its clients.

    Raises:
        ConfigError: A setting is wrong, or other machines could connect without a token.
    """

    def __init__(
        self,
        ioctx: InputContext,
        address: str = "127.0.0.1",
        port: int = 9900,
        *,
        transport: TransportName | Transport | Sequence[Transport] = "http",
        limits: Limits | None = None,
        token: str | None = None,
        access: Access | None = None,
        idle_timeout: float | None = 30.0,
        max_staleness: int | None = None,
        return_s: float = 60.0,
        batch_wait: float = 0.0005,
        env_steps_per_sample: int | None = None,
        force_on_policy: bool | None = None,
        clients_act: bool = False,
    ) -> None:
        self._name = name = type(self).__name__
        transports = _transports(name, ioctx, port, transport)
        _check(
            limits=limits, access=access, transports=transports, idle_timeout=idle_timeout, max_staleness=max_staleness,
            return_s=return_s, batch_wait=batch_wait, env_steps_per_sample=env_steps_per_sample,
            force_on_policy=force_on_policy,
        )  # fmt: skip
        _check_spaces(name, ioctx)
        super().__init__(
            EpisodeBroker(batch_wait=batch_wait), observation_space=ioctx.observation_space,
            action_space=ioctx.action_space, observation_spaces=ioctx.observation_spaces,
            action_spaces=ioctx.action_spaces, possible_agents=ioctx.possible_agents, idle_timeout=idle_timeout,
        )  # fmt: skip
        self.max_staleness = max_staleness
        self._clients_act = clients_act
        self._env_steps_per_sample, self._force_on_policy = env_steps_per_sample, force_on_policy
        self._trainer: Trainer | None = None
        limits, access = limits or Limits(), access or Access(address=address, token=token)
        self._sending = threading.Lock()
        self.sessions = ServerSessions(self.broker, ioctx, limits, access, self._post, return_s)
        self.server = Server(self.sessions, transports, limits, access)
        self._interrupts = Interrupts(self.broker.wake)
        self._calls: deque[Callable[[], object]] = deque()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return list(self.server.addresses)

    def connect(self, trainer: Trainer) -> None:
        """Start the server; see `ExternalEnvs.connect`.

        Raises:
            ConfigError: Policies see the output of an `observation_fn`, which clients that act alone lack.
        """
        if trainer.observation_fn and self._clients_act:
            raise ConfigError(
                f"observation_fn: set together with {self._name}, whose clients act alone on what they observe, "
                "expected one of the two; show more in the clients' own observations, or have remote clients ask "
                "PolicyServerInput"
            )
        self._trainer = trainer
        sessions, forced = self.sessions, self._force_on_policy
        sessions.ingest.widths = _widths(trainer.latest.policies.values())
        fit = _max_env_steps(sessions.ioctx, sessions.ingest.widths, sessions.limits)
        sessions.config = {
            "env_steps_per_sample": min(self._env_steps_per_sample or trainer.env_steps_per_sample, fit),
            "force_on_policy": trainer.force_on_policy if forced is None else forced,
            "policies": _describe_policies(trainer),
            "explore": trainer.explore,
        }
        sessions.trainer = trainer
        sessions.ingest.refused = trainer.observation_fn
        self.server.start()

    def published(self) -> None:
        """Answer the clients that wait for new weights, and whose chunks were read; see `ExternalEnvs.published`."""
        if (trainer := self._trainer) is not None:
            self.sessions.ingest.widths = _widths(trainer.latest.policies.values())
            self.sessions.set_policies(_describe_policies(trainer))
        # A client whose chunks were not all read would play ahead of the sampler.
        unread = {one for one in list(self.sessions.connected) if self.broker.has_unread(one.state.backlog)}
        self.sessions.weights_changed(keep=unread)

    def poll(self, timeout: float | None = None) -> Ready:
        """Return what clients have sent, or raise the Ctrl-C that `unbroken` holds back; see `ExternalEnvs.poll`.

        Until `rest`, the calling thread serves the clients itself while it waits.
        """
        if self._trainer is None:
            raise CallOrderError(
                f"{self._name}: polled before an algorithm was built on it, expected `connect` first; give "
                'it as config["input"]'
            )
        until = None if timeout is None else time.monotonic() + timeout
        self.broker.server = self.server if self.server.borrow() else None
        while True:
            self._interrupts.check()
            while self._calls:
                self._calls.popleft()()
            if not self.broker.ready and self.sessions.all_wait_for_weights():
                self.sessions.weights_changed()
            left = None if until is None else max(0.0, until - time.monotonic())
            ready = super().poll(left)
            # Requests without agents have an answer already.
            self._flush()
            if len(ready.slots) or ready.played or ready.ended or ready.episodes or ready.unclaimed:
                return ready
            if until is not None and time.monotonic() >= until:
                # The algorithm does not learn now: clients continue with the current weights.
                self.sessions.weights_changed()
                return ready

    def rest(self) -> None:
        """Let the server's thread serve the clients; see `BaseEnv.rest`."""
        self.server.give_back()

    def call_soon(self, do: Callable[[], object]) -> None:
        """Have the sampler's thread call `do` when it waits for clients. From any thread."""
        self._calls.append(do)
        self.broker.wake()

    def unbroken(self) -> Interrupts:
        """Hold Ctrl-C back until the next poll; see `BaseEnv.unbroken`."""
        return self._interrupts

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer clients; see `BaseEnv.send_actions`."""
        super().send_actions(slots, actions)
        self._flush()

    def status(self) -> dict[str, Any]:
        """Return the number of clients, and of their faults."""
        return {
            "clients_connected": len(self.sessions.connected),
            **super().status(),
            **self.sessions.latency(),
            "steps_sent_again": self.sessions.ingest.repeated,
            "messages_refused": self.sessions.num_refused,
            "server_faults": self.server.faults.count,
        }

    def stop(self) -> None:
        """Tell clients that the server stops, and free ports and threads; may be called from any thread."""
        super().stop()
        self.sessions.stop(BadMessageError(ErrorCode.STOPPING, str(stopped())))
        self._flush()
        self.server.stop()

    def _flush(self) -> None:
        """Have all decisions sent; called by the sampler's thread or the one that stops it."""
        with self._sending:
            self.sessions.send_decisions()

    def _post(self, callback: Any) -> None:
        self.server.post(callback)


class RLlinkInput(PolicyServerInput):
    """A server for RLlink clients over TCP, which run an ONNX policy themselves; see `PolicyServerInput`.

    Clients that use the menv extension may connect to the same port.

    Args:
        ioctx: The argument of the function `config["input"]`.
        address: Address to bind to; any but loopback needs a token, which RLlink's own clients cannot send.
        port: 0 chooses a free one.
        settings: See `PolicyServerInput`.
    """

    def __init__(
        self, ioctx: InputContext, address: str = "127.0.0.1", port: int = 5555, **settings: Any
    ) -> None:
        super().__init__(ioctx, address, port, **{"transport": "tcp", "clients_act": True, **settings})


def _transports(name: str, ioctx: InputContext, port: int, transport: Any) -> Sequence[Transport]:
    """Return the transports of a server, or raise `ConfigError`."""
    if not isinstance(ioctx, InputContext):
        raise ConfigError(
            f"{name}: its first argument is a {type(ioctx).__name__}, expected the InputContext "
            f"that the function is given; write lambda ioctx: {name}(ioctx, address, port)"
        )
    if isinstance(transport, list | tuple):
        return transport
    if isinstance(transport, Transport):
        return [transport]
    if transport not in ("tcp", "http"):
        raise ConfigError(f'transport: {transport!r}, expected "http", "tcp" or a Transport')
    # The module of HTTP needs an extra.
    module = importlib.import_module(f"menv.serving.transports.{transport}")
    return [getattr(module, f"{transport.title()}Transport")(port)]


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "limits": (lambda value: value is None or isinstance(value, Limits), "a Limits or None"),
    "access": (lambda value: value is None or isinstance(value, Access), "an Access or None"),
    "transports": (lambda value: all(isinstance(one, Transport) for one in value or [0]), "one Transport at least"),
    "idle_timeout": (lambda value: value is None or (_seconds(value) and value > 0), "seconds above 0 or None"),
    "max_staleness": (lambda value: value is None or _whole(value), "a whole number from 0 or None"),
    "return_s": (_seconds, "seconds from 0"),
    "batch_wait": (_seconds, "seconds from 0"),
    "env_steps_per_sample": (lambda value: value is None or (_whole(value) and value > 0), "a whole number above 0"),
    "force_on_policy": (lambda value: value is None or isinstance(value, bool), "True, False or None"),
}  # fmt: skip


def _check(**settings: Any) -> None:
    for name, value in settings.items():
        is_right, expected = _RULES[name]
        if not is_right(value):
            raise ConfigError(f"{name}: got {value!r:.60}, expected {expected}; leave it out for the default")


def _check_spaces(name: str, ioctx: InputContext) -> None:
    for kind in ("observation", "action"):
        if getattr(ioctx, f"{kind}_space") is None and not getattr(ioctx, f"{kind}_spaces"):
            raise ConfigError(
                f"{name}: no {kind} space is known, expected the spaces of a stub or of the config; give env=..., a "
                "stub, a MultiAgentEnv if clients name agents, or observation_space and action_space"
            )
    agents = (*ioctx.possible_agents, *ioctx.observation_spaces, *ioctx.action_spaces)
    unnamed = [agent for agent in agents if not isinstance(agent, str)]
    if ioctx.multi_agent and unnamed:
        raise ConfigError(
            f"{name}: agent {unnamed[0]!r:.60} is a {type(unnamed[0]).__name__}, expected texts, by which messages "
            "name agents; have the stub call it by one, and give its spaces under that"
        )


def _describe_policies(trainer: Trainer) -> dict[str, Any]:
    return {
        name: {
            "observation_space": space_to_json(policy.observation_space),
            "action_space": space_to_json(policy.action_space),
        }
        for name, policy in trainer.latest.policies.items()
    }


def _max_env_steps(ioctx: InputContext, widths: Mapping[str, Collection[int]], limits: Limits) -> int:
    """Return how many env steps surely fit into one JSON body if all agents act in each; at least 1."""
    numbers = 2 + sum(max(widths.get(name, ()), default=0) for name in ("action_dist_inputs", "state_in"))
    beside = _STEP_BYTES + _NUMBER_BYTES * numbers
    sizes = [
        beside + sum(_json_bytes(space) for space in ioctx.spaces_of(agent) if space is not None)
        for agent in ioctx.possible_agents or (SINGLE_AGENT,)
    ]
    # There is one more observation than actions.
    return max(1, limits.max_body // sum(sizes) - 1)


def _json_bytes(space: Any) -> int:
    size = 0
    for leaf in leaves(space):
        each = _NUMBER_BYTES
        if leaf.dtype is not None and leaf.dtype.kind in "iu":
            # 255 may be written as 255.0, followed by comma and blank.
            each = 4 + max(len(f"{end}") for end in (np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max))
        size += each * (getattr(leaf, "max_length", 0) or math.prod(leaf.shape or ()))
    return size


def _widths(policies: Collection[Policy]) -> dict[str, frozenset[int]]:
    """Return the allowed lengths of `action_dist_inputs` and `state_in`; nothing if a policy is unknown."""
    known = [policy.networks for policy in policies if isinstance(policy, NetworkPolicy)]
    if len(known) < len(policies):
        return {}
    heads = [networks.backend.head for networks in known]
    states = frozenset(sum(networks.state_sizes) for networks in known)
    # States of policies without hidden state are ignored, and so are Q-values.
    has_inputs = not all(head.is_value_based for head in heads)
    return {
        "action_dist_inputs": frozenset(head.inputs for head in heads) if has_inputs else frozenset(),
        "state_in": frozenset() if 0 in states else states,
    }
