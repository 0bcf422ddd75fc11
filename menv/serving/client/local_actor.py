"""State that all local episodes of a client share: the policies, their weights, and the exchange with the server.

`LocalEpisode` gets policies here and reports steps. Where the server forces clients to stay on policy, the call that
completes a chunk waits for the next weights. Otherwise a background thread sends chunks and fetches weights while calls
continue with the current ones. One lock guards all of it; the thread holds it only to hand over results.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from menv.spaces import OutsideSpaceError, leaves

if TYPE_CHECKING:
    from msgspec import Raw

    from menv.serving.client.local_episode import LocalEpisode


_BLOCK = 64
_BYTES_PER_PART = 64

PolicyUpdate = NetworkPolicy | dict[str, Any]
"""A whole policy, or the weights of one."""


def unpacked(weights: bytes | None, bundle: bytes | None) -> PolicyUpdate:
    """Return the policy in a bundle, or without a bundle the weights; raises ConfigError if they are damaged."""
    return unpack_weights(weights or b"") if bundle is None else policy_from_bytes(bundle)


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

    `state_size` is S, the size of a recurrent state. `obs_bytes` and `step_bytes` estimate the size of an observation
    and of the rest of a step in a message. Raises ContractError for a policy that cannot act here.
    """

    def __init__(self, blob: bytes, number: int) -> None:
        self.policy = policy_from_bytes(blob)
        self.number = number
        networks = self.policy.networks
        self.state_size = sum(networks.state_sizes)
        self.obs_bytes = _bytes_of(networks.observation_space)
        # Each part of an action may be an array with a header.
        action_bytes = _bytes_of(networks.action_space) + _BYTES_PER_PART * len(leaves(networks.action_space))
        head = networks.backend.head
        inputs = 0 if head.is_value_based else head.inputs
        self.step_bytes = action_bytes + np.dtype(np.float32).itemsize * (self.state_size + inputs)
        self._read_policy()
        if self.policy.keeps_lives:
            raise ContractError(
                f"policy {self.policy.policy_id!r}: its connectors keep state per agent, such as stacked frames, which "
                "only the server has; use inference_mode='remote'"
            )

    def take(self, update: PolicyUpdate, number: int) -> bool:
        """Use the result of `unpacked`; return False if it is a policy of another network."""
        if not isinstance(update, NetworkPolicy):
            self.policy.set_weights(update)
        elif _signature(update) == _signature(self.policy):
            self.policy = update
            self._read_policy()
        else:
            return False
        self.number = number
        return True

    def _read_policy(self) -> None:
        self.wants = "weights" if self.policy.plain else "bundle"

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
        except OutsideSpaceError as error:
            raise ContractError(
                f"{where}: {error.with_advice('pass observations of the space that the server was configured with')}"
            ) from error
        except ContractError as error:
            raise ContractError(f"{where}: {error}") from error

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
                    f"{where}, observation {bad[0]} of the last {len(rows)}: {bad[1]}; pass observations of the space "
                    "that the server was configured with"
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


def _bytes_of(space: gym.Space[Any]) -> int:
    return sum(
        _BYTES_PER_PART
        if leaf.shape is None or leaf.dtype is None
        else int(np.prod(leaf.shape)) * leaf.dtype.itemsize + 1
        for leaf in leaves(space)
    )


_MAX_MESSAGE_BYTES = 500_000
"""Approximate limit of one message; half of the default limit of servers."""
_MAX_OVERHEAD_BYTES = 10_000
"""Largest overhead of a message with one chunk, in bytes."""
_MAX_WAITING = 64
"""Chunks per open episode that may wait in the outbox before calls wait."""
_MAX_WAITING_BYTES = 8 * _MAX_MESSAGE_BYTES
_PAUSE_S = 0.05
"""Pause before a full server is asked again."""
_OLDER_THAN_ALL = 0
"""Below the number of any weights."""


class LocalActor:
    """Acts for a client, sends complete steps and keeps the weights current.

    `lock` is held by a thread that acts or applies an answer. `weights_seq_no` is the number of the newest weights that
    all policies have, None before the first.
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
        # Chunks with their env steps and the number of the weights that chose their actions.
        self._outbox: list[tuple[LocalEpisode, Raw, int, int | None]] = []
        self._steps = self._bytes = 0
        # Errors of episodes that were given up after their end.
        self._unreported: list[EpisodeError] = []
        # Ids of episodes that the server would otherwise wait for.
        self._lost_ids: list[str] = []
        # The background thread: whether it runs, and whether it should fetch weights.
        self._progress = threading.Condition(self.lock)
        self._busy = self._wants_weights = False
        # One thread for all messages: on a busy machine a new one starts slowly.
        self._executor = ThreadPoolExecutor(1, "menv-policy-client")
        self._failure: BaseException | None = None

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

    def stepped(self, size: int) -> None:
        """Count a complete step of about `size` bytes; send when a chunk is full, and fetch weights when due."""
        self._steps += 1
        self._bytes += size
        # A chunk also holds the observation after its last step.
        enough = self._steps >= self._server.config.env_steps_per_sample
        if enough or self._bytes + size > _MAX_MESSAGE_BYTES:
            self._steps = 0 if enough else self._steps
            if self._server.config.force_on_policy:
                self._send(enough)
            else:
                self._send_in_background()
        elif self._next_update is not None and time.monotonic() >= self._next_update:
            self._refresh()

    def make_room(self, episode: LocalEpisode, size: int) -> None:
        """Set complete steps of an episode aside if another `size` bytes would make one message too large."""
        if size and self._bytes + size > _MAX_MESSAGE_BYTES:
            self._try(self.set_aside, episode)

    def ended(self, episode: LocalEpisode) -> None:
        """Set the rest of an episode aside that has ended."""
        if self._open.pop(episode.episode_id, None) is None:
            return
        if not self._try(self.set_aside, episode):
            self._raise_failure()
        try:
            self.stepped(0)
        except RefusedError as error:
            if not _is_full(error):
                raise
            # The next action raises it: the end of this episode is kept and sent later.
            self._failure = error

    def set_aside(self, episode: LocalEpisode) -> None:
        """Put the complete steps of an episode into the outbox."""
        chunk = episode.chunk()
        if chunk is not None:
            self._outbox.append((episode, *chunk, self.weights_seq_no))

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
            self._fetch_newest()

    def flush(self) -> None:
        """Send complete steps."""
        with self.lock:
            self._send()

    def _send_in_background(self) -> None:
        """Send complete steps in the background; raises the error of the last such sending."""
        while self._busy and self._is_outbox_full():
            self._progress.wait()
        self._raise_failure()
        self._collect()
        if not self._busy:
            self._busy = True
            self._executor.submit(self._run_in_background)

    def _is_outbox_full(self) -> bool:
        """Return whether so much waits in the outbox that calls must wait."""
        return (
            len(self._outbox) > _MAX_WAITING * max(1, len(self._open))
            or sum(len(memoryview(raw)) for _, raw, _, _ in self._outbox) > _MAX_WAITING_BYTES
        )

    def _run_in_background(self) -> None:
        """Send and fetch until no work is left; runs in the background thread."""
        try:
            while self._has_work():
                if self._wants_weights:
                    self._wants_weights = False
                    self._fetch_newest()
                else:
                    self._deliver()
        except BaseException as error:
            with self.lock:
                self._failure, self._busy, self._wants_weights = error, False, False
                self._progress.notify_all()

    def _has_work(self) -> bool:
        with self.lock:
            self._busy = bool(self._outbox or self._lost_ids or self._wants_weights)
            self._progress.notify_all()
            return self._busy

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._unreported:
            raise self._unreported.pop()

    def _fetch_newest(self) -> None:
        """Fetch the newest weights, again if the server has discarded the session meanwhile."""
        session: str | None = ""
        while self._policies and self._server.session != session:
            session = self._server.session
            with self.lock:
                request = self._request(GetState)
            state: SetState = self._server.ask(request, in_new_session=True)
            if self._server.session == session:
                self._take(state)

    def _refresh(self) -> None:
        if self._next_update is not None and time.monotonic() >= self._next_update:
            self._next_update = self._next_due()
            if not self._server.config.force_on_policy:
                self._wants_weights = True
                if not self._busy:
                    self._send_in_background()

    def _next_due(self) -> float | None:
        return None if self._interval is None else time.monotonic() + self._interval

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

    def _send(self, wait: bool = False) -> None:
        """Send all complete steps and raise the first refusal; with `wait`, also wait for the next weights."""
        while self._busy:
            self._progress.wait()
        if _is_full(self._failure):
            # The server was full; the outbox is sent now.
            self._failure = None
        self._raise_failure()
        self._collect()
        state = self._deliver(wait, time.monotonic() + self._server.timeout)
        if state is not None:
            self._take(state)
        self._raise_failure()

    def _collect(self) -> None:
        self._follow_session()
        for episode in list(self._open.values()):
            self._try(self.set_aside, episode)
        self._bytes = 0

    def _deliver(self, wait: bool = False, until: float = 0.0) -> SetState | None:
        """Send the outbox; return the next weights with `wait`.

        Raises RefusedError, and keeps everything, if the server has no room until the time `until`.
        """
        state, alone = None, False
        # In the background, fetching weights comes before sending more.
        while self._outbox and (until or not self._wants_weights):
            with self.lock:
                count = 1 if alone else self._next_message()
                entries, last = self._outbox[:count], wait and count == len(self._outbox)
            try:
                state = self._send_message(entries, last)
            except SessionLostError:
                with self.lock:
                    self._follow_session()
            except (EpisodeError, RefusedError) as error:
                if count == 1 and _is_full(error):
                    if time.monotonic() >= until:
                        raise
                    time.sleep(_PAUSE_S)
                    continue
                # The server refuses a message as a whole; send each chunk alone to find the refused one.
                alone = True
                if count == 1:
                    episode, raw = entries[0][:2]
                    with self.lock:
                        self._give_up(episode, _too_large(error, len(memoryview(raw))))
            else:
                with self.lock:
                    sent = set(map(id, entries))
                    self._outbox = [entry for entry in self._outbox if id(entry) not in sent]
        if lost := list(self._lost_ids):
            self._server.ask(Episodes(episodes=[], env_steps=0, lost=lost))
            with self.lock:
                self._lost_ids = [name for name in self._lost_ids if name not in lost]
        return state

    def _give_up(self, episode: LocalEpisode, error: MenvError) -> None:
        episode.refused = f"a part of it was refused ({error})"
        self._open.pop(episode.episode_id, None)
        self._outbox = [entry for entry in self._outbox if entry[0] is not episode]
        if episode.known:
            self._lost_ids.append(episode.episode_id)
        if episode.over:
            # An open episode raises in its next call.
            self._unreported.append(episode.lost_error())

    def _next_message(self) -> int:
        size = count = 0
        for _, raw, _, number in self._outbox:
            size += len(memoryview(raw))
            if count and (size > _MAX_MESSAGE_BYTES or number != self._outbox[0][3]):
                break
            count += 1
        return count

    def _send_message(
        self, entries: Sequence[tuple[LocalEpisode, Raw, int, int | None]], wait: bool
    ) -> SetState | None:
        """Send one message; with `wait`, return the next weights."""
        state: SetState | None = None
        about: dict[str, Any] = {
            "episodes": [raw for _, raw, _, _ in entries],
            "env_steps": sum(steps for _, _, steps, _ in entries),
            "weights_seq_no": entries[0][3],
        }
        if wait:
            state = self._server.ask(self._request(EpisodesAndGetState, **about))
            self._next_update = self._next_due()
        else:
            self._server.ask(Episodes(**about))
        for episode, *_ in entries:
            episode.known = True
        return state

    def _follow_session(self) -> None:
        """Give up the episodes of a session that the server has discarded."""
        if self._server.session == self._session:
            return
        self._session, self._lost_ids = self._server.session, []
        for episode in (*self._open.values(), *(entry[0] for entry in self._outbox)):
            episode.lost = episode.known
        self._open = {name: episode for name, episode in self._open.items() if not episode.lost}
        self._outbox = [entry for entry in self._outbox if not entry[0].lost]

    def _request(self, kind: type[Any], **more: Any) -> Any:
        """Return a request for the weights of all local policies.

        A new session may belong to another server, where the numbers of the current weights mean nothing.
        """
        in_new_session = self._server.session != self._weights_session
        forms = {policy.wants for policy in self._policies.values()}
        form = "bundle" if in_new_session or "bundle" in forms else "weights"
        have = _OLDER_THAN_ALL if in_new_session and self._policies else self.weights_seq_no
        return kind(policy_ids=sorted(self._policies), form=form, have=have, **more)

    def _take(self, state: SetState) -> None:
        """Apply an answer with weights; it is decoded before the lock is acquired."""
        weights, bundles = state.weights or {}, state.bundles or {}
        updates = {name: unpacked(weights.get(name), bundles.get(name)) for name in {**weights, **bundles}}
        with self.lock:
            for episode in list(self._open.values()) if updates else ():
                self._try(lambda one: one.evaluate(), episode)
            for name in updates.keys() & self._policies.keys():
                if not self._policies[name].take(updates[name], state.weights_seq_no):
                    # Running episodes keep the previous policy.
                    self._policies[name] = LocalPolicy(bundles[name], state.weights_seq_no)
            self.weights_seq_no = state.weights_seq_no
            self._weights_session = self._server.session
            self._asks_policies = self._asks_policies or bool(state.ask_policies)


def _is_full(error: BaseException | None) -> bool:
    return getattr(error, "code", None) == ErrorCode.TOO_MANY


def _too_large(error: MenvError, size: int) -> MenvError:
    if getattr(error, "code", None) != ErrorCode.TOO_LARGE:
        return error
    return RefusedError(
        f"{error}; {size} bytes, with two observations of each agent that acted, are not divided: raise "
        f"Limits.max_body on the server to {size + _MAX_OVERHEAD_BYTES}, or use inference_mode='remote'",
        ErrorCode.TOO_LARGE,
    )


def _require(asked: str, wanted: Sequence[str], found: Mapping[str, Any]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ConfigError(
            f"PolicyClient: the answer to {asked} holds nothing for {missing[:5]!a:.120}, expected all that was "
            "asked for; check the address"
        )
