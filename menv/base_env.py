"""The one interface that every environment is turned into before it is sampled.

A `BaseEnv` holds many sub-environments with many agents each, and none of them has to be
ready when the others are:

    ready = env.poll()                        who waits for an action, as columns
    env.send_actions(ready.slots, actions)    answers for any subset of whole sub-environments

`menv.sampling.sampler` calls it, `menv.adapters` holds the implementations. Nothing here knows
policies, batches or connectors.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError, EnvFault
from menv.migration_hints import hinted
from menv.spaces import call_method
from menv.trajectory_slices import Column

# SEAM menv.as_base_env
# What every kind of environment has: the method that makes a `BaseEnv` of it.
#
# `MultiAgentEnv`, `VectorEnv`, `BaseEnv` and the external ones build on it. It knows none of them.


class ConvertibleEnv:
    """An environment of a kind that menv can step."""

    @property
    def unwrapped(self) -> Any:
        """The innermost environment, as in gymnasium: that of a wrapper's `env`, or this one."""
        inner = getattr(self, "env", self)
        return self if inner is self else getattr(inner, "unwrapped", inner)

    def to_base_env(
        self,
        make_env: Callable[[int], Any] | None = None,
        num_envs: int = 1,
        remote_envs: bool = False,
        remote_env_batch_wait_ms: float = 0,
        restart_failed_sub_environments: bool = True,
        num_consecutive_env_failures_tolerance: int = 2,
    ) -> BaseEnv:
        """Return this environment and `num_envs - 1` more of its kind as one `BaseEnv`.

        One that holds several already, a `VectorEnv` or a `BaseEnv`, is taken alone: `num_envs`, if given, must be
        the number of a `VectorEnv`'s sub-environments; what this returned before is returned as it is.

        Args:
            make_env: Makes the sub-environment of a given index; this one has index 0.
            num_envs: Sub-environments in all.
            remote_envs: Whether each lives in a process of its own; all are made by `make_env` then, there, and this
                one only tells spaces and agents, and is closed.
            remote_env_batch_wait_ms: Milliseconds that a poll waits for more of them once one has answered.
            restart_failed_sub_environments: Whether one that raises is closed and made anew by `make_env`, at the cost
                of its episode; False ends the run.
            num_consecutive_env_failures_tolerance: So many crashes of one sub-environment in a row, each in a reset or
                in the first 10 env steps of an episode, do not end the run; the next one does.
        """
        from menv.workers.convert import to_base_env

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

SINGLE_AGENT = "agent0"
"""The agent id of an environment that has no agent ids of its own."""
ALL = "__all__"
"""The key of the two flag dicts that speaks for the whole episode."""
COMMON = "__common__"
"""The key of infos that are nobody's own but of the whole sub-environment."""


class Join(NamedTuple):
    """An agent that waits for its first action in this life.

    Attributes:
        slot: The small integer that stands for the trajectory until it ends.
        env_id: The sub-environment.
        agent_id: The agent, as the environment calls it.
        env_index: Position of the sub-environment in `Ready.env_steps`.
        trained: Whether policies may learn from this life.
        policy_id: Who answers, where that was decided elsewhere; None leaves it to the mapping.
    """

    slot: int
    env_id: EnvId
    agent_id: AgentId
    env_index: int
    trained: bool = True
    policy_id: str | None = None


class End(NamedTuple):
    """A trajectory that ended; its slot may be given away in the same poll.

    Attributes:
        slot: The slot that the trajectory had.
        env_id: The sub-environment.
        agent_id: The agent.
        reward: Earned since the agent's last row.
        terminated: True if the end was the environment's own rule (bootstrap with 0).
        truncated: True if it was cut short (bootstrap from `obs`).
        obs: The final observation, a copy; None if the environment gave none.
        info: The info dict that came with the end.
        withdrawn: Whether nobody knows what the action of the last row led to; the row does not count then, and
            the trajectory ends with what it observed.
        ago: Env steps that its sub-environment took after the end in the same poll, because nobody waited in it.
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
    """An episode of a sub-environment that ended, after the ends of its agents.

    Attributes:
        env_id: The sub-environment.
        terminated: `terminateds["__all__"]`.
        truncated: `truncateds["__all__"]`.
        env_steps: Length of the episode in env steps.
        env_index: Position of the sub-environment in `Ready.env_steps`.
        unclaimed: Entries of `Ready.unclaimed` that came before the end; later ones belong to later episodes.
        faulty: Whether it is in no mean: a fault broke it off, or its caller ended it without a step.
        info: What its last step told of the whole sub-environment; see `SharedInfo`.
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
    """An info of a whole sub-environment, which it gave under `"__common__"`.

    Attributes:
        env_id: The sub-environment.
        info: The dict.
    """

    env_id: EnvId
    info: Mapping[str, Any]


class Unclaimed(NamedTuple):
    """A reward that no action can own: paid after the end, or to an agent that never acted.

    Attributes:
        env_id: The sub-environment.
        agent_id: The agent.
        reward: What it was paid.
        env_index: Position of the sub-environment in `Ready.env_steps`.
    """

    env_id: EnvId
    agent_id: AgentId
    reward: float
    env_index: int


class AgentChunk(NamedTuple):
    """One agent's part in a piece of an episode.

    Attributes:
        slot: Of its trajectory.
        join: How the trajectory begins, None if it goes on; its first observation is the one that waits then.
        moves: What it did, a `menv.base_env.ExternalSteps`.
        end: How the trajectory ends, None if the last observation waits for the next piece.
    """

    slot: int
    join: Join | None
    moves: Any
    end: End | None


class TrajectoryChunk(NamedTuple):
    """A piece of an episode whose actions were chosen elsewhere.

    Attributes:
        env_id: The sub-environment.
        env_index: Its index.
        agents: Who took part.
        episode: How the episode ends, None if it goes on.
        weights_seq_no: The weights that chose the actions; None if nobody says.
        began: Env steps of the sub-environment when the episode began.
        now: The same at the end of the piece.
    """

    env_id: EnvId
    env_index: int
    agents: Sequence[AgentChunk]
    episode: EpisodeEnd | None
    weights_seq_no: int | None
    began: int = 0
    now: int = 0


class Columns(Sequence[Any]):
    """Observations of agents with different spaces: the rows of several arrays, one array after the other.

    Args:
        parts: Arrays [R_i, ...]; R is the sum of all R_i.
    """

    def __init__(self, parts: Sequence[npt.NDArray[Any]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: Any) -> Any:
        row = range(len(self))[row]
        which = int(np.searchsorted(self._ends, row, side="right"))
        return self._parts[which][row - int(self._ends[which])]

    def at(self, rows: IntArray) -> npt.NDArray[Any]:
        """Return some rows, whose shapes are the same and whose numbers increase, as one array."""
        cuts = np.searchsorted(rows, self._ends[:-1])
        begins = self._ends - [len(part) for part in self._parts]
        pieces = zip(self._parts, np.split(rows, cuts), begins, strict=True)
        return np.concatenate([part[mine - begin] for part, mine, begin in pieces if len(mine)])


@dataclass(slots=True)
class Ready:
    """Who waits for an action and what happened since the last poll.

    To be taken in in this order: `ended`, `episodes` with the `unclaimed` before each, the other `unclaimed`,
    `joined`, `played`, then the rows. Arrays belong to the environment and are valid until its next poll. While
    the same agents wait, `slots` is the very same array object, so that work per layout can be cached by identity.

    Unpacks as the six nested dicts of the classic `poll` too.

    Attributes:
        slots: [R] who waits.
        obs: [R, ...], a list of R elements of the agents' observation spaces, or `Columns`.
        rewards: [R] earned since each agent's previous row.
        env_steps: [E] env steps since each sub-environment's start, over all its episodes, by env index.
        joined: Agents whose first row of a life is among the rows.
        ended: Trajectories that ended.
        episodes: Episodes that ended.
        unclaimed: Rewards that belong to no action, in the order in which they were paid.
        infos: R info dicts, or None; a list that is not changed after, because batches refer to it.
        taken: Actions that an external client chose itself, by slot.
        played: Pieces of episodes that external clients played by themselves; none of them has rows here.
        faults: Sub-environments that raised and were replaced, and callers that were lost; each cost an episode, or one
            that could not begin.
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
        """Return one of the six: `poll()[0]` are the observations."""
        return six_dicts(self)[place]


def six_dicts(ready: Ready) -> tuple[MultiEnvDict, ...]:
    """Return the rows of `ready` as the six nested dicts `{env_id: {agent_id: value}}`.

    Where an episode ended and the next began, `obs` holds the new first observation, the flags and
    the reward are those of the end, and the last observation is in
    `infos[env_id][agent_id]["final_obs"]`.
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


class BaseEnv(ConvertibleEnv, abc.ABC):
    """Many sub-environments, each stepped when all of its waiting agents have been answered.

    A subclass of your own may return the six nested dicts from `poll(self)` and take one nested
    dict in `send_actions(self, action_dict)`; `to_base_env` turns it into this table form. The sixth
    holds what agents did themselves in answer to the `obs` beside it: these actions are learned from,
    by algorithms that can, and come back in `send_actions`. A sub-environment that has taken a step in which nobody
    waits is named in `obs` with an empty dict, and is sent `{}` once for its next step; one that is not named is busy.

    One that sets `returns_table` returns a `Ready` from `poll` and is given slots and actions: for simulators that step
    many agents as arrays. It numbers trajectories from 0, each with a `Join` in the poll of its first row and an `End`,
    after which the number is free; copies, seats and keeping the slots array the same are `to_base_env`'s affair.
    """

    observation_space: Any = None
    action_space: Any = None
    returns_table: bool = False
    """True if `poll` returns a `Ready`; False if it returns the six nested dicts."""
    lockstep: bool = False
    """True if all sub-environments step at once, so that none can wait while others go on."""
    external: bool = False
    """True if it is others who call: episodes come and go, and a poll may have to wait for them."""
    idle_timeout: float | None = None
    """Of an external one: seconds without anything after which the sampler gives up for the time being."""
    num_envs: int = 0
    """E, how many sub-environments there are, 0 where that is not known before the first poll, or changes: evaluations,
    and fragments of length "auto", count the episodes and steps of all together then, not a share of each."""

    if not TYPE_CHECKING:
        __getattr__ = hinted("BaseEnv")

    @abc.abstractmethod
    def poll(self, timeout: float | None = None) -> Any:
        """Return everything that became ready, each row once.

        Args:
            timeout: Seconds to wait for at least one row; None waits as long as something is under
                way. With nothing under way the answer is empty and comes at once.

        Returns:
            A `Ready`.

        Raises:
            ContractError: A sub-environment broke its interface.
            EnvCrashError: A sub-environment raised and cannot be replaced, or did so again and again; its first
                exception is the cause.
        """

    @abc.abstractmethod
    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents; whole sub-environments at a time.

        Args:
            slots: [R] as in `Ready.slots`, or the nested dict `{env_id: {agent_id: action}}`.
            actions: R actions, in the order of `slots`; omitted with the nested dict.

        Raises:
            ContractError: Somebody was answered who does not wait, or only a part of those who
                wait in one sub-environment.
            ConfigError: The nested dict names a sub-environment that there is not.
        """

    def try_reset(
        self,
        env_id: EnvId | None = None,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, Any]:
        """Reset one sub-environment, or all; one that was just reset is left as it is.

        Returns:
            `(obs, infos)` as nested dicts; `(None, None)` if this environment resets itself.
        """
        return None, None

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Replace a sub-environment, or all of them, by a newly created one."""

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the sub-environments as a list, or as a dict by env id."""
        return {} if as_dict else []

    def get_agent_ids(self) -> set[AgentId]:
        """Return all agent ids that are known so far."""
        return set()

    def rest(self) -> None:
        """Note that nobody polls for a while; called when a fragment is complete, or broken off."""

    def unbroken(self) -> AbstractContextManager[Any]:
        """Return what a fragment is sampled in, where Ctrl-C may have to wait until nothing is halfway done."""
        return nullcontext()

    def status(self) -> dict[str, Any]:
        """Return what an external environment has to tell about those who call, for results."""
        return {}

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that were paid and still wait for their agent's next row."""
        return {}

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render one sub-environment, the first by default."""
        return None

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        """Call a method of one sub-environment, wherever it lives, and return what it returns.

        Args:
            env_id: The sub-environment.
            method: The method's name.
            args: What it is called with.

        Raises:
            ConfigError: There is no such sub-environment or method, or no sub-environments that could be called.
        """
        env = self.get_sub_environments(as_dict=True).get(env_id)
        if env is None:
            raise ConfigError(
                f"call: {type(self).__name__} shows no sub-environment {env_id!r}, expected one of "
                f"get_sub_environments; call {method!r} on an object of your own"
            )
        return call_method(env, method, env_id, args)

    def stop(self) -> None:
        """Close every sub-environment; may be called more than once."""


# SEAM menv.frame
# One env step of sub-environments that step together, as arrays.
#
# `menv.adapters.lockstep` makes it; `menv.sampling.vector_loop` writes it down as it is, and `poll` takes it
# apart into rows, joins and ends for everybody else.


Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class VectorStep:
    """What E sub-environments of one agent each did in one env step, or in a reset of them all.

    Attributes:
        obs: E observations, an array [E, ...] where the space allows.
        rewards: [E] for this step.
        terminated: [E] flags.
        truncated: [E] flags.
        infos: E info dicts; none at all if all are empty.
        done: [E] True where an episode ended; None if none did.
        begun: [E] True where this step was the reset of a sub-environment and no step of an episode;
            None if there is none.
        finals: The last observations of those that are done, copies, in order, where `obs` holds the
            first one of the next episode; None where `obs` itself holds the last one.
        final_infos: Their info dicts.
    """

    obs: Any
    rewards: npt.NDArray[Any]
    terminated: Flags
    truncated: Flags
    infos: Sequence[Mapping[str, Any]]
    done: Flags | None = None
    begun: Flags | None = None
    finals: Sequence[Any] | None = None
    final_infos: Sequence[Mapping[str, Any]] = ()


# SEAM menv.played
# What somebody else played: a piece of an episode whose actions a client chose itself, as whole columns.
#
# A serving session hands it to the `Switchboard`, the adapter of external environments adds who it was, and
# `menv.sampling.external_trajectories` writes it down. It is never changed after.


@dataclass(frozen=True, slots=True)
class ExternalSteps:
    """What one agent did in a piece of an episode; n actions, n >= 0.

    Attributes:
        obs: n + 1 elements of its observation space, as a list or an array. The first one is the last of the
            agent's piece before.
        actions: n elements of its action space, or [n, ...] in the network's own form.
        rewards: [n] float64, what each action earned.
        terminated: Whether the agent's trajectory ended by the environment's own rule.
        truncated: Whether it was cut short.
        logp: [n] log-probabilities of the actions, None if nobody knows them.
        dist_inputs: [n, K] what the actions were drawn from, None if nobody says.
        state_in: [n, S] recurrent states before the actions, None if nobody says.
        env_t: [n + 1] env step of the episode in which each observation was seen, None if nobody says.
        network_form: Whether `actions` are in the network's own form, and `logp` and `dist_inputs` speak of these.
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
    network_form: bool = False

    @property
    def over(self) -> bool:
        """Whether the trajectory ends with the last observation."""
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class ExternalTrajectory:
    """A piece of an episode.

    Attributes:
        agents: What each agent did.
        env_steps: Length of the piece.
        terminated: Whether the episode ended with it.
        truncated: Whether it was cut short.
        weights_seq_no: The weights that chose the actions; None if nobody says.
        policies: Who answers for which agent, as far as the client was told; the mapping decides of others.
        unclaimed: What was paid to agents that no action of theirs can own.
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
        """Whether the episode ends with this piece."""
        return self.terminated or self.truncated
