"""Episodes that clients play with local inference, whole or as trajectory chunks: decoded, checked, and passed on.

`read_episode` decodes them from EPISODES. `EpisodeIngest` passes them to the broker and takes each timestep once: a
repeated chunk is recognised by its first index, a chunk of an episode without an id by its first observation.
"""

from __future__ import annotations

import copy
import math
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Raw, UnsetType

from menv.adapters.episode_broker import EpisodeBroker
from menv.base_env import SINGLE_AGENT, AgentId, ExternalSteps, ExternalTrajectory
from menv.env_context import InputContext
from menv.errors import EpisodeError
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
    WireFormat,
    fields,
    is_nil,
    is_plain,
)
from menv.serving.value_readers import (
    LARGEST_REWARD,
    BadValueError,
    Column,
    ElementReader,
    Space,
    agent_spaces,
    reader_of,
    reward,
    unpacked,
)
from menv.spaces import leaves

Floats = npt.NDArray[np.float32]
SpacesOf = Callable[[str | None], tuple[Space, Space] | None]
"""See `menv.serving.value_readers.agent_spaces`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireEpisode:
    """An episode or a chunk of one: n timesteps of one agent, or the episodes of several agents that ran together.

    Arrays may be read-only.

    Attributes:
        t: Index of the first timestep in the episode.
        obs: n + 1 observations, [n + 1, *shape] or a list; the last is the one after the last action.
        actions: n actions, [n, *shape] or a list; actions of a Box may exceed its bounds.
        rewards: [n] float64.
        logp: [n] float32 log-probabilities of the actions, or None.
        dist_inputs: [n, K] float32 inputs of the action distribution, or None.
        state_in: [n, S] float32 hidden state before each timestep, or None.
        env_t: [n + 1] env step of each observation in the episode, or None.
        agents: The episode of each agent, if there are several; the columns here are empty then.
        unclaimed: Rewards of agents that none of their actions can own, by agent.
        size: Bytes in the message.
    """

    id: str | None = None
    t: int = 0
    terminated: bool
    truncated: bool
    weights_seq_no: int | None = None
    obs: Column
    actions: Column
    rewards: npt.NDArray[np.float64]
    logp: Floats | None = None
    dist_inputs: Floats | None = None
    state_in: Floats | None = None
    env_t: npt.NDArray[np.int64] | None = None
    agents: Mapping[str, WireEpisode] | None = None
    env_steps: int | None = None
    unclaimed: Mapping[str, float] | None = None
    size: int = 0

    @property
    def steps(self) -> int:
        """n, the number of actions of all agents."""
        if self.agents is not None:
            return sum(one.steps for one in self.agents.values())
        return len(self.rewards)


def read_episode(
    raw: Data, spaces_of: SpacesOf, wire_format: WireFormat, where: str = "episode"
) -> WireEpisode:
    """Decode one entry of `Episodes.episodes`; `where` begins the text of an error."""
    spaces = spaces_of(None)
    if spaces is not None:
        return _reader_of(spaces).read(raw, wire_format, where)
    whole = _declared(_WHOLE, raw, wire_format, where, ("agents", "is_terminated", "is_truncated"))
    agents = {}
    for agent_id, member in fields(whole.agents, wire_format, f"{where}.agents").items():
        at = f"{where}.agents[{agent_id[:60]!r}]"
        spaces = spaces_of(agent_id)
        if spaces is None:
            raise BadMessageError(
                ErrorCode.UNKNOWN_ID, f"{at}: unknown agent, expected one of the environment's"
            )
        agents[agent_id] = _reader_of(spaces).read(member, wire_format, at)
    return WireEpisode(
        **_about(whole), obs=[], actions=[], rewards=np.empty(0), agents=agents,
        env_steps=whole.env_steps if isinstance(whole.env_steps, int) else None,
        unclaimed=_unclaimed(whole.unclaimed, wire_format, f"{where}.unclaimed"), size=len(memoryview(raw)),
    )  # fmt: skip


ROWS = list[tuple[float, ...]]
NUMBERS_OR_ROWS = list[float | tuple[float, ...]]
_LOGP_TOLERANCE = 1e-4
"""Rounding may lift the log-probability of a discrete action this far above 0."""


def matrix(values: PackedArray | list[Any], where: str, rows: int) -> Floats:
    """Return [rows, K] of decoded `ROWS` or a packed array."""
    return _finite(_array(values, where, rows, "rows", 2, 2), where)


def rows_within(dimensions: int) -> Any:
    """Return the msgspec type of rows whose numbers may be nested in this many dimensions."""
    row: Any = tuple[float, ...]
    for _ in range(dimensions):
        row = tuple.__class_getitem__((float | row, ...))
    return list.__class_getitem__(row)


def gaussian(values: PackedArray | list[Any], where: str, rows: int, shape: tuple[int, ...]) -> Floats:
    """Return [rows, 2 * size] of means, followed by logarithms of standard deviations, for actions of `shape`.

    `values` are flat rows in this order, or of shape [rows, *shape, 2], [rows, 2, *shape], or [rows, *shape] with a
    last dimension twice as long.
    """
    array = _array(values, where, rows, "rows", 2, 2 + len(shape))
    if array.ndim > 2:
        if array.shape[1:] == (*shape, 2):
            array = np.moveaxis(array, -1, 1)
        elif array.shape[1:] == (*shape[:-1], 2 * shape[-1]):
            array = np.stack(np.split(array, 2, -1), 1)
        elif array.shape[1:] != (2, *shape):
            size = 2 * math.prod(shape)
            raise BadMessageError(
                ErrorCode.WRONG_LENGTH,
                f"{where}: got shape {array.shape}, expected {rows} rows of {size} numbers or of shape {(*shape, 2)}",
            )
        array = array.reshape(len(array), -1)
    return _finite(array, where)


def log_probabilities(values: PackedArray | list[Any], where: str, rows: int) -> Floats:
    """Return [rows] log-probabilities; if there is one for each dimension of an action, their sums."""
    array = _array(values, where, rows, "numbers", 1, 2)
    return _finite(array if array.ndim == 1 else array.sum(axis=1, dtype=np.float64), where)


def _array(
    values: PackedArray | list[Any], where: str, rows: int, expected: str, least: int, most: int
) -> Array:
    """Return `rows` numbers or rows of them, with `least` to `most` dimensions."""
    code, wrong = ErrorCode.WRONG_LENGTH, ""
    if isinstance(values, PackedArray):
        try:
            array = unpacked(values)
        except BadValueError as error:
            raise error.in_message(where) from None
        if array.dtype.kind != "f":
            code, wrong = ErrorCode.WRONG_TYPE, f"got packed {array.dtype}, expected <f4 or <f8"
    else:
        try:
            array = np.array(values, np.float64) if values else np.empty((0, 0))
        except ValueError:
            array, wrong = np.empty(0), "got rows of several lengths, expected one length"
    if not wrong and not (least <= array.ndim <= most and len(array) == rows):
        wrong = f"got shape {array.shape}, expected {rows} {expected}, one for each action"
    if wrong:
        raise BadMessageError(code, f"{where}: {wrong}")
    return array


def _finite(array: Array, where: str) -> Floats:
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32)
    good = np.isfinite(floats)
    if np.count_nonzero(good) != good.size:
        row = int(np.argwhere(~good)[0][0])
        raise BadMessageError(
            ErrorCode.OUT_OF_RANGE,
            f"{where}[{row}]: got a number that is not finite as float32, expected a finite one",
        )
    return floats


_HEADER_FIELDS: list[tuple[str, Any, Any]] = [
    ("is_terminated", bool | UnsetType, UNSET),
    ("is_truncated", bool | UnsetType, UNSET),
    ("id", Id | None | UnsetType, UNSET),
    ("t", Count | None | UnsetType, UNSET),
    ("weights_seq_no", Count | None | UnsetType, UNSET),
]
_GROUP_FIELDS: list[tuple[str, Any, Any]] = [
    ("agents", Raw, UNSET),
    ("unclaimed", Raw, UNSET),
    ("env_steps", Count | None | UnsetType, UNSET),
]
_WHOLE = TypedDecoder(msgspec.defstruct("Whole", [*_HEADER_FIELDS, *_GROUP_FIELDS]))
_REWARDS = reader_of(gym.spaces.Box(-LARGEST_REWARD, LARGEST_REWARD, (), np.float64))
_TIMES = reader_of(gym.spaces.Box(0, 2**31 - 1, (), np.int64))


def _times(values: Any, where: str, rows: int) -> npt.NDArray[np.int64]:
    """Return [rows + 1] env steps of an episode, in ascending order."""
    steps: Any = _TIMES.column(values, where)
    if len(steps) != rows + 1:
        raise BadMessageError(
            ErrorCode.WRONG_LENGTH,
            f"{where}: got {len(steps)} env steps, expected {rows + 1}, one for each observation",
        )
    if (steps[1:] < steps[:-1]).any():
        raise BadMessageError(
            ErrorCode.OUT_OF_RANGE,
            f"{where}: expected env steps none of which is earlier than the one before",
        )
    found: npt.NDArray[np.int64] = steps
    return found


_OPTIONAL: dict[str, tuple[str, Callable[[Any, str, int], npt.NDArray[Any]]]] = {
    "logp": ("action_logp", log_probabilities),
    "dist_inputs": ("action_dist_inputs", matrix),
    "state_in": ("state_in", matrix),
    "env_t": ("env_t", _times),
}
_NEEDED = ("obs", "actions", "rewards", "is_terminated", "is_truncated")


class EpisodeReader:
    """Reads episodes of one agent."""

    def __init__(self, observations: ElementReader, actions: ElementReader) -> None:
        self._obs, self._actions = observations, actions
        box = isinstance(actions.space, gym.spaces.Box)
        self._shape: tuple[int, ...] | None = actions.space.shape if box else None
        self._is_discrete = not any(isinstance(leaf, gym.spaces.Box) for leaf in leaves(actions.space))
        self._typed = TypedDecoder(*(self._declaration(wire_format) for wire_format in ("json", "msgpack")))

    def _declaration(self, wire_format: str) -> Any:
        packed = UnsetType if wire_format == "json" else PackedArray | UnsetType
        columns: list[tuple[str, Any, Any]] = [
            ("obs", getattr(self._obs, wire_format) | UnsetType, UNSET),
            ("actions", getattr(self._actions, wire_format) | UnsetType, UNSET),
            ("rewards", getattr(_REWARDS, wire_format) | UnsetType, UNSET),
            ("action_logp", NUMBERS_OR_ROWS | None | packed, UNSET),
            ("action_dist_inputs", rows_within(len(self._shape or ())) | None | packed, UNSET),
            ("state_in", ROWS | None | packed, UNSET),
            ("env_t", getattr(_TIMES, wire_format) | None | UnsetType, UNSET),
        ]
        return msgspec.defstruct("OneAgent", [*_HEADER_FIELDS, *columns])

    def read(self, raw: Data, wire_format: WireFormat, where: str) -> WireEpisode:
        """Return the episode, or raise `BadMessageError`."""
        found = _declared(self._typed, raw, wire_format, where, _NEEDED)
        rewards: Any = _REWARDS.column(found.rewards, f"{where}.rewards")
        actions = self._actions.column(found.actions, f"{where}.actions")
        obs = self._obs.column(found.obs, f"{where}.obs")
        steps = len(rewards)
        if len(actions) != steps or len(obs) != steps + 1:
            raise BadMessageError(
                ErrorCode.WRONG_LENGTH,
                f"{where}: {len(obs)} obs, {len(actions)} actions and {steps} rewards, expected as many rewards as "
                "actions and one obs more; end with the obs after the last action",
            )
        about = _about(found)
        acting = steps if about["terminated"] or about["truncated"] else len(obs)
        masks, space = self._obs.masks, self._actions.space
        masks.check(obs, acting, space, f"{where}.obs")
        masks.check_actions(obs, actions, space, f"{where}.actions")
        for name, (column, build) in _OPTIONAL.items():
            values = getattr(found, column)
            if name == "dist_inputs" and self._shape:
                build = partial(gaussian, shape=self._shape)
            if values is not UNSET and values is not None:
                about[name] = build(values, f"{where}.{column}", steps)
        logp = about.get("logp")
        if self._is_discrete and logp is not None and len(logp) and logp.max() > _LOGP_TOLERANCE:
            row = int(np.argmax(logp))
            raise BadMessageError(
                ErrorCode.OUT_OF_RANGE,
                f"{where}.action_logp[{row}]: got {logp[row]:g}, expected at most 0, the logarithm of a probability",
            )
        size = len(memoryview(raw))
        return WireEpisode(**about, obs=obs, actions=actions, rewards=rewards, size=size)


@lru_cache(1024)
def _reader(observations: ElementReader, actions: ElementReader) -> EpisodeReader:
    return EpisodeReader(observations, actions)


def _reader_of(spaces: tuple[Space, Space]) -> EpisodeReader:
    return _reader(reader_of(spaces[0]), reader_of(spaces[1], bounded=False))


def _declared(
    typed: TypedDecoder, raw: Data, wire_format: WireFormat, where: str, needed: tuple[str, ...]
) -> Any:
    """Decode an object with declared fields; all of `needed` must be there, and no key twice."""
    found = typed.read(raw, wire_format, where)
    missing = [name for name in needed if getattr(found, name) is UNSET]
    if missing:
        raise BadMessageError(
            ErrorCode.MALFORMED, f"{where}: no {' and no '.join(missing)}, expected {', '.join(needed)}"
        )
    keys = sum(value is not UNSET for value in msgspec.structs.astuple(found))
    strings = isinstance(found.id, str)
    if not is_plain(bytes(raw), wire_format, keys, strings):
        fields(raw, wire_format, where)
    return found


def _unclaimed(raw: Raw | UnsetType, wire_format: WireFormat, where: str) -> Mapping[str, float] | None:
    if isinstance(raw, UnsetType) or is_nil(raw, wire_format):
        return None
    paid = reward(raw, wire_format, where)
    if not isinstance(paid, dict):
        raise BadMessageError(
            ErrorCode.WRONG_TYPE, f"{where}: got a number, expected an object of numbers by agent"
        )
    return paid


def _about(found: Any) -> dict[str, Any]:
    """Return the fields of the whole episode; null is the same as absent."""
    about = {"terminated": found.is_terminated, "truncated": found.is_truncated}
    for name in ("id", "t", "weights_seq_no"):
        value = getattr(found, name)
        if value is not UNSET and value is not None:
            about[name] = value
    return about


_MAX_UNNAMED = 64


class EpisodeIngest:
    """Takes the trajectory chunks of a server's clients.

    Attributes:
        env_steps: Env steps so far.
        repeated: Timesteps that were sent again and skipped.
        widths: Allowed lengths of `dist_inputs` and `state_in` rows, where known.
        refused: Whether all episodes are refused because policies see something else than clients observe.
    """

    def __init__(self, broker: EpisodeBroker, ioctx: InputContext, limits: Limits) -> None:
        self.env_steps = 0
        self.repeated = 0
        self.widths: Mapping[str, frozenset[int]] = {}
        self.refused = False
        self._broker = broker
        self._ioctx = ioctx
        self._limits = limits
        self.spaces_of = agent_spaces(ioctx)

    def take(self, state: ClientState, request: Episodes, wire_format: WireFormat) -> Iterator[None]:
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
            read.append(read_episode(raw, self.spaces_of, wire_format, f"{name}.episodes[{index}]"))
            yield
        for index, episode in enumerate(read):
            where = f"{name}.episodes[{index}]"
            self._check(episode, where)
            for one in [episode] if episode.agents is None else episode.agents.values():
                self._check_columns(one, where)
            yield
        total = sum(episode.size for episode in read)
        state.check_backlog(total, self._limits, name)
        number = request.weights_seq_no if request.weights_seq_no is not None else state.weights_seq_no
        size = total // max(1, len(read))
        for index in range(len(read)):
            self._take(state, read.popleft(), number, f"{name}.episodes[{index}]", size)
            yield
        state.forget_chunks()

    def _check(self, episode: WireEpisode, where: str) -> None:
        multi = self._ioctx.multi_agent
        if (episode.agents is not None) is not multi:
            kind = "several agents, an object `agents`" if multi else "one agent, and no `agents`"
            raise BadMessageError(ErrorCode.WRONG_TYPE, f"{where}: expected an episode of {kind}")
        if multi and episode.id is None:
            raise BadMessageError(
                ErrorCode.MALFORMED,
                f"{where}: no field 'id', expected one for an episode of several agents",
            )
        self._check_num_agents(episode.unclaimed or (), where)
        self._check_num_agents(episode.agents or (), where)
        for agent in episode.unclaimed or ():
            if self.spaces_of(agent) is None:
                raise BadMessageError(
                    ErrorCode.UNKNOWN_ID,
                    f"{where}.unclaimed: no agent {agent[:40]!r}, expected one of the environment's",
                )

    def _check_num_agents(self, agents: Collection[str | None], where: str) -> None:
        if len(agents) > self._limits.max_agents:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"{where}: {len(agents)} agents, expected at most {self._limits.max_agents} (Limits.max_agents)",
            )

    def _check_columns(self, one: WireEpisode, where: str) -> None:
        for name, field in (("dist_inputs", "action_dist_inputs"), ("state_in", "state_in")):
            column, widths = getattr(one, name), self.widths.get(name)
            if column is not None and len(column) and widths and column.shape[1] not in widths:
                raise BadMessageError(
                    ErrorCode.WRONG_LENGTH,
                    f"{where}.{field}: {column.shape[1]} numbers a row, expected "
                    f"{' or '.join(map(str, sorted(widths)))}, as the policy has; leave it out if it is not known",
                )

    def _take(
        self, state: ClientState, episode: WireEpisode, number: int | None, where: str, size: int
    ) -> None:
        members: Mapping[Any, WireEpisode] = episode.agents if episode.agents is not None else {None: episode}
        self._check_gaps(state, episode, members, where)
        progress = self._chunks_of(state, episode, where)
        if progress.over:
            self.repeated += episode.steps
            return
        steps: dict[AgentId, ExternalSteps] = {}
        for agent, one in members.items():
            part = self._fresh(progress, agent, one, has_id=episode.id is not None)
            if part is not None:
                steps[SINGLE_AGENT if agent is None else agent] = part
        progress.over = episode.terminated or episode.truncated
        state.num_chunks_ended += progress.over and episode.id is not None
        if steps or progress.over:
            env_steps = _env_steps(episode, steps)
            numbers = [one.weights_seq_no for one in (episode, *members.values())]
            number = min((one for one in numbers if one is not None), default=number)
            flags = episode.terminated, episode.truncated
            # Unclaimed rewards have no timestep; they come with the end, which is taken once.
            unclaimed = (episode.unclaimed or {}) if progress.over else {}
            policies = {} if state.only_policy is None else dict.fromkeys(steps, state.only_policy)
            chunk = ExternalTrajectory(
                steps, env_steps, *flags, number, policies | progress.policies, unclaimed
            )
            try:
                self._broker.add_chunk(progress.broker_id, chunk, size)
            except EpisodeError as error:
                raise BadMessageError(ErrorCode.WRONG_ORDER, f"{where}: {error}") from None
            self.env_steps += env_steps
        if episode.id is None:
            self._keep_unnamed(state, progress, episode)

    def _keep_unnamed(self, state: ClientState, progress: ChunkProgress, episode: WireEpisode) -> None:
        """Remember where an episode without an id continues; the oldest of many is lost."""
        state.unnamed = [one for one in state.unnamed if one is not progress]
        if not progress.over:
            # A view would keep the whole array in memory.
            progress.last_obs = copy.deepcopy(episode.obs[-1])
            state.unnamed.append(progress)
        if len(state.unnamed) > _MAX_UNNAMED:
            oldest = state.unnamed.pop(0).broker_id
            self._broker.lose([oldest], f"its client began {_MAX_UNNAMED} others that have no id")

    def announce(self, state: ClientState, name: str, agents: Sequence[str]) -> tuple[str, dict[str, str]]:
        """Begin an episode that a client plays with these agents; return its id here and the agents' policies."""
        progress = state.chunks.get(name)
        if progress is None:
            progress = state.chunks[name] = self._begin(state, name, "GET_POLICIES", "episode_id")
        self._check_num_agents(progress.policies.keys() | agents, "GET_POLICIES")
        return progress.broker_id, progress.policies

    def _give_up(self, state: ClientState, names: Sequence[str]) -> None:
        open_ones = [one for name in names if (one := state.chunks.get(name)) is not None and not one.over]
        for progress in open_ones:
            state.num_chunks_ended += not progress.over
            progress.over = True
        self._broker.lose([one.broker_id for one in open_ones], "its client gave it up")

    def _chunks_of(self, state: ClientState, episode: WireEpisode, where: str) -> ChunkProgress:
        if episode.id is not None:
            found = state.chunks.get(episode.id)
            if found is None:
                found = state.chunks[episode.id] = self._begin(state, episode.id, where)
            return found
        for one in state.unnamed:
            if _same(one.last_obs, episode.obs[0]):
                return one
        if not episode.steps:
            return ChunkProgress("", over=True)
        return self._begin(state, secrets.token_hex(8), where)

    def _begin(self, state: ClientState, name: str, where: str, field: str = "id") -> ChunkProgress:
        if name in state.episodes or name in state.finished:
            raise BadMessageError(
                ErrorCode.WRONG_ORDER,
                f"{where}.{field}: is that of an episode whose actions are asked for here, expected one that the "
                "client plays by itself; give that another id",
            )
        state.check_room(self._limits, self._broker.open_episodes, where)
        return ChunkProgress(self._broker.start(f"{state.token[:12]}/{name}", budget=state.backlog))

    def _check_gaps(
        self, state: ClientState, episode: WireEpisode, members: Mapping[Any, WireEpisode], where: str
    ) -> None:
        """Refuse a chunk that leaves a gap, or that has too many agents, before anything is taken."""
        if episode.id is None:
            return
        progress = state.chunks.get(episode.id) or ChunkProgress("")
        self._check_num_agents(progress.t.keys() | members.keys(), where)
        for agent, one in members.items():
            taken = progress.t.get(agent, 0)
            if one.t > taken and not progress.over:
                raise BadMessageError(
                    ErrorCode.WRONG_ORDER,
                    f"{where}.t: begins at step {one.t}, expected {taken} at most, which is what has come; send "
                    "what is between first",
                )

    def _fresh(
        self, progress: ChunkProgress, agent: str | None, one: WireEpisode, *, has_id: bool
    ) -> ExternalSteps | None:
        """Return the timesteps that were not taken yet, None if there are none."""
        taken = progress.t.get(agent, 0)
        begins = one.t if has_id else taken
        skip = min(taken - begins, one.steps)
        self.repeated += skip
        last = begins + one.steps
        progress.t[agent] = max(taken, last)
        over = one.terminated or one.truncated
        # This end was taken before; the agent may have started a new trajectory since.
        ended = last < taken or progress.ends.get(agent) == last
        if skip == one.steps and (not over or ended):
            return None
        if over:
            progress.ends[agent] = last
        columns = (one.logp, one.dist_inputs, one.state_in, one.env_t)
        logp, inputs, states, env_t = (None if column is None else column[skip:] for column in columns)
        return ExternalSteps(
            one.obs[skip:], one.actions[skip:], one.rewards[skip:],
            one.terminated and agent is not None, one.truncated and agent is not None, logp, inputs, states, env_t,
        )  # fmt: skip


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
