"""`BaseEnv`: the interface that every environment is converted to before it is sampled.

A `BaseEnv` holds many sub-environments with many agents each, which need not be ready at the same time:

    ready = env.poll()                        the agents that wait for an action, as columns
    env.send_actions(ready.slots, actions)    actions for any subset of whole sub-environments

`menv.adapters` implements it, `menv.sampling` calls it. It knows no policies, batches or connectors.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.env_calls import call_method
from menv.errors import ConfigError, EnvFault


def innermost(env: Any) -> Any:
    """The innermost environment, as in gymnasium."""
    inner = getattr(env, "env", env)
    return env if inner is env else getattr(inner, "unwrapped", inner)


def convert_env(  # noqa: D417 - a method
    self: Any,
    make_env: Callable[[int], Any] | None = None,
    num_envs: int = 1,
    remote_envs: bool = False,
    remote_env_batch_wait_ms: float = 0,
    restart_failed_sub_environments: bool = True,
    num_consecutive_env_failures_tolerance: int = 2,
) -> BaseEnv:
    """Return this environment and `num_envs - 1` copies of it as one `BaseEnv`.

    A `VectorEnv` or a `BaseEnv` holds several already: `num_envs`, if given, must be their number. A `BaseEnv` that
    this method returned is returned unchanged.

    Args:
        make_env: Creates the sub-environment of a given index; this one has index 0.
        num_envs: Number of sub-environments.
        remote_envs: Whether each lives in its own process. `make_env` creates all of them there; this one only
            provides spaces and agents, and is closed.
        remote_env_batch_wait_ms: Milliseconds that a poll waits for more sub-environments once one has answered.
        restart_failed_sub_environments: Whether one that raises is closed and created again by `make_env`, which
            costs its episode; False ends the run.
        num_consecutive_env_failures_tolerance: Number of consecutive crashes of one sub-environment, each in a
            reset or in the first 10 env steps of an episode, that do not end the run.
    """
    from menv import to_base_env

    return to_base_env(
        self, make_env, num_envs, remote_envs=remote_envs, remote_env_batch_wait_ms=remote_env_batch_wait_ms,
        restart_failed_sub_environments=restart_failed_sub_environments,
        num_consecutive_env_failures_tolerance=num_consecutive_env_failures_tolerance,
    )  # fmt: skip


EnvId: TypeAlias = Hashable
AgentId: TypeAlias = Hashable
MultiEnvDict: TypeAlias = dict[EnvId, dict[AgentId, Any]]
IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Column: TypeAlias = npt.NDArray[Any]

SINGLE_AGENT = "agent0"
"""The agent id of an environment without agent ids."""
ALL = "__all__"
"""The key of the two flag dicts that ends the whole episode."""
GLOBAL_STATE = "global_state"
"""The key of infos, and the column of rows, with the state of the whole sub-environment."""
COMMON = "__common__"
"""The key of infos of the whole sub-environment."""


class Join(NamedTuple):
    """An agent that waits for the first action of a trajectory.

    Attributes:
        slot: The small integer that identifies the trajectory until it ends.
        env_id: The sub-environment.
        agent_id: The agent, as the environment calls it.
        env_index: Position of the sub-environment in `Ready.env_steps`.
        trained: Whether policies may learn from this trajectory.
        policy_id: The policy that acts, if a client chose it; None leaves it to the policy mapping.
    """

    slot: int
    env_id: EnvId
    agent_id: AgentId
    env_index: int
    trained: bool = True
    policy_id: str | None = None


class End(NamedTuple):
    """A trajectory that ended; its slot may be used again in the same poll.

    Attributes:
        slot: The slot that the trajectory had.
        env_id: The sub-environment.
        agent_id: The agent.
        reward: Sum of the rewards since the agent's last row.
        terminated: True if the environment's own rule ended it (bootstrap with 0).
        truncated: True if it was cut short (bootstrap from `obs`).
        obs: The final observation, a copy; None if the environment gave none.
        info: The info dict that came with the end.
        withdrawn: Whether the result of the last action is unknown; its row is dropped, and the trajectory ends with
            the observation of that row.
        ago: Env steps of the sub-environment after the end in the same poll, in which no agent waited.
    """

    slot: int
    env_id: EnvId
    agent_id: AgentId
    reward: float
    terminated: bool
    truncated: bool
    obs: Any
    info: Mapping[str, Any]
    withdrawn: bool = False
    ago: int = 0


class EpisodeEnd(NamedTuple):
    """An episode of a sub-environment that ended, reported after the ends of its agents.

    Attributes:
        env_id: The sub-environment.
        terminated: `terminateds["__all__"]`.
        truncated: `truncateds["__all__"]`.
        env_steps: Length of the episode in env steps.
        env_index: Position of the sub-environment in `Ready.env_steps`.
        unclaimed: Number of entries of `Ready.unclaimed` before the end; later ones belong to later episodes.
        faulty: Whether it is left out of all means: a fault ended it, or its caller ended it without a step.
        info: The last step's info of the whole sub-environment.
    """

    env_id: EnvId
    terminated: bool
    truncated: bool
    env_steps: int
    env_index: int
    unclaimed: int = 0
    faulty: bool = False
    info: Mapping[str, Any] | None = None


class SharedInfo(NamedTuple):
    """An info of a whole sub-environment, which it gave under `"__common__"`."""

    env_id: EnvId
    info: Mapping[str, Any]


class Unclaimed(NamedTuple):
    """A reward that belongs to no action: it came after the end, or for an agent that never acted.

    Attributes:
        env_id: The sub-environment.
        agent_id: The agent.
        reward: The reward.
        env_index: Position of the sub-environment in `Ready.env_steps`.
    """

    env_id: EnvId
    agent_id: AgentId
    reward: float
    env_index: int


class AgentChunk(NamedTuple):
    """One agent's part of a `TrajectoryChunk`: `join` if its trajectory begins, its steps, `end` if it ends."""

    slot: int
    join: Join | None
    steps: Any
    end: End | None


class TrajectoryChunk(NamedTuple):
    """A part of an episode whose actions a client chose, as the sampler receives it.

    Attributes:
        env_id: The sub-environment.
        env_index: Its index.
        agents: One entry for each agent that acted.
        episode: The end of the episode, None if it continues.
        weights_seq_no: The weights that chose the actions; None if unknown.
        began: Env steps of the sub-environment when the episode began.
        now: The same at the end of the chunk.
    """

    env_id: EnvId
    env_index: int
    agents: Sequence[AgentChunk]
    episode: EpisodeEnd | None
    weights_seq_no: int | None
    began: int = 0
    now: int = 0


class Columns(Sequence[Any]):
    """Observations of agents with different spaces: the rows of several arrays [R_i, ...], array after array."""

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: Any) -> Any:
        """Return one observation, or the rows that indices select, in increasing order."""
        if isinstance(row, np.ndarray):
            return Columns(self._pieces(row))
        row = range(len(self))[row]
        which = int(np.searchsorted(self._ends, row, side="right"))
        return self._parts[which][row - int(self._ends[which])]

    def at(self, rows: IntArray) -> Any:
        """Return rows of the same shape, in increasing order, as one array or as `NestedRows`."""
        return join_rows(self._pieces(rows))

    def _pieces(self, rows: IntArray) -> list[Any]:
        cuts = np.searchsorted(rows, self._ends[:-1])
        begins = self._ends - [len(part) for part in self._parts]
        pieces = zip(self._parts, np.split(rows, cuts), begins, strict=True)
        return [part[mine - begin] for part, mine, begin in pieces if len(mine)]


class NestedRows(Sequence[Any]):
    """R observations of a dictionary space as a dict of arrays [R, ...], which may be nested; an element is a dict."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    def __getitem__(self, row: Any) -> Any:
        """Return one observation, or the rows that a mask, indices or a slice select."""
        if isinstance(row, int | np.integer):
            range(len(self))[row]
            return {name: part[row] for name, part in self.parts.items()}
        return NestedRows({name: part[row] for name, part in self.parts.items()})


class StateRows(Sequence[Mapping[str, Any]]):
    """R infos that hold the global states [R, S] alone."""

    names = (GLOBAL_STATE,)

    def __init__(self, states: npt.NDArray[np.float32]) -> None:
        self.states = states

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, row: Any) -> Any:
        """Return the info of one row, or the rows that a slice selects."""
        found = self.states[row]
        return {GLOBAL_STATE: found} if found.ndim == 1 else StateRows(found)


def join_rows(parts: Sequence[Any]) -> Any:
    """Return rows of the same shapes one after the other."""
    first = parts[0]
    if isinstance(first, NestedRows):
        return NestedRows({name: join_rows([part.parts[name] for part in parts]) for name in first.parts})
    return np.concatenate(parts)


@dataclass(slots=True)
class Joins(Sequence[Join]):
    """K joins as columns, for sub-environments whose ids are their indices; an element is a `Join`.

    Attributes:
        slots: [K] the slots.
        env_indices: [K] the sub-environments.
        agents: [K] each agent's number, its place in `names`.
        names: The ids of all agents of a sub-environment.
    """

    slots: IntArray
    env_indices: IntArray
    agents: IntArray
    names: Sequence[AgentId]

    @classmethod
    def of_only_agents(cls, joins: Sequence[Join], names: Sequence[AgentId]) -> Self:
        """Return the joins of the only agents of sub-environments, `names`."""
        slots = np.array([join.slot for join in joins], np.int64)
        return cls(slots, slots, np.zeros(len(joins), np.int64), names)

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, place: Any) -> Any:
        """Return one join, or the joins that a mask, indices or a slice select."""
        columns = self.slots[place], self.env_indices[place], self.agents[place]
        if columns[0].ndim:
            return Joins(*columns, self.names)
        slot, index, agent = (column.item() for column in columns)
        return Join(slot, index, self.names[agent], index)


@dataclass(slots=True)
class Ends(Sequence[End]):
    """K ends of trajectories as columns, for sub-environments whose ids are their indices; an element is an `End`.

    Attributes:
        slots: [K] the slots that the trajectories had.
        env_indices: [K] the sub-environments.
        agents: [K] each agent's number, its place in `names`.
        rewards: [K] sum of the rewards since each agent's last row.
        terminated: [K] flags.
        truncated: [K] flags.
        obs: [K, ...] the final observations, which must not change afterwards: an array, or a list.
        names: The ids of all agents of a sub-environment.
        infos: K info dicts, () if all are empty.
    """

    slots: IntArray
    env_indices: IntArray
    agents: IntArray
    rewards: FloatArray
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    obs: Any
    names: Sequence[AgentId]
    infos: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of_only_agents(cls, ends: Sequence[End], names: Sequence[AgentId]) -> Self:
        """Return the ends of the only agents of sub-environments, `names`."""
        slot, _, _, reward, terminated, truncated, obs, infos, *_ = zip(*ends, strict=True)
        slots = np.array(slot, np.int64)
        flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        rewards = np.array(reward, np.float64)
        return cls(slots, slots, np.zeros(len(ends), np.int64), rewards, *flags, list(obs), names, infos)

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, place: Any) -> Any:
        """Return one end, or the ends that a mask, indices or a slice select."""
        slots, index, agent = self.slots[place], self.env_indices[place], self.agents[place]
        reward, terminated, truncated = self.rewards[place], self.terminated[place], self.truncated[place]
        if not slots.ndim:
            info = self.infos[place] if self.infos else {}
            return End(
                int(slots), int(index), self.names[agent], float(reward), bool(terminated), bool(truncated),
                self.obs[place], info,
            )  # fmt: skip
        chosen = np.arange(len(self))[place].tolist()
        is_rows = isinstance(self.obs, np.ndarray | NestedRows)
        obs = self.obs[place] if is_rows else [self.obs[one] for one in chosen]
        infos = [self.infos[one] for one in chosen] if self.infos else ()
        return Ends(slots, index, agent, reward, terminated, truncated, obs, self.names, infos)


@dataclass(slots=True)
class EpisodeEnds(Sequence[EpisodeEnd]):
    """K episodes that ended as columns, for sub-environments whose ids are their indices.

    An element is an `EpisodeEnd`. All `Ready.unclaimed` of the poll belong to these episodes or to running ones.

    Attributes:
        env_indices: [K] the sub-environments.
        terminated: [K] `terminateds["__all__"]`.
        truncated: [K] `truncateds["__all__"]`.
        env_steps: [K] length of each episode.
        unclaimed: Number of `Ready.unclaimed`.
    """

    env_indices: IntArray
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    env_steps: IntArray
    unclaimed: int = 0

    @classmethod
    def of(cls, ends: Sequence[EpisodeEnd]) -> Self:
        """Return ends without infos of whole sub-environments, none of them faulty, as columns."""
        _, terminated, truncated, lengths, indices, *_ = zip(*ends, strict=True)
        flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        return cls(np.array(indices, np.int64), *flags, np.array(lengths, np.int64), ends[-1].unclaimed)

    def __len__(self) -> int:
        return len(self.env_indices)

    def __getitem__(self, place: Any) -> Any:
        """Return one episode, or the episodes that a mask, indices or a slice select."""
        index, length = self.env_indices[place], self.env_steps[place]
        terminated, truncated = self.terminated[place], self.truncated[place]
        if index.ndim:
            return EpisodeEnds(index, terminated, truncated, length, self.unclaimed)
        return EpisodeEnd(
            int(index), bool(terminated), bool(truncated), int(length), int(index), self.unclaimed
        )


@dataclass(slots=True)
class Ready:
    """The agents that wait for an action, and everything that happened since the last poll.

    Process it in this order: `ended`, `episodes` with the `unclaimed` before each, the other `unclaimed`, `joined`,
    `played`, then the rows. Arrays belong to the environment and are valid until its next poll. While the same agents
    wait, `slots` is the same array object, so that work per layout can be cached by identity.

    It also unpacks as the six nested dicts of RLlib's `poll`.

    Attributes:
        slots: [R] the trajectories that wait.
        obs: [R, ...], a list of R elements of the agents' observation spaces, or `Columns`.
        rewards: [R] sum of the rewards since each agent's previous row.
        env_steps: [E] env steps since each sub-environment's start, over all its episodes, by env index.
        joined: Trajectories whose first row is among the rows, as objects or as `Joins`, whose columns cost nothing per
            trajectory.
        ended: Trajectories that ended, as objects or as `Ends`.
        episodes: Episodes that ended, as objects or as `EpisodeEnds`.
        unclaimed: Rewards that belong to no action, in the order in which they came.
        infos: R info dicts, or None; batches refer to this list, so it must not change afterwards.
        taken: Actions that an external client chose, by slot.
        played: Parts of episodes whose actions external clients chose; they have no rows here.
        faults: Sub-environments that raised and were replaced, and callers that were lost; each cost an episode.
        shared_infos: Infos of whole sub-environments, of the episodes that run after this poll.
        seats: `seats[slot]` is `(env_id, agent_id)` of every row.
    """

    slots: IntArray
    obs: Any
    rewards: FloatArray
    env_steps: IntArray
    joined: Sequence[Join] = ()
    ended: Sequence[End] = ()
    episodes: Sequence[EpisodeEnd] = ()
    unclaimed: Sequence[Unclaimed] = ()
    infos: Sequence[Mapping[str, Any]] | None = None
    taken: Mapping[int, Any] = field(default_factory=dict)
    seats: Sequence[tuple[EnvId, AgentId]] = ()
    played: Sequence[TrajectoryChunk] = ()
    faults: Sequence[EnvFault] = ()
    shared_infos: Sequence[SharedInfo] = ()

    def __iter__(self) -> Iterator[MultiEnvDict]:
        """Yield obs, rewards, terminateds, truncateds, infos and off-policy actions."""
        return iter(six_dicts(self))

    def __getitem__(self, place: int) -> MultiEnvDict:
        """Return one of the six: `poll()[0]` holds the observations."""
        return six_dicts(self)[place]


def six_dicts(ready: Ready) -> tuple[MultiEnvDict, ...]:
    """Return the rows of `ready` as the six nested dicts `{env_id: {agent_id: value}}`.

    Where an episode ended and the next began, `obs` holds the new first observation, the flags and the reward belong to
    the end, and the last observation is in `infos[env_id][agent_id]["final_obs"]`.
    """
    obs: MultiEnvDict = {}
    rewards: MultiEnvDict = {}
    terminateds: MultiEnvDict = {}
    truncateds: MultiEnvDict = {}
    infos: MultiEnvDict = {}
    taken: MultiEnvDict = {}
    for row, slot in enumerate(ready.slots.tolist()):
        env_id, agent_id = ready.seats[slot]
        obs.setdefault(env_id, {})[agent_id] = ready.obs[row]
        rewards.setdefault(env_id, {})[agent_id] = float(ready.rewards[row])
        info = ready.infos[row] if ready.infos is not None else {}
        infos.setdefault(env_id, {})[agent_id] = info
        if slot in ready.taken:
            taken.setdefault(env_id, {})[agent_id] = ready.taken[slot]
    for end in ready.ended:
        by_agent = rewards.setdefault(end.env_id, {})
        by_agent[end.agent_id] = by_agent.get(end.agent_id, 0.0) + end.reward
        terminateds.setdefault(end.env_id, {})[end.agent_id] = end.terminated
        truncateds.setdefault(end.env_id, {})[end.agent_id] = end.truncated
        last = {**end.info, "final_obs": end.obs}
        infos.setdefault(end.env_id, {})[end.agent_id] = last
        obs.setdefault(end.env_id, {})
    for shared in ready.shared_infos:
        infos.setdefault(shared.env_id, {})[COMMON] = shared.info
    for env_id in obs:
        terminateds.setdefault(env_id, {})[ALL] = False
        truncateds.setdefault(env_id, {})[ALL] = False
    for episode in ready.episodes:
        terminateds.setdefault(episode.env_id, {})[ALL] = episode.terminated
        truncateds.setdefault(episode.env_id, {})[ALL] = episode.truncated
    return obs, rewards, terminateds, truncateds, infos, taken


class BaseEnv(abc.ABC):
    """Many sub-environments, each stepped when all its waiting agents have an action.

    A subclass may return the six nested dicts from `poll(self)` and accept one nested dict in
    `send_actions(self, action_dict)`; `to_base_env` converts it. The sixth dict holds actions that agents chose
    themselves for the observations in `obs`: algorithms that can learn from these do, and `send_actions` gets them
    back. A sub-environment after a step in which no agent waits is in `obs` with an empty dict, and is sent `{}`
    once for its next step; one that is missing is busy.

    A subclass that sets `returns_table` returns a `Ready` from `poll` and gets slots and actions: for simulators that
    step many agents as arrays. It numbers trajectories from 0, each with a `Join` in the poll of its first row and an
    `End`, after which the number is free. `to_base_env` takes care of copies, seats and the identity of the slots
    array.
    """

    observation_space: Any = None
    action_space: Any = None
    returns_table: bool = False
    """True if `poll` returns a `Ready`; False if it returns the six nested dicts."""
    lockstep: bool = False
    """True if all sub-environments step together, so that none can wait while others continue."""
    external: bool = False
    """True if clients call it: episodes begin when they want, and a poll may wait for them."""
    idle_timeout: float | None = None
    """Of an external one: seconds without any call after which a `sample()` times out."""
    num_envs: int = 0
    """E, the number of sub-environments; 0 if it is unknown before the first poll, or changes. Evaluations, and
    fragments of length "auto", then count the episodes and steps of all together, not a share of each."""

    unwrapped = property(innermost)
    to_base_env = convert_env

    @abc.abstractmethod
    def poll(self, timeout: float | None = None) -> Any:
        """Return everything that became ready, each row once.

        Args:
            timeout: Seconds to wait for at least one row; None waits as long as anything is under way. With nothing
                under way the result is empty and comes at once.

        Returns:
            A `Ready`.

        Raises:
            ContractError: A sub-environment broke its interface.
            EnvCrashError: A sub-environment raised and cannot be replaced, or did so repeatedly; its first exception is
                the cause.
        """

    @abc.abstractmethod
    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Send actions to waiting agents, for whole sub-environments at a time.

        Args:
            slots: [R] as in `Ready.slots`, or the nested dict `{env_id: {agent_id: action}}`.
            actions: R actions, in the order of `slots`; omitted with the nested dict.

        Raises:
            ContractError: An agent got an action that does not wait, or only some of the agents that wait in one
                sub-environment did.
            ConfigError: The nested dict names an unknown sub-environment.
        """

    def try_reset(
        self,
        env_id: EnvId | None = None,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, Any]:
        """Reset one sub-environment, or all; one that was just reset is not reset again.

        Returns:
            `(obs, infos)` as nested dicts; `(None, None)` if this environment resets itself.
        """
        return None, None

    def try_restart(self, env_id: EnvId | None = None) -> None:  # noqa: B027 - optional
        """Replace a sub-environment, or all of them, by a newly created one."""

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the sub-environments as a list, or as a dict by env id."""
        return {} if as_dict else []

    def get_agent_ids(self) -> set[AgentId]:
        """Return all agent ids known so far."""
        return set()

    def rest(self) -> None:  # noqa: B027 - optional
        """Called when a fragment is complete or interrupted: the next poll may come late."""

    def unbroken(self) -> AbstractContextManager[Any]:
        """Return the context in which a fragment is sampled; it may delay Ctrl-C until the state is consistent."""
        return nullcontext()

    def status(self) -> dict[str, Any]:
        """Return counters of an external environment's clients, for results."""
        return {}

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that wait for their agent's next row."""
        return {}

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render one sub-environment, the first by default."""
        return None

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        """Call a method of one sub-environment, in whatever process it lives, and return its result.

        Args:
            env_id: The sub-environment.
            method: The method's name.
            args: Arguments of the method.

        Raises:
            ConfigError: There is no such sub-environment or method, or no sub-environment that can be called.
        """
        env = self.get_sub_environments(as_dict=True).get(env_id)
        if env is None:
            raise ConfigError(
                f"call: {type(self).__name__} has no sub-environment {env_id!r}, expected one of get_sub_environments; "
                f"call {method!r} on your own object"
            )
        return call_method(env, method, env_id, args)

    def stop(self) -> None:  # noqa: B027 - optional
        """Close every sub-environment; may be called more than once."""


Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class VectorStep:
    """One env step, or a reset, of E sub-environments of one agent each, as arrays.

    Attributes:
        obs: E observations, an array [E, ...] if the space allows.
        rewards: [E] of this step.
        terminated: [E] flags.
        truncated: [E] flags.
        infos: E info dicts; empty if all are empty.
        done: [E] True where an episode ended; None if none did.
        begun: [K] sub-environments for which this step was a reset and not a step of an episode; None if there is none.
        finals: Copies of the final observations of the done ones, in order, if `obs` holds the first observation of the
            next episode; None if `obs` itself holds the final ones.
        final_infos: Their info dicts.
    """

    obs: Any
    rewards: npt.NDArray[Any]
    terminated: Flags
    truncated: Flags
    infos: Sequence[Mapping[str, Any]]
    done: Flags | None = None
    begun: IntArray | None = None
    finals: Sequence[Any] | None = None
    final_infos: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class ExternalSteps:
    """n >= 0 steps of one agent whose actions a client chose.

    Attributes:
        obs: n + 1 elements of its observation space, as a list or an array; the first one is the last of the chunk
            before.
        actions: n elements of its action space.
        rewards: [n] float64, the reward of each action.
        terminated: Whether the environment's own rule ended the trajectory.
        truncated: Whether it was cut short.
        logp: [n] log-probabilities of the actions, None if unknown.
        dist_inputs: [n, K] inputs of the action distribution, None if unknown.
        state_in: [n, S] hidden states before the actions, None if unknown.
        env_t: [n + 1] env step of the episode of each observation, None if unknown.
    """

    obs: Any
    actions: Any
    rewards: npt.NDArray[np.float64]
    terminated: bool = False
    truncated: bool = False
    logp: Column | None = None
    dist_inputs: Column | None = None
    state_in: Column | None = None
    env_t: Column | None = None

    @property
    def over(self) -> bool:
        """Whether the trajectory ends with the last observation."""
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class ExternalTrajectory:
    """A part of an episode whose actions a client chose, as a serving session hands it to the `EpisodeBroker`.

    Attributes:
        agents: The steps of each agent.
        env_steps: Length of the part.
        terminated: Whether the episode ended with it.
        truncated: Whether it was cut short.
        weights_seq_no: The weights that chose the actions; None if unknown.
        policies: The policy of each agent, as far as the client knew it; the policy mapping decides the others.
        unclaimed: Rewards of agents that belong to no action.
    """

    agents: Mapping[AgentId, ExternalSteps]
    env_steps: int
    terminated: bool = False
    truncated: bool = False
    weights_seq_no: int | None = None
    policies: Mapping[Any, str] = field(default_factory=dict)
    unclaimed: Mapping[Any, float] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the episode ends with this part."""
        return self.terminated or self.truncated
