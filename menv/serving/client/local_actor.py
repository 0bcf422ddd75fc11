"""State that all local episodes of a client share: the policies, their weights, and the exchange with the server.

`LocalEpisode` gets policies here and reports steps. Where the server forces clients to stay on policy, the call that
completes a chunk waits for the next weights. Otherwise a background thread sends chunks and fetches weights while calls
continue with the current ones. That thread changes nothing: the next step applies what it has brought, an `Exchange`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from menv import rng
from menv.base_env import Column
from menv.connectors.action_output import ActionOutput
from menv.errors import ConfigError, ContractError, EpisodeError, MenvError, RefusedError
from menv.inference.network_policy import ComputedAction, NetworkPolicy
from menv.inference.policy_bundle import policy_from_bytes, unpack_weights
from menv.serving.client.client_session import ClientSession, SessionLostError
from menv.serving.protocol import Episodes, EpisodesAndGetState, ErrorCode, GetPolicies, GetState, SetState
from menv.spaces import OutsideSpaceError

if TYPE_CHECKING:
    from msgspec import Raw

    from menv.serving.client.local_episode import LocalEpisode


_BLOCK = 64
ADVICE = "pass observations of the space that the server was configured with"

PolicyUpdate = NetworkPolicy | dict[str, Any]
"""A whole policy, or the weights of one."""


class ClientGenerator:
    """Random numbers for one agent of one episode. They depend on the seed and the ids only, not on other agents."""

    __slots__ = ("_block", "_draw", "_key", "_next", "_position", "_width")

    def __init__(self, policy: NetworkPolicy, seed: int, *ids: str) -> None:
        head = policy.networks.backend.head
        self._draw, self._width = head.draw, head.noise_width
        self._key = np.uint64(rng.key(seed, rng.ACTION, *map(rng.stable_hash, ids)))
        self._next, self._position = 0, _BLOCK
        self._block: Column = np.zeros((0, head.noise_width), np.float32)

    def sample(self) -> Column:
        """Return the next [1, width] random numbers."""
        at = self._position
        if at == _BLOCK:
            steps = np.arange(self._next, self._next + _BLOCK)
            self._block = self._draw(np.full(_BLOCK, self._key), steps, self._width)
            self._next += _BLOCK
            at = 0
        self._position = at + 1
        return self._block[at : at + 1]


class LocalPolicy:
    """A policy that acts in the client, and the number of its weights.

    `state_size` is S, the size of a recurrent state. Raises ContractError for a policy that cannot act here.
    """

    def __init__(self, blob: bytes, number: int) -> None:
        self.policy = policy_from_bytes(blob)
        self.number = number
        networks = self.policy.networks
        self.state_size = sum(networks.state_sizes)
        if self.policy.keeps_lives:
            raise ContractError(
                f"policy {self.policy.policy_id!r}: its connectors keep state per agent, such as stacked frames, which "
                "only the server has; use inference_mode='remote'"
            )

    def take(self, update: PolicyUpdate, number: int) -> bool:
        """Use an update; return False if it is a policy of another network."""
        if not isinstance(update, NetworkPolicy):
            self.policy.set_weights(update)
        elif _signature(update) == _signature(self.policy):
            self.policy = update
        else:
            return False
        self.number = number
        return True

    def as_element(self, obs: Any) -> Any:
        """Return an observation that came as a list of numbers as an array of its space."""
        space = self.policy.observation_space
        if isinstance(obs, (list, tuple)) and isinstance(space, gym.spaces.Box):
            return np.array(obs, space.dtype)
        return obs

    def act(
        self, obs: Sequence[Any], noise: Column | None, states: Column | None, where: str
    ) -> ComputedAction:
        """Return the policy's actions for R observations.

        `noise` is [R, width], None for the most likely actions; `states` is [R, S] or None.
        """
        try:
            return self.policy.decide(obs, noise, states)
        except ContractError as error:
            why = error.with_advice(ADVICE) if isinstance(error, OutsideSpaceError) else error
            raise ContractError(f"{where}: {why}") from error

    def evaluate(
        self, rows: Column, mask: Column | None, actions: Column, states: Column | None, where: str
    ) -> tuple[Column | None, Column]:
        """Return inputs and log-probabilities of N taken actions, in terms of the environment's actions.

        The inputs are [N, K], None for a value-based policy; the log-probabilities are [N].
        """
        networks = self.policy.networks
        if self.policy.plain:
            bad = networks.preprocess.why_bad_row(rows)
            if bad is not None:
                raise ContractError(
                    f"{where}, observation {bad[0]} of the last {len(rows)}: {bad[1]}; {ADVICE}"
                )
        found = networks.backend.evaluate(self.policy.index, rows, mask, actions, states)
        output: ActionOutput = networks.output
        logp = found.logp - np.float32(output.log_scale.sum())
        if networks.backend.head.is_value_based:
            return None, logp
        return output.outer_inputs(found.dist_inputs), logp


def _signature(policy: NetworkPolicy) -> Any:
    shapes = {name: np.shape(value) for name, value in policy.get_weights().items()}
    return policy.observation_space, policy.action_space, policy.networks.state_sizes, shapes


_MAX_MESSAGE_BYTES = 500_000
"""Approximate limit of one message; half of the default limit of servers."""
_MAX_WAITING_BYTES, _MAX_WAITING = 8 * _MAX_MESSAGE_BYTES, 64
"""Bytes of chunks, and chunks per open episode, that may wait in the outbox before calls wait."""
_PAUSE_S = 0.05
"""Pause before a server that has no room is asked again."""
_OLDER_THAN_ALL = 0
"""Below the number of any weights."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Complete steps of an episode as an entry of EPISODES, and the number of the weights that chose the actions."""

    episode: LocalEpisode
    raw: Raw
    env_steps: int
    number: int | None
    size: int


@dataclass(slots=True)
class Exchange:
    """The outcome of sending chunks and fetching weights.

    Attributes:
        chunks: Chunks that the server has or will never take.
        lost: Ids of episodes that were given up, which it knows now.
        refused: Why it does not take a chunk.
        state: The newest weights; `updates` are the unpacked ones by policy, and `session` is where they come from.
    """

    chunks: list[Chunk] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    refused: list[tuple[Chunk, MenvError]] = field(default_factory=list)
    state: SetState | None = None
    updates: dict[str, PolicyUpdate] = field(default_factory=dict)
    session: str | None = None


class LocalActor:
    """Acts for a client, sends complete steps and keeps the weights current.

    `lock` is held by a thread that acts. `weights_seq_no` is the number of the newest weights that all policies have,
    None before the first.
    """

    def __init__(self, server: ClientSession, update_interval: float | None, seed: int | None) -> None:
        self.lock = threading.RLock()
        self.seed = secrets.randbits(63) if seed is None else seed
        self.weights_seq_no: int | None = None
        self._server = server
        self._session = server.session
        # The session that delivered the current weights.
        self._weights_session = server.session
        self._interval = update_interval or None
        self._next_update = self._next_due()
        self._policies: dict[str, LocalPolicy] = {}
        # Whether the server has more policies than the single one of its greeting.
        self._asks_policies = False
        self._open: dict[str, LocalEpisode] = {}
        self._outbox: list[Chunk] = []
        self._steps = 0
        # Errors of episodes that were given up after their end.
        self._unreported: list[MenvError] = []
        # Ids of episodes that the server would otherwise wait for.
        self._lost_ids: list[str] = []
        # One thread for all messages: on a busy machine a new one starts slowly.
        self._executor = ThreadPoolExecutor(1, "menv-policy-client")
        self._job: Future[Exchange] | None = None

    def noise(self, *generators: ClientGenerator) -> Column | None:
        """Return [R, width] random numbers, None where the server's policies take the most likely actions."""
        if self._server.config.explore is False:
            return None
        return (
            generators[0].sample()
            if len(generators) == 1
            else np.concatenate([one.sample() for one in generators])
        )

    def opened(self, episode: LocalEpisode) -> None:
        """Register an episode that has begun."""
        with self.lock:
            if episode.trained:
                self._open[episode.episode_id] = episode
            self._refresh()

    def forget(self, episode: LocalEpisode) -> None:
        """Drop an episode that is played remotely instead."""
        with self.lock:
            self._open.pop(episode.episode_id, None)

    def stepped(self) -> None:
        """Count a complete step; send when a chunk is full, and fetch weights when due."""
        self._settle()
        if self._unreported:
            raise self._unreported.pop()
        self._steps += 1
        if self._steps < self._server.config.env_steps_per_sample:
            self._refresh()
            return
        self._steps = 0
        if self._server.config.force_on_policy:
            self._send(wait=True)
            return
        self._collect()
        waiting = sum(chunk.size for chunk in self._outbox)
        if waiting > _MAX_WAITING_BYTES or len(self._outbox) > _MAX_WAITING * max(1, len(self._open)):
            self._settle(wait=True)
        self._send_in_background()

    def ended(self, episode: LocalEpisode) -> None:
        """Set the rest of an episode aside that has ended."""
        if self._open.pop(episode.episode_id, None) is None:
            return
        if not self._try(self.set_aside, episode):
            raise self._unreported.pop()
        self.stepped()

    def set_aside(self, episode: LocalEpisode) -> None:
        """Put the complete steps of an episode into the outbox."""
        chunk = episode.chunk()
        if chunk is not None:
            raw, steps = chunk
            self._outbox.append(Chunk(episode, raw, steps, self.weights_seq_no, len(memoryview(raw))))

    def _try(self, do: Callable[[LocalEpisode], None], episode: LocalEpisode) -> bool:
        """Call a function with an episode; where it refuses its values, give the episode up and return False."""
        try:
            do(episode)
        except ContractError as error:
            self._give_up(episode, error)
            return False
        return True

    def policies_of(self, episode: LocalEpisode, agents: Sequence[str]) -> dict[str, LocalPolicy]:
        """Return the policies that act for agents new in an episode."""
        before, known = self._asks_policies, list(self._server.config.policies or {})
        alone = len(known) == 1 and not before
        names = dict.fromkeys(agents, known[0]) if alone else self._map_agents(episode, agents)
        missing = sorted(set(names.values()) - self._policies.keys())
        if missing:
            self._fetch(missing)
        if self._asks_policies is not before:
            return self.policies_of(episode, agents)
        return {agent: self._policies[name] for agent, name in names.items()}

    def update(self) -> None:
        """Send complete steps and fetch the newest weights."""
        with self.lock:
            self._next_update = self._next_due()
            self._send()
            exchange = Exchange()
            self._fetch_newest(exchange)
            self._apply(exchange)

    def flush(self) -> None:
        """Send complete steps."""
        with self.lock:
            self._send()

    def _next_due(self) -> float | None:
        return None if self._interval is None else time.monotonic() + self._interval

    def _refresh(self) -> None:
        """Have new weights fetched if they are due; a server that forces clients to stay on policy sends them."""
        if self._next_update is None or time.monotonic() < self._next_update:
            return
        if self._server.config.force_on_policy:
            self._next_update = self._next_due()
        elif self._job is None:
            self._collect()
            self._send_in_background()

    def _send_in_background(self) -> None:
        """Have complete steps sent, and weights fetched if they are due, unless that is under way."""
        if self._job is not None:
            return
        fetches = self._next_update is not None and time.monotonic() >= self._next_update
        if fetches:
            self._next_update = self._next_due()
        self._job = self._executor.submit(self._exchange, self._outbox[:], self._lost_ids[:], fetches=fetches)

    def _settle(self, wait: bool = False) -> None:
        """Apply what the background thread has brought, or raise its error; with `wait`, wait for it."""
        if self._job is not None and (wait or self._job.done()):
            job, self._job = self._job, None
            with suppress(SessionLostError):
                self._apply(job.result())

    def _send(self, wait: bool = False) -> None:
        """Send all complete steps and raise the first refusal; with `wait`, also wait for the next weights."""
        self._settle(wait=True)
        self._collect()
        while self._outbox or self._lost_ids:
            with suppress(SessionLostError):
                self._apply(self._exchange(self._outbox[:], self._lost_ids[:], wait=wait))
            self._follow_session()
        if self._unreported:
            raise self._unreported.pop()

    def _collect(self) -> None:
        self._follow_session()
        for episode in list(self._open.values()):
            self._try(self.set_aside, episode)

    def _exchange(
        self, chunks: list[Chunk], lost: list[str], *, wait: bool = False, fetches: bool = False
    ) -> Exchange:
        """Send chunks; with `wait`, wait for the next weights, with `fetches`, fetch the newest."""
        exchange, messages = Exchange(chunks, lost), _messages(chunks)
        until = time.monotonic() + self._server.timeout
        if fetches:
            self._fetch_newest(exchange)
        while messages:
            part = messages.pop(0)
            try:
                self._send_message(part, exchange, wait and not messages)
            except SessionLostError:
                raise
            except (EpisodeError, RefusedError) as error:
                if len(part) > 1:
                    # The server refuses a message as a whole; send each chunk alone to find the refused one.
                    messages[:0] = [[chunk] for chunk in part]
                elif getattr(error, "code", None) != ErrorCode.TOO_MANY:
                    exchange.refused.append((part[0], error))
                elif time.monotonic() < until:
                    time.sleep(_PAUSE_S)
                    messages.insert(0, part)
                else:
                    raise
        if lost:
            self._server.ask(Episodes(episodes=[], env_steps=0, lost=lost))
        return exchange

    def _send_message(self, chunks: Sequence[Chunk], exchange: Exchange, wait: bool) -> None:
        about: dict[str, Any] = {
            "episodes": [chunk.raw for chunk in chunks],
            "env_steps": sum(chunk.env_steps for chunk in chunks),
            "weights_seq_no": chunks[0].number,
        }
        if wait:
            _unpack(
                self._server.ask(self._request(EpisodesAndGetState, **about)), exchange, self._server.session
            )
        else:
            self._server.ask(Episodes(**about))

    def _fetch_newest(self, exchange: Exchange) -> None:
        """Fetch the newest weights, again if the server has discarded the session meanwhile."""
        session: str | None = ""
        while self._policies and self._server.session != session:
            session = self._server.session
            state = self._server.ask(self._request(GetState), in_new_session=True)
            if self._server.session == session:
                _unpack(state, exchange, session)

    def _apply(self, exchange: Exchange) -> None:
        """Remove what the server has received, and use new weights."""
        self._follow_session()
        done = set(map(id, exchange.chunks))
        self._outbox = [chunk for chunk in self._outbox if id(chunk) not in done]
        self._lost_ids = [name for name in self._lost_ids if name not in exchange.lost]
        for chunk, error in exchange.refused:
            self._give_up(chunk.episode, error)
        for chunk in exchange.chunks:
            chunk.episode.known |= not chunk.episode.refused
        if exchange.state is not None:
            self._take(exchange.state, exchange.updates, exchange.session)

    def _map_agents(self, episode: LocalEpisode, agents: Sequence[str]) -> dict[str, str]:
        name, trained = episode.episode_id, episode.trained
        # An episode that the server does not know can begin in a new session.
        answer = self._server.ask(
            GetPolicies(episode_id=name, agent_ids=list(agents), training_enabled=trained),
            in_new_session=not episode.known,
        )
        self._follow_session()
        episode.known = trained
        names: dict[str, str] = answer.policy_ids
        _require("GetPolicies", agents, names)
        return names

    def _fetch(self, names: list[str]) -> None:
        state = self._server.ask(GetState(form="bundle", policy_ids=names), in_new_session=True)
        bundles = state.bundles or {}
        _require("GetState", names, bundles)
        for name in names:
            self._policies[name] = LocalPolicy(bundles[name], state.weights_seq_no)
        self._asks_policies = self._asks_policies or bool(state.ask_policies)
        if self.weights_seq_no is None:
            # Other policies keep their older weights until the next update.
            self.weights_seq_no, self._weights_session = state.weights_seq_no, self._server.session

    def _give_up(self, episode: LocalEpisode, error: MenvError) -> None:
        if episode.refused:
            return
        episode.refused = f"a part of it was refused ({error})"
        self._open.pop(episode.episode_id, None)
        self._outbox = [chunk for chunk in self._outbox if chunk.episode is not episode]
        if episode.known:
            self._lost_ids.append(episode.episode_id)
        if episode.over:
            # An open episode raises in its next call.
            self._unreported.append(episode.lost_error())

    def _follow_session(self) -> None:
        """Give up the episodes of a session that the server has discarded."""
        if self._server.session == self._session:
            return
        self._session, self._lost_ids = self._server.session, []
        for episode in (*self._open.values(), *(chunk.episode for chunk in self._outbox)):
            episode.lost = episode.known
        self._open = {name: episode for name, episode in self._open.items() if not episode.lost}
        self._outbox = [chunk for chunk in self._outbox if not chunk.episode.lost]

    def _request(self, kind: type[Any], **more: Any) -> Any:
        """Return a request for the weights of all local policies.

        A new session may belong to another server, where the numbers of the current weights mean nothing.
        """
        in_new_session = self._server.session != self._weights_session
        policies = dict(self._policies)
        plain = all(policy.policy.plain for policy in policies.values())
        form = "weights" if plain and not in_new_session else "bundle"
        have = _OLDER_THAN_ALL if in_new_session and policies else self.weights_seq_no
        return kind(policy_ids=sorted(policies), form=form, have=have, **more)

    def _take(self, state: SetState, updates: Mapping[str, PolicyUpdate], session: str | None) -> None:
        """Use new weights."""
        for episode in list(self._open.values()) if updates else ():
            self._try(lambda one: one.evaluate(), episode)
        for name in updates.keys() & self._policies.keys():
            if not self._policies[name].take(updates[name], state.weights_seq_no):
                # Running episodes keep the previous policy.
                self._policies[name] = LocalPolicy((state.bundles or {})[name], state.weights_seq_no)
        self.weights_seq_no, self._weights_session = state.weights_seq_no, session
        self._asks_policies = self._asks_policies or bool(state.ask_policies)


def _messages(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Divide chunks into messages that are not too long, each with actions of the same weights."""
    messages: list[list[Chunk]] = []
    size = 0
    for chunk in chunks:
        size += chunk.size
        if not messages or size > _MAX_MESSAGE_BYTES or chunk.number != messages[-1][0].number:
            messages.append([])
            size = chunk.size
        messages[-1].append(chunk)
    return messages


def _unpack(state: SetState, exchange: Exchange, session: str | None) -> None:
    """Unpack an answer with weights, which takes longer than a step; raises ConfigError if they are damaged."""
    weights, bundles = state.weights or {}, state.bundles or {}
    exchange.state, exchange.session = state, session
    exchange.updates = {name: unpack_weights(one) for name, one in weights.items()}
    exchange.updates |= {name: policy_from_bytes(one) for name, one in bundles.items()}


def _require(asked: str, wanted: Sequence[str], found: Mapping[str, Any]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ConfigError(
            f"PolicyClient: the answer to {asked} holds nothing for {missing[:5]!a:.120}, expected all that was "
            "asked for; check the address"
        )
