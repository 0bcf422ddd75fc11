"""Episodes that clients play with local inference, whole or as trajectory chunks: decoded, checked, and passed on.

`read_episode` decodes them from EPISODES. `EpisodeIngest` passes them to the broker and takes each timestep once: a
repeated chunk is recognised by its first index, a chunk of an episode without an id by its first observation.
"""

from __future__ import annotations

import copy
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
from msgspec import Raw

from menv.adapters.episode_broker import EpisodeBroker
from menv.base_env import SINGLE_AGENT, AgentId, ExternalSteps, ExternalTrajectory
from menv.env_context import InputContext
from menv.serving.action_requests import ChunkProgress, ClientState
from menv.serving.limits import Limits
from menv.serving.protocol import (
    Array,
    BadMessageError,
    Count,
    Data,
    Episodes,
    ErrorCode,
    Id,
    PackedArray,
    TypedDecoder,
)
from menv.serving.value_readers import (
    LARGEST_REWARD,
    BadValueError,
    Reward,
    Space,
    SpaceReader,
    agent_spaces,
    check_masks,
    check_num_agents,
    known_spaces,
    reader_of,
    unpacked,
)
from menv.spaces import leaves

SpacesOf = Callable[[str | None], tuple[Space, Space] | None]
"""See `menv.serving.value_readers.agent_spaces`."""
Widths = Mapping[str, frozenset[int]]


class _Header(msgspec.Struct, kw_only=True):
    """Fields of every episode; null is the same as absent."""

    is_terminated: bool
    is_truncated: bool
    id: Id | None = None
    t: Count | None = None
    weights_seq_no: Count | None = None


class _Whole(_Header, kw_only=True):
    """An episode of several agents."""

    agents: dict[str, Raw]
    unclaimed: dict[str, Reward] | None = None
    env_steps: Count | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps of one agent; `t` is the index of the first one in the episode. Arrays may be read-only."""

    t: int
    steps: ExternalSteps
    weights_seq_no: int | None

    def __len__(self) -> int:
        """Return the number of actions."""
        return len(self.steps.rewards)


@dataclass(frozen=True, slots=True)
class WireEpisode:
    """An episode or a chunk of one.

    Attributes:
        pieces: By agent, with None for the agent of a single-agent episode.
        unclaimed: Rewards of agents that none of their actions can own, by agent.
        size: Bytes in the message.
    """

    id: str | None
    terminated: bool
    truncated: bool
    pieces: Mapping[str | None, Piece]
    size: int
    weights_seq_no: int | None = None
    env_steps: int | None = None
    unclaimed: Mapping[str, float] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """The number of actions of all agents."""
        return sum(map(len, self.pieces.values()))


def read_episode(
    raw: Data, spaces_of: SpacesOf, where: str = "episode", widths: Widths | None = None
) -> WireEpisode:
    """Decode one entry of `Episodes.episodes`; `where` begins the text of an error.

    `widths` are the allowed lengths of rows of `action_dist_inputs` and `state_in`, where known.
    """
    spaces, size = spaces_of(None), len(memoryview(raw))
    if spaces is not None:
        found, piece = _reader_of(spaces).read(raw, where, widths or {})
        return WireEpisode(found.id, found.is_terminated, found.is_truncated, {None: piece}, size)
    whole: _Whole = _WHOLE.read(raw, where)
    pieces: dict[str | None, Piece] = {}
    for agent_id, member in whole.agents.items():
        at = f"{where}.agents[{agent_id[:60]!r}]"
        spaces = known_spaces(spaces_of, agent_id, at)
        found, piece = _reader_of(spaces).read(member, at, widths or {})
        steps = replace(piece.steps, terminated=found.is_terminated, truncated=found.is_truncated)
        pieces[agent_id] = replace(piece, steps=steps)
    return WireEpisode(
        whole.id, whole.is_terminated, whole.is_truncated, pieces, size, whole.weights_seq_no, whole.env_steps,
        whole.unclaimed or {},
    )  # fmt: skip


_LOGP_TOLERANCE = 1e-4
"""Rounding may lift the log-probability of a discrete action this far above 0."""


def _matrix(values: PackedArray | list[Any], where: str, rows: int, widths: Collection[int]) -> Array:
    """Return [rows, K] finite float32; K is one of `widths`, if there are any."""
    try:
        array = unpacked(values) if isinstance(values, PackedArray) else np.array(values or np.empty((0, 0)))
        with np.errstate(over="ignore"):
            floats = array.astype(np.float32)
    except BadValueError as error:
        raise error.at(where) from None
    except ValueError:
        # Rows of several lengths.
        floats = np.empty(0, np.float32)
    if floats.ndim != 2 or len(floats) != rows or (rows and widths and floats.shape[1] not in widths):
        each = f" of {' or '.join(map(str, sorted(widths)))} numbers, as the policy has" if widths else ""
        raise BadMessageError(
            ErrorCode.WRONG_LENGTH,
            f"{where}: got shape {floats.shape}, expected {rows} rows of one length{each}, one for each action; leave "
            "it out if it is not known",
        )
    if not np.isfinite(floats).all():
        raise BadMessageError(
            ErrorCode.OUT_OF_RANGE,
            f"{where}: got a number that is not finite as float32, expected finite ones",
        )
    return floats


_WHOLE = TypedDecoder(_Whole)
_ROWS: Any = list[tuple[float, ...]] | PackedArray | None
_REWARDS = reader_of(gym.spaces.Box(-LARGEST_REWARD, LARGEST_REWARD, (), np.float64))
_LOGP = reader_of(gym.spaces.Box(-np.inf, np.inf, (), np.float32))
_TIMES = reader_of(gym.spaces.Box(0, 2**31 - 1, (), np.int64))


class EpisodeReader:
    """Reads episodes of one agent."""

    def __init__(self, observations: SpaceReader, actions: SpaceReader) -> None:
        self._obs, self._actions = observations, actions
        self._is_discrete = not any(isinstance(leaf, gym.spaces.Box) for leaf in leaves(actions.space))
        columns: list[Any] = [
            ("obs", observations.column_kind),
            ("actions", actions.column_kind),
            ("rewards", _REWARDS.column_kind),
            ("action_logp", _LOGP.column_kind | None, None),
            ("action_dist_inputs", _ROWS, None),
            ("state_in", _ROWS, None),
            ("env_t", _TIMES.column_kind | None, None),
        ]
        self._typed = TypedDecoder(msgspec.defstruct("OneAgent", columns, bases=(_Header,), kw_only=True))

    def read(self, raw: Data, where: str, widths: Widths) -> tuple[_Header, Piece]:
        """Return header and steps, or raise `BadMessageError`."""
        found = self._typed.read(raw, where)
        rewards: Any = _REWARDS.read_column(found.rewards, f"{where}.rewards")
        actions = self._actions.read_column(found.actions, f"{where}.actions")
        obs = self._obs.read_column(found.obs, f"{where}.obs")
        count = len(rewards)
        if len(actions) != count or len(obs) != count + 1:
            raise BadMessageError(
                ErrorCode.WRONG_LENGTH,
                f"{where}: {len(obs)} obs, {len(actions)} actions and {count} rewards, expected as many rewards as "
                "actions and one obs more; end with the obs after the last action",
            )
        acting = count if found.is_terminated or found.is_truncated else len(obs)
        check_masks(obs[:acting], self._obs.space, self._actions.space, f"{where}.obs")
        matrices = {
            name: _matrix(values, f"{where}.{name}", count, widths.get(name, ()))
            for name in ("action_dist_inputs", "state_in")
            if (values := getattr(found, name)) is not None
        }
        steps = ExternalSteps(
            obs, actions, rewards,
            logp=self._logp(found.action_logp, f"{where}.action_logp", count),
            dist_inputs=matrices.get("action_dist_inputs"), state_in=matrices.get("state_in"),
            env_t=_times(found.env_t, f"{where}.env_t", count),
        )  # fmt: skip
        return found, Piece(found.t or 0, steps, found.weights_seq_no)

    def _logp(self, values: Any, where: str, count: int) -> Array | None:
        if values is None:
            return None
        logp = _column(_LOGP, values, where, count)
        if self._is_discrete and count and logp.max() > _LOGP_TOLERANCE:
            row = int(np.argmax(logp))
            raise BadMessageError(
                ErrorCode.OUT_OF_RANGE,
                f"{where}[{row}]: got {logp[row]:g}, expected at most 0, the logarithm of a probability",
            )
        return logp


def _column(reader: SpaceReader, values: Any, where: str, rows: int) -> Array:
    """Return a column of `rows` numbers."""
    column: Any = reader.read_column(values, where)
    if len(column) != rows:
        raise BadMessageError(ErrorCode.WRONG_LENGTH, f"{where}: got {len(column)} numbers, expected {rows}")
    found: Array = column
    return found


def _times(values: Any, where: str, count: int) -> Array | None:
    """Return [count + 1] env steps of the observations, in ascending order."""
    if values is None:
        return None
    steps = _column(_TIMES, values, where, count + 1)
    if (steps[1:] < steps[:-1]).any():
        raise BadMessageError(
            ErrorCode.OUT_OF_RANGE,
            f"{where}: expected env steps none of which is earlier than the one before",
        )
    return steps


_reader = lru_cache(16_384)(EpisodeReader)


def _reader_of(spaces: tuple[Space, Space]) -> EpisodeReader:
    return _reader(reader_of(spaces[0]), reader_of(spaces[1], bounded=False))


class EpisodeIngest:
    """Takes the trajectory chunks of a server's clients.

    Attributes:
        repeated: Timesteps that were sent again and left out.
        widths: See `read_episode`.
        refused: Whether all episodes are refused because policies see something else than clients observe.
    """

    def __init__(self, broker: EpisodeBroker, ioctx: InputContext, limits: Limits) -> None:
        self.repeated = 0
        self.widths: Widths = {}
        self.refused = False
        self._broker = broker
        self._ioctx = ioctx
        self._limits = limits
        self.spaces_of = agent_spaces(ioctx)

    def take(self, state: ClientState, request: Episodes) -> Iterator[None]:
        """Take the episodes of a message in small steps.

        Nothing is taken if one episode is invalid. If a chunk does not continue its episode, the episodes before it
        are taken.
        """
        name = str(type(request).__struct_config__.tag)
        if self.refused:
            raise BadMessageError(
                ErrorCode.NOT_ALLOWED,
                f"{name}: policies here see what an observation_fn makes of observations, expected a client that asks "
                "for each action; send GET_ACTION",
            )
        self._give_up(state, request.lost or ())
        # Freed one by one: freeing tens of thousands at once takes long.
        read: deque[WireEpisode] = deque()
        for index, raw in enumerate(request.episodes):
            where = f"{name}.episodes[{index}]"
            read.append(read_episode(raw, self.spaces_of, where, self.widths))
            self._check(read[-1], where)
            yield
        total = sum(episode.size for episode in read)
        state.check_backlog(total, self._limits, name)
        number = request.weights_seq_no if request.weights_seq_no is not None else state.weights_seq_no
        size = total // max(1, len(read))
        for index in range(len(read)):
            self._take(state, read.popleft(), number, f"{name}.episodes[{index}]", size)
            yield

    def _check(self, episode: WireEpisode, where: str) -> None:
        if self._ioctx.multi_agent and episode.id is None:
            raise BadMessageError(
                ErrorCode.MALFORMED, f"{where}: no field 'id', expected one for an episode of several agents"
            )
        check_num_agents(episode.unclaimed, self._limits, where)
        check_num_agents(episode.pieces, self._limits, where)
        for agent in episode.unclaimed:
            known_spaces(self.spaces_of, agent, f"{where}.unclaimed")

    def _take(
        self, state: ClientState, episode: WireEpisode, number: int | None, where: str, size: int
    ) -> None:
        if episode.id in state.ended:
            self.repeated += episode.steps
            return
        self._check_gaps(state, episode, where)
        progress = self._chunks_of(state, episode, where)
        if progress is None:
            return
        steps: dict[AgentId, ExternalSteps] = {
            SINGLE_AGENT if agent is None else agent: piece.steps
            for agent, piece in episode.pieces.items()
            if self._is_new(progress, agent, piece, episode)
        }
        over = episode.terminated or episode.truncated
        if steps or over:
            env_steps = _env_steps(episode, steps)
            numbers = [episode.weights_seq_no, *(piece.weights_seq_no for piece in episode.pieces.values())]
            number = min((one for one in numbers if one is not None), default=number)
            # Unclaimed rewards have no timestep; they come with the end, which is taken once.
            unclaimed = episode.unclaimed if over else {}
            policies = {} if state.only_policy is None else dict.fromkeys(steps, state.only_policy)
            chunk = ExternalTrajectory(
                steps, env_steps, episode.terminated, episode.truncated, number, policies | progress.policies, unclaimed
            )  # fmt: skip
            self._broker.add_chunk(progress.broker_id, chunk, size)
        if episode.id is not None:
            if over:
                state.finish(episode.id)
            return
        state.unnamed = None if over else progress
        # A view would keep the whole array in memory.
        progress.last_obs = copy.deepcopy(episode.pieces[None].steps.obs[-1])

    def announce(self, state: ClientState, name: str, agents: Sequence[str]) -> tuple[str, dict[str, str]]:
        """Begin an episode that a client plays with these agents; return its id here and the agents' policies."""
        progress = state.chunks.get(name)
        if progress is None:
            progress = state.chunks[name] = self._begin(state, name, "GET_POLICIES", "episode_id")
        check_num_agents(progress.policies.keys() | agents, self._limits, "GET_POLICIES")
        return progress.broker_id, progress.policies

    def _give_up(self, state: ClientState, names: Sequence[str]) -> None:
        open_ones = {name: state.chunks[name].broker_id for name in names if name in state.chunks}
        for name in open_ones:
            state.finish(name)
        self._broker.lose(open_ones.values(), "its client gave it up")

    def _chunks_of(self, state: ClientState, episode: WireEpisode, where: str) -> ChunkProgress | None:
        """Return the episode of a chunk, a new one if it begins with it; None for a beginning without a step."""
        if episode.id is not None:
            found = state.chunks.get(episode.id)
            if found is None:
                found = state.chunks[episode.id] = self._begin(state, episode.id, where)
            return found
        unnamed = state.unnamed
        if unnamed is not None and _same(unnamed.last_obs, episode.pieces[None].steps.obs[0]):
            return unnamed
        if not episode.steps:
            return None
        if unnamed is not None:
            state.unnamed = None
            self._broker.lose([unnamed.broker_id], "its client began another that has no id either")
        return self._begin(state, secrets.token_hex(8), where)

    def _begin(self, state: ClientState, name: str, where: str, field: str = "id") -> ChunkProgress:
        if name in state.episodes or state.ended.get(name) is not None:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{where}.{field}: names an episode whose actions are asked for here, expected one that the "
                "client plays alone; give that another id",
            )
        state.check_room(self._limits, self._broker.open_episodes, where)
        return ChunkProgress(self._broker.start(f"{state.token[:12]}/{name}", budget=state.backlog))

    def _check_gaps(self, state: ClientState, episode: WireEpisode, where: str) -> None:
        """Refuse a chunk that neither continues its episode nor repeats earlier steps, before any step is stored."""
        if episode.id is None:
            return
        progress = state.chunks.get(episode.id) or ChunkProgress("")
        check_num_agents(progress.t.keys() | episode.pieces.keys(), self._limits, where)
        for agent, piece in episode.pieces.items():
            taken, end = progress.t.get(agent, 0), piece.t + len(piece)
            if piece.t != taken and end > taken:
                raise BadMessageError(
                    ErrorCode.WRONG_ORDER,
                    f"{where}.t: steps {piece.t} to {end}, expected to begin at {taken}, or steps sent before; send "
                    "the steps between first",
                )

    def _is_new(self, progress: ChunkProgress, agent: str | None, piece: Piece, episode: WireEpisode) -> bool:
        """Count the steps of a piece; False if they were received before, or if there are none."""
        taken = progress.t.get(agent, 0)
        if episode.id is not None and piece.t < taken:
            self.repeated += len(piece)
            return False
        over = piece.steps.over or (agent is None and (episode.terminated or episode.truncated))
        last = taken + len(piece)
        # The agent may have started a new trajectory since an end that is sent again.
        if not len(piece) and (not over or progress.ends.get(agent) == last):
            return False
        progress.t[agent] = last
        if over:
            progress.ends[agent] = last
        return True


def _env_steps(episode: WireEpisode, steps: Mapping[Any, ExternalSteps]) -> int:
    """Return the number of new env steps: the number that the client sent, if all timesteps are new and it fits."""
    lengths = [len(one.rewards) for one in steps.values()]
    if episode.env_steps is None or sum(lengths) != episode.steps:
        return max(lengths, default=0)
    return min(episode.env_steps, sum(lengths))


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return isinstance(right, dict) and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return isinstance(right, tuple) and all(_same(*pair) for pair in zip(left, right, strict=True))
    return bool(np.array_equal(left, right))
