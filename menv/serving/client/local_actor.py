"""What all episodes share that one client plays by itself: policies, their weights, and the way to the server.

`LocalEpisode` asks it for policies and tells it of steps. Where the server forces clients to stay on policy, a call
waits for the next weights. Otherwise a thread beside sends what is complete and fetches weights, and calls act on with
those that are here. One lock holds everything together; that thread holds it only to take over what has come.
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
from menv.connectors.pipeline import match_kinds, stateful_connectors
from menv.errors import ConfigError, ContractError, EpisodeError, MenvError, RefusedError
from menv.inference.network_policy import ComputedAction, NetworkPolicy
from menv.inference.policy_bundle import policy_from_bytes, unpack_weights
from menv.serving.client.client_session import ClientSession, SessionLostError
from menv.serving.codec import ErrorCode
from menv.serving.protocol import Episodes, EpisodesAndGetState, GetPolicies, GetState, SetState
from menv.spaces import OutsideSpaceError, leaves

if TYPE_CHECKING:
    from msgspec import Raw

    from menv.serving.client.local_episode import LocalEpisode


# SEAM menv.serving.client.local_policy
# A policy that a client holds: it acts, and says of what it did how probable that was.
#
# `LocalActor` fetches one and gives it new weights. It knows no episodes and no messages.


_AHEAD = 64
_BYTES_BESIDE = 64

News = NetworkPolicy | dict[str, Any]
"""A whole policy, or the weights of one."""


def unpacked(weights: bytes | None, bundle: bytes | None) -> News:
    """Return the policy in a bundle, or without one the weights.

    Raises:
        ConfigError: They are damaged.
    """
    return unpack_weights(weights or b"") if bundle is None else policy_from_bytes(bundle)


class ClientGenerator:
    """Draws for one agent of one episode: the same for the same seed and ids, whoever else acts in between.

    Args:
        policy: Whose noise it is.
        seed: Of the client.
        ids: Of episode and agent.
    """

    __slots__ = ("_at", "_block", "_draw", "_key", "_next", "_width")

    def __init__(self, policy: NetworkPolicy, seed: int, *ids: str) -> None:
        head = policy.networks.backend.head
        self._draw, self._width = head.draw, head.noise_width
        self._key = np.uint64(rng.key(seed, rng.ACTION, *map(rng.stable_hash, ids)))
        self._next, self._at = 0, _AHEAD
        self._block: Column = np.zeros((0, head.noise_width), np.float32)

    def throw(self) -> Column:
        """Return [1, width] fresh draws."""
        at = self._at
        if at == _AHEAD:
            steps = np.arange(self._next, self._next + _AHEAD)
            self._block = self._draw(np.full(_AHEAD, self._key), steps, self._width)
            self._next += _AHEAD
            at = 0
        self._at = at + 1
        return self._block[at : at + 1]


class LocalPolicy:
    """One policy and the number of its weights.

    Args:
        blob: What `pack_bundle` returned.
        number: The sequence number of its weights.

    Attributes:
        policy: The policy.
        number: As given, and of each set of weights that came after.
        state_size: S, numbers in the state of a recurrent network.
        obs_bytes: About what an observation takes in a message, where its space is no Dict or Tuple.
        step_bytes: About what a step takes in a message beside its observation.

    Raises:
        ConfigError: The bundle is damaged, or newer than this version.
        ContractError: The policy cannot act here.
    """

    def __init__(self, blob: bytes, number: int) -> None:
        self.policy = policy_from_bytes(blob)
        self.number = number
        networks = self.policy.networks
        self.state_size = sum(networks.state_sizes)
        self.obs_bytes = _bytes_of(networks.observation_space)
        # Parts of an action may be arrays of their own, with a few words about each.
        beside = _bytes_of(networks.action_space) + _BYTES_BESIDE * len(leaves(networks.action_space))
        head = networks.backend.head
        inputs = 0 if head.is_value_based else head.inputs
        self.step_bytes = beside + np.dtype(np.float32).itemsize * (self.state_size + inputs)
        self._look()
        if self.policy.lives_stay:
            raise ContractError(
                f"policy {self.policy.policy_id!r}: its connectors remember lives and do not tell what, expected "
                "tells_lives of all that keep some; use inference_mode='remote'"
            )

    def take(self, news: News, number: int) -> bool:
        """Use what `unpacked` returned; return False where it is a policy of another network, which has this id now.

        Raises:
            ConfigError: They are weights of another network.
        """
        if not isinstance(news, NetworkPolicy):
            self.policy.set_weights(news)
        elif _form(news) == _form(self.policy):
            self.policy = news
            self._look()
        else:
            return False
        self.number = number
        return True

    def _look(self) -> None:
        self.wants = "weights" if self.policy.plain else "bundle"
        self._keepers = [type(leaf) for leaf in stateful_connectors(self.policy.agent_connectors)]

    def as_element(self, obs: Any) -> Any:
        """Return an observation that came as a list of numbers as an array of its space."""
        space = self.policy.observation_space
        if isinstance(obs, (list, tuple)) and isinstance(space, gym.spaces.Box):
            return np.array(obs, space.dtype)
        return obs

    def first_state(self) -> Column | None:
        """Return [1, S] of a recurrent network before its first step; None of any other."""
        return np.zeros((1, self.state_size), np.float32) if self.state_size else None

    def act(
        self,
        obs: Sequence[Any],
        noise: Column | None,
        states: Column | None,
        lives: Sequence[Any],
        where: str,
    ) -> ComputedAction:
        """Return what the policy does about R observations.

        Args:
            obs: R observations.
            noise: [R, width]; None takes the most likely actions.
            states: [R, S] or None.
            lives: Of each row the life that an answer before came with, None of a new one.
            where: Begins the message of an error.

        Raises:
            ContractError: An observation has another structure, shape or dtype than the space says, or the network
                gives no numbers for it.
        """
        try:
            decided = self.policy.decide(obs, noise, states, [self._as_now(life) for life in lives])
        except OutsideSpaceError as error:
            raise ContractError(
                f"{where}: {error.with_advice('pass observations of the space that the server was configured with')}"
            ) from error
        except ContractError as error:
            raise ContractError(f"{where}: {error}") from error
        if decided.lives is None:
            return decided
        return decided._replace(lives=[(self._keepers, life) for life in decided.lives])

    def _as_now(self, life: Any) -> list[Any] | None:
        """Return what connectors that are here now remember of a life, None of one that was not there then."""
        if life is None:
            return None
        kinds, memories = life
        if kinds is self._keepers:
            return list(memories)
        return [None if place is None else memories[place] for place in match_kinds(kinds, self._keepers)]

    def judge(
        self, rows: Column, mask: Column | None, actions: Column, states: Column | None, where: str
    ) -> tuple[Column | None, Column]:
        """Return how probable N actions were, in terms of the environment's actions.

        Returns:
            [N, K] inputs of the distribution, None where these are the worth of choices; [N] log-probabilities.

        Raises:
            ContractError: A row is outside the observation space.
        """
        networks = self.policy.networks
        if self.policy.plain and networks.preprocess is not None:
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

    def outer(self, actions: Column) -> Any:
        """Return N network actions as those of the environment, those of a Box not clipped."""
        return self.policy.networks.output.unclipped(actions)


def _form(policy: NetworkPolicy) -> Any:
    shapes = {name: np.shape(value) for name, value in policy.get_weights().items()}
    return policy.observation_space, policy.action_space, policy.networks.state_sizes, shapes


def _bytes_of(space: gym.Space[Any]) -> int:
    return sum(
        _BYTES_BESIDE
        if leaf.shape is None or leaf.dtype is None
        else int(np.prod(leaf.shape)) * leaf.dtype.itemsize + 1
        for leaf in leaves(space)
    )


_MOST_BYTES = 2_000_000
"""Of one message, about; half of what servers take by default."""
_AROUND = 10_000
"""Bytes that a message has at most around one part of an episode."""
_MOST_AHEAD = 64
"""Messages that may wait, of an env step of each open episode or more; then calls wait, too."""
_MOST_AHEAD_BYTES = 8 * _MOST_BYTES
_PAUSE_S = 0.05
"""Before the server is asked again whether it has room."""
_OLDER_THAN_ALL = 0
"""No server counts from here."""


class LocalActor:
    """The part of a client that acts.

    Args:
        link: To the server.
        update_interval: Seconds after which new weights are asked for; None for never.
        seed: Of all draws; None takes one by chance.

    Attributes:
        lock: Held by a thread that acts, or takes over what the server has sent.
        seed: Of all draws.
        weights_seq_no: The newest weights that all policies here have, None before the first.
    """

    def __init__(self, link: ClientSession, update_interval: float | None, seed: int | None) -> None:
        self.lock = threading.RLock()
        self.seed = secrets.randbits(63) if seed is None else seed
        self.weights_seq_no: int | None = None
        self._link = link
        self._session = link.session
        # The session in which the weights that are here came.
        self._took_in = link.session
        self._interval = update_interval or None
        self._next_update = self._due()
        self._policies: dict[str, LocalPolicy] = {}
        # Whether the server has said that there are others than the one policy that it told of first.
        self._asks = False
        self._open: dict[str, LocalEpisode] = {}
        # Chunks with their env steps and the number of the weights that acted in them.
        self._outbox: list[tuple[LocalEpisode, Raw, int, int | None]] = []
        self._steps = self._bytes = 0
        # Of episodes that are over and were given up.
        self._untold: list[EpisodeError] = []
        # Those that the server would wait for.
        self._lost: list[str] = []
        # The thread beside: whether there is one, whether it shall fetch weights, and why the last one ended early.
        self._done = threading.Condition(self.lock)
        self._busy = self._wanted = False
        # One for all messages: on a busy machine a new one takes long to begin.
        self._courier = ThreadPoolExecutor(1, "menv-policy-client")
        self._failure: BaseException | None = None

    def noise(self, *dice: ClientGenerator) -> Column | None:
        """Return [R, width] draws, one of each; None where the server's policies take the most likely actions."""
        if self._link.config.explore is False:
            return None
        return dice[0].throw() if len(dice) == 1 else np.concatenate([one.throw() for one in dice])

    def opened(self, episode: LocalEpisode) -> None:
        """Note that an episode has begun."""
        with self.lock:
            if episode.trained:
                self._open[episode.episode_id] = episode
            self._refresh()

    def gave_up(self, episode: LocalEpisode) -> None:
        """Note that an episode is not played here after all."""
        with self.lock:
            self._open.pop(episode.episode_id, None)

    def stepped(self, size: int) -> None:
        """Note that a step is complete; sends what has come together if that is enough, and looks for new weights.

        Args:
            size: About how many bytes of a message it takes.
        """
        self._steps += 1
        self._bytes += size
        # One more step may be too much for a chunk, which also holds the observation that followed its last one.
        enough = self._steps >= self._link.config.env_steps_per_sample
        if enough or self._bytes + size > _MOST_BYTES:
            self._steps = 0 if enough else self._steps
            if self._link.config.force_on_policy:
                self._send(enough)
            else:
                self._send_beside()
        elif self._next_update is not None and time.monotonic() >= self._next_update:
            self._refresh()

    def make_room(self, episode: LocalEpisode, size: int) -> None:
        """Put what is complete of an episode apart from steps that would make one message too large with it."""
        if size and self._bytes + size > _MOST_BYTES:
            self._aside_or_none(episode)

    def ended(self, episode: LocalEpisode) -> None:
        """Take over what is left of an episode that is over."""
        if self._open.pop(episode.episode_id, None) is None:
            return
        if not self._aside_or_none(episode):
            self._tell_failure()
        try:
            self.stepped(0)
        except RefusedError as error:
            if not _is_full(error):
                raise
            # The next action tells: the end of this episode was taken over, and is sent later.
            self._failure = error

    def set_aside(self, episode: LocalEpisode) -> None:
        """Put what is complete of an episode where the next message takes it."""
        chunk = episode.chunk()
        if chunk is not None:
            self._outbox.append((episode, *chunk, self.weights_seq_no))

    def _aside_or_none(self, episode: LocalEpisode) -> bool:
        """Do what `set_aside` does, or give the episode up and return False."""
        try:
            self.set_aside(episode)
        except ContractError as error:
            self._give_up(episode, error)
            return False
        return True

    def policies_of(self, episode: LocalEpisode, agents: Sequence[str]) -> dict[str, LocalPolicy]:
        """Return who answers for agents that appear in an episode.

        Raises:
            MenvError: The server does not know the agents, or its policies cannot act here.
        """
        asks, known = self._asks, list(self._link.config.policies or {})
        alone = len(known) == 1 and not asks
        names = dict.fromkeys(agents, known[0]) if alone else self._mapped(episode, agents)
        missing = sorted(set(names.values()) - self._policies.keys())
        if missing:
            self._fetch(missing)
        if self._asks is not asks:
            return self.policies_of(episode, agents)
        return {agent: self._policies[name] for agent, name in names.items()}

    def update(self) -> None:
        """Send what is complete and take the newest weights."""
        with self.lock:
            self._next_update = self._due()
            self._send()
            self._take_newest()

    def flush(self) -> None:
        """Send what is complete."""
        with self.lock:
            self._send()

    def _send_beside(self) -> None:
        """Have what is complete sent, and the newest weights fetched if they are wanted, while calls act on.

        Raises:
            MenvError: What was sent before could not be.
        """
        while self._busy and self._is_far_ahead():
            self._done.wait()
        self._tell_failure()
        self._cut()
        if not self._busy:
            self._busy = True
            self._courier.submit(self._beside)

    def _is_far_ahead(self) -> bool:
        """Return whether so much waits to be sent that calls wait, too."""
        return (
            len(self._outbox) > _MOST_AHEAD * max(1, len(self._open))
            or sum(len(memoryview(raw)) for _, raw, _, _ in self._outbox) > _MOST_AHEAD_BYTES
        )

    def _beside(self) -> None:
        """Send and fetch until there is nothing left to do; in a thread of its own."""
        try:
            while self._goes_on():
                if self._wanted:
                    self._wanted = False
                    self._take_newest()
                else:
                    self._deliver()
        except BaseException as error:
            with self.lock:
                self._failure, self._busy, self._wanted = error, False, False
                self._done.notify_all()

    def _goes_on(self) -> bool:
        with self.lock:
            self._busy = bool(self._outbox or self._lost or self._wanted)
            self._done.notify_all()
            return self._busy

    def _tell_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._untold:
            raise self._untold.pop()

    def _take_newest(self) -> None:
        """Take the newest weights, asked for once more of a server that has forgotten the session meanwhile."""
        session: str | None = ""
        while self._policies and self._link.session != session:
            session = self._link.session
            with self.lock:
                request = self._request(GetState)
            state: SetState = self._link.ask(request, anew=True)
            if self._link.session == session:
                self._take(state)

    def _refresh(self) -> None:
        if self._next_update is not None and time.monotonic() >= self._next_update:
            self._next_update = self._due()
            if not self._link.config.force_on_policy:
                self._wanted = True
                if not self._busy:
                    self._send_beside()

    def _due(self) -> float | None:
        return None if self._interval is None else time.monotonic() + self._interval

    def _mapped(self, episode: LocalEpisode, agents: Sequence[str]) -> dict[str, str]:
        name, trained = episode.episode_id, episode.trained
        # An episode that the server has not heard of begins in a new session as well.
        answer = self._link.ask(
            GetPolicies(episode_id=name, agent_ids=list(agents), training_enabled=trained),
            anew=not episode.known,
        )
        self._follow_session()
        episode.known = trained
        names: dict[str, str] = answer.policy_ids
        _require("GetPolicies", agents, names)
        return names

    def _fetch(self, names: list[str]) -> None:
        state = self._link.ask(GetState(form="bundle", policy_ids=names), anew=True)
        bundles = state.bundles or {}
        _require("GetState", names, bundles)
        for name in names:
            self._policies[name] = LocalPolicy(bundles[name], state.weights_seq_no)
        self._asks = self._asks or state.ask_policies
        if self.weights_seq_no is None:
            # Those that were here before have older ones still, and get newer ones with the next update.
            self.weights_seq_no, self._took_in = state.weights_seq_no, self._link.session

    def _send(self, wait: bool = False) -> None:
        """Send everything that is complete, and if `wait`, wait for the weights that come of it.

        Raises:
            EpisodeError: A part of an episode was refused that the application has ended; all others were sent.
        """
        while self._busy:
            self._done.wait()
        if _is_full(self._failure):
            # What there was no room for is sent now.
            self._failure = None
        self._tell_failure()
        self._cut()
        state = self._deliver(wait, time.monotonic() + self._link.timeout)
        if state is not None:
            self._take(state)
        self._tell_failure()

    def _cut(self) -> None:
        self._follow_session()
        self._of_each(self.set_aside)
        self._bytes = 0

    def _deliver(self, wait: bool = False, until: float = 0.0) -> SetState | None:
        """Send what was put aside; return the weights that come of it if `wait`.

        Raises:
            RefusedError: The server has no room, and that time is over; everything is kept.
        """
        state, alone = None, False
        # Beside, weights are fetched in between, however much there is to send.
        while self._outbox and (until or not self._wanted):
            with self.lock:
                count = 1 if alone else self._next_message()
                entries, last = self._outbox[:count], wait and count == len(self._outbox)
            try:
                state = self._bring(entries, last)
            except SessionLostError:
                with self.lock:
                    self._follow_session()
            except (EpisodeError, RefusedError) as error:
                if count == 1 and _is_full(error):
                    if time.monotonic() >= until:
                        raise
                    time.sleep(_PAUSE_S)
                    continue
                # A message is taken or refused as a whole; whose fault it was shows when each part goes alone.
                alone = True
                if count == 1:
                    episode, raw = entries[0][:2]
                    with self.lock:
                        self._give_up(episode, _too_large(error, len(memoryview(raw))))
            else:
                with self.lock:
                    sent = set(map(id, entries))
                    self._outbox = [entry for entry in self._outbox if id(entry) not in sent]
        if lost := list(self._lost):
            self._link.bring(Episodes(episodes=[], env_steps=0, lost=lost))
            with self.lock:
                self._lost = [name for name in self._lost if name not in lost]
        return state

    def _of_each(self, do: Callable[[LocalEpisode], None]) -> None:
        for episode in list(self._open.values()):
            try:
                do(episode)
            except ContractError as error:
                self._give_up(episode, error)

    def _give_up(self, episode: LocalEpisode, error: MenvError) -> None:
        episode.refused = f"a part of it was refused ({error})"
        self._open.pop(episode.episode_id, None)
        self._outbox = [entry for entry in self._outbox if entry[0] is not episode]
        if episode.known:
            self._lost.append(episode.episode_id)
        if episode.over:
            # Of others their next call tells.
            self._untold.append(episode.gone())

    def _next_message(self) -> int:
        size = count = 0
        for _, raw, _, number in self._outbox:
            size += len(memoryview(raw))
            if count and (size > _MOST_BYTES or number != self._outbox[0][3]):
                break
            count += 1
        return count

    def _bring(
        self, entries: Sequence[tuple[LocalEpisode, Raw, int, int | None]], wait: bool
    ) -> SetState | None:
        """Send one message; return the weights that come of it, if somebody waits for them."""
        state: SetState | None = None
        about: dict[str, Any] = {
            "episodes": [raw for _, raw, _, _ in entries],
            "env_steps": sum(steps for _, _, steps, _ in entries),
            "weights_seq_no": entries[0][3],
        }
        if wait:
            state = self._link.ask(self._request(EpisodesAndGetState, **about))
            self._next_update = self._due()
        else:
            self._link.bring(Episodes(**about))
        for episode, *_ in entries:
            episode.known = True
        return state

    def _follow_session(self) -> None:
        """Give up all episodes that the server knew a part of, if it has forgotten the session."""
        if self._link.session == self._session:
            return
        self._session, self._lost = self._link.session, []
        for episode in (*self._open.values(), *(entry[0] for entry in self._outbox)):
            episode.lost = episode.known
        self._open = {name: episode for name, episode in self._open.items() if not episode.lost}
        self._outbox = [entry for entry in self._outbox if not entry[0].lost]

    def _request(self, kind: type[Any], **more: Any) -> Any:
        """Return a request for the weights of all policies that are here.

        In a new session there may be another server, whose numbers say nothing of the weights that are here.
        """
        anew = self._link.session != self._took_in
        forms = {policy.wants for policy in self._policies.values()}
        form = "bundle" if anew or "bundle" in forms else "weights"
        have = _OLDER_THAN_ALL if anew and self._policies else self.weights_seq_no
        return kind(policy_ids=sorted(self._policies), form=form, have=have, **more)

    def _take(self, state: SetState) -> None:
        """Act with other weights from now on; they are read before anything waits for them."""
        weights, bundles = state.weights or {}, state.bundles or {}
        news = {name: unpacked(weights.get(name), bundles.get(name)) for name in {**weights, **bundles}}
        with self.lock:
            if news:
                self._of_each(lambda episode: episode.judge())
            for name in news.keys() & self._policies.keys():
                if not self._policies[name].take(news[name], state.weights_seq_no):
                    # Episodes that run keep the one of before.
                    self._policies[name] = LocalPolicy(bundles[name], state.weights_seq_no)
            self.weights_seq_no = state.weights_seq_no
            self._took_in = self._link.session
            self._asks = self._asks or state.ask_policies


def _is_full(error: BaseException | None) -> bool:
    return getattr(error, "code", None) == ErrorCode.TOO_MANY


def _too_large(error: MenvError, size: int) -> MenvError:
    if getattr(error, "code", None) != ErrorCode.TOO_LARGE:
        return error
    return RefusedError(
        f"{error}; {size} bytes, with two observations of each agent that acted, are not divided: raise "
        f"Limits.max_body on the server to {size + _AROUND}, or use inference_mode='remote'",
        ErrorCode.TOO_LARGE,
    )


def _require(asked: str, wanted: Sequence[str], found: Mapping[str, Any]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ConfigError(
            f"PolicyClient: the answer to {asked} holds nothing for {missing[:5]!a:.120}, expected all that was "
            "asked for; check the address"
        )
