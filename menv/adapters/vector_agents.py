"""`VectorAgentEnvs`: a `VectorMultiAgentEnv` as a `BaseEnv`, with joins, ends and episodes as columns.

The slot of agent a in world e is a * E + e. All worlds step together, when all agents that wait have been answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from menv import rng
from menv.adapters.adapter import Adapter
from menv.adapters.validation import MAX_EMPTY_STEPS, as_rewards, nested_answers, wrong_count
from menv.base_env import (
    AgentId,
    Column,
    Columns,
    Ends,
    EnvId,
    EpisodeEnds,
    Flags,
    FloatArray,
    IntArray,
    Joins,
    MultiEnvDict,
    NestedRows,
    Ready,
    StateRows,
    Unclaimed,
    join_rows,
)
from menv.env_calls import close_env, returned, state_rows
from menv.errors import (
    CallOrderError,
    ConfigError,
    ContractError,
    EnvCrashError,
    MenvError,
    in_words,
)
from menv.spaces import parts_of
from menv.vector_env import VectorMultiAgentEnv

Events: TypeAlias = tuple[Any, Any, Any]
"""Ends of trajectories, ends of episodes, and unclaimed rewards."""

_NO_SLOTS: IntArray = np.zeros(0, np.int64)
FINAL_OBS, WAS_RESET, ACTING = "final_obs", "_final_obs", "acting"


class VectorAgentEnvs(Adapter):
    """Steps E worlds of A agents; nothing is reset before the first poll."""

    lockstep = can_restart = True

    def __init__(self, env: VectorMultiAgentEnv, *, seed: int | None = None, first_index: int = 0) -> None:
        self.env = env
        self.num_envs, self._agents = _shape_of(env)
        agents = self.possible_agents = self._agents
        self.observation_space = _by_agent(env.observation_spaces, agents)
        self.action_space = _by_agent(env.action_spaces, agents)
        self.env_steps: IntArray = np.zeros(self.num_envs, np.int64)
        self._name = type(env).__name__
        spaces = [env.observation_spaces[agent] for agent in agents]
        is_alike = (
            bool(spaces) and all(space == spaces[0] for space in spaces) and parts_of(spaces[0]) is None
        )
        # The space of all agents, where they have one and it is not a dict.
        self._box = spaces[0] if is_alike else None
        self._common_reward = getattr(env, "common_reward", None)
        # Set by `as_team` where a run uses the states, whose worlds' agents are no groups.
        self._has_states = hasattr(env, "run_state_size") and not hasattr(env, "run_groups")
        self._seed = None if seed is None else rng.reset_seed(seed, first_index, 0)
        shape = len(agents), self.num_envs
        self._all_slots = np.arange(shape[0] * shape[1])
        self._seats = [(index, agent) for agent in agents for index in range(self.num_envs)]
        # [A, E] agents with a running trajectory, agents that appeared in the episode, and rewards since the last row.
        self._alive: Flags = np.zeros(shape, np.bool_)
        self._seen: Flags = np.zeros(shape, np.bool_)
        self._held: FloatArray = np.zeros(shape)
        # [E] env steps at the beginning of the episodes, and steps since an agent acted.
        self._began: IntArray = np.zeros(self.num_envs, np.int64)
        self._idle: IntArray = np.zeros(self.num_envs, np.int64)
        # Observations of all agents, after the last step.
        self._obs: Any = ()
        # Whether columns are one array [E, A, ...].
        self._is_array = False
        self._started = self._stopped = False
        # What the next poll returns, what the one after it returns if it pauses, and the slots that wait for answers.
        self._ready: Ready | None = None
        self._rest: Ready | None = None
        self._waiting: IntArray = _NO_SLOTS

    def poll(self, timeout: float | None = None) -> Ready:
        """Return the rows of the agents that act; never waits."""
        if not self._started:
            self._start(None)
        elif self._rest is None and self._ready is None and not len(self._waiting):
            # No agent acts anywhere.
            self._step(_NO_SLOTS, [])
        ready, self._ready = self._rest or self._ready, None
        self._rest, self.paused = None, False
        if ready is None:
            return Ready(_NO_SLOTS, [], np.zeros(0), self.env_steps, seats=self._seats)
        if self.pauses_at_ends and ready.episodes:
            self._rest, self.paused = replace(ready, ended=(), episodes=(), unclaimed=()), True
            return replace(ready, slots=_NO_SLOTS, obs=[], rewards=np.zeros(0), joined=())
        self._waiting = ready.slots
        return ready

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Step all worlds with the actions of all rows of the last poll."""
        if actions is None:
            places: dict[Any, int] = {seat: slot for slot, seat in enumerate(self._seats)}
            by_slot = {
                places[env_id, agent]: action
                for env_id, by_agent in nested_answers(slots).items()
                for agent, action in by_agent.items()
            }
            slots, actions = np.array(list(by_slot), np.int64), list(by_slot.values())
        if len(slots) != len(actions):
            raise wrong_count(len(actions), len(slots))
        if self._ready is not None or self._rest is not None or not self._started:
            raise CallOrderError(f"{self._name}: no agent waits, expected poll first; call poll")
        if slots is not self._waiting:
            slots = np.asarray(slots, np.int64)
            if not np.array_equal(np.sort(slots), self._waiting):
                raise ContractError(
                    f"{self._name}: {len(slots)} answers, expected one for each of the {len(self._waiting)} rows of "
                    "the last poll, because all worlds step together; answer all rows"
                )
        if len(slots):
            self._step(slots, actions)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Reset all worlds together."""
        if env_id is not None and self.num_envs > 1:
            raise ConfigError(
                f"try_reset: env {env_id} cannot be reset apart from the others; leave the env id out"
            )
        is_new = self._started and not (self.env_steps - self._began).any() and self._ready is not None
        if not is_new or seed is not None:
            self._start(seed)
        assert self._ready is not None
        obs: MultiEnvDict = {}
        infos: MultiEnvDict = {}
        for row, slot in enumerate(self._ready.slots.tolist()):
            index, agent = self._seats[slot]
            obs.setdefault(index, {})[agent] = self._ready.obs[row]
            infos.setdefault(index, {})[agent] = {}
        return obs, infos

    def start_from(self, env_steps: IntArray) -> None:
        self._started, self._ready, self._rest, self._waiting = False, None, None, _NO_SLOTS
        self._alive[:] = self._seen[:] = False
        self._held[:] = 0.0
        self.env_steps[:] = env_steps
        if self._seed is not None:
            self._seed = rng.reset_seed(self._seed, 0, int(env_steps.sum()))

    def get_agent_ids(self) -> set[AgentId]:
        return set(self._agents)

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        found: dict[EnvId, dict[AgentId, float]] = {}
        for agent, index in np.argwhere(self._held).tolist():
            found.setdefault(index, {})[self._agents[agent]] = float(self._held[agent, index])
        return found

    def try_render(self, env_id: EnvId | None = None) -> Any:
        return self.env.render(self.index_of(env_id or 0))

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            close_env(self.env)

    def _start(self, seed: int | None) -> None:
        """Reset all worlds; episodes that run end as truncated."""
        events: Events = ((), (), ())
        if self._ready is not None:
            if (self.env_steps > self._began).any():
                raise CallOrderError(
                    f"{self._name}: the rows of the last step were not read; call poll first"
                )
            # Nothing has happened since the last reset but what it ended.
            events = self._ready.ended, self._ready.episodes, self._ready.unclaimed
        elif self._started:
            everywhere, none = np.ones(self.num_envs, np.bool_), np.zeros_like(self._alive)
            events = self._ends(self._alive.copy(), none, ~none, everywhere, none, self._obs, self._obs)
        self._started = True
        seed, self._seed = self._seed if seed is None else seed, None
        obs, infos = returned(
            self._call("reset", seed=seed), 2, f"{self._name}.reset", "(obs, infos)", "fix its return value"
        )
        self._is_array = not isinstance(obs, Mapping)
        self._obs = self._observations("reset", "obs", obs)
        self._held[:] = 0.0
        self._alive[:] = self._seen[:] = False
        self._began[:] = self.env_steps
        self._waiting, self._rest = _NO_SLOTS, None
        none = np.zeros_like(self._alive)
        self._set_ready(self._acting("reset", infos, none, None, none), events)

    def _step(self, slots: IntArray, actions: Any) -> None:
        result = self._call("step", self._columns_of(slots, actions))
        names = "(obs, rewards, terminated, truncated, infos)"
        obs, rewards, terminated, truncated, infos = returned(
            result, 5, f"{self._name}.step", names, "fix its return value"
        )
        self._waiting = _NO_SLOTS
        self.env_steps += 1
        paid = self._grid("step", "rewards", rewards)
        paid = as_rewards(paid.reshape(-1), self._reward_labels).reshape(paid.shape)
        self._held += self._paid_to_team(paid) if self._common_reward else paid
        terminated, truncated = (
            self._flags("step", name, flags)
            for name, flags in (("terminated", terminated), ("truncated", truncated))
        )
        done: Flags = terminated | truncated
        over = _flags_of(infos.get(WAS_RESET), self.num_envs, f"{self._name}.step: infos[{WAS_RESET!r}]")
        now = self._observations("step", "obs", obs)
        ended = self._alive & (done if over is None else done | over)
        acting = self._acting("step", infos, done, over, ended)
        events: Events = ((), (), ())
        if over is not None or np.count_nonzero(ended) or np.count_nonzero(self._alive) < self._alive.size:
            last = now if over is None else self._observations("step", FINAL_OBS, infos.get(FINAL_OBS))
            events = self._ends(ended, terminated, truncated, over, acting, now, last)
            if self._has_states and events[0]:
                events[0].infos = self._states_at(events[0].env_indices, over, infos)
        self._obs = now
        self._set_ready(acting, events)

    def _paid_to_team(self, paid: Column) -> Column:
        """Return [A, E] the team's reward for each agent that had a trajectory; worlds without any stay unchanged."""
        team, total = np.count_nonzero(self._alive, axis=0), paid.sum(axis=0)
        share = total / np.maximum(team, 1) if self._common_reward == "mean" else total
        return np.where(team > 0, np.where(self._alive, share, 0.0), paid)

    def _ends(
        self,
        ended: Flags,
        terminated: Flags,
        truncated: Flags,
        over: Flags | None,
        acting: Flags,
        now: Any,
        last: Any,
    ) -> Events:
        """Return the ends of trajectories and of episodes, and the rewards that belong to no action.

        `ended` [A, E] end; their last observations are `last` in worlds that are `over` [E], `now` in others.
        """
        if over is not None and np.count_nonzero(lost := ended & ~(terminated | truncated)):
            agent, index = (int(one[0]) for one in np.nonzero(lost))
            raise self._wrong(
                f"world {index}, env step {self.env_steps[index]}: it was reset and agent "
                f"{self._agents[agent]!r} is neither terminated nor truncated; set one of its flags", "ME099"
            )  # fmt: skip
        slots = np.flatnonzero(ended)
        ends = self._ends_at(slots, terminated, truncated, over, now, last) if len(slots) else ()
        self._held[ended] = 0.0
        self._alive &= ~ended
        # What dead agents were paid, and agents that never acted before the end, belongs to no action.
        dead = self._seen & ~self._alive & ~acting
        unowned = (self._held != 0) & (dead if over is None else dead | over)
        unclaimed = [
            Unclaimed(index, self._agents[agent], float(self._held[agent, index]), index)
            for agent, index in np.argwhere(unowned).tolist()
        ]
        self._held[unowned] = 0.0
        if over is None:
            return ends, (), unclaimed
        which = np.flatnonzero(over)
        self._seen[:, which] = False
        cut = np.logical_or.reduce((truncated & ~terminated & ended)[:, which], axis=0)
        lengths = self.env_steps[which] - self._began[which]
        self._began[which] = self.env_steps[which]
        return ends, EpisodeEnds(which, ~cut, cut, lengths, len(unclaimed)), unclaimed

    def _ends_at(
        self, slots: IntArray, terminated: Flags, truncated: Flags, over: Flags | None, now: Any, last: Any
    ) -> Ends:
        agents, envs = np.divmod(slots, self.num_envs)
        finals = now[slots]
        if over is not None:
            from_last = over[envs].tolist()
            finals = last[slots] if all(from_last) else [
                old if is_last else new
                for old, new, is_last in zip(last[slots], finals, from_last, strict=True)
            ]  # fmt: skip
        was_terminated = terminated.reshape(-1)[slots]
        was_truncated = truncated.reshape(-1)[slots] & ~was_terminated
        rewards = self._held.reshape(-1)[slots]
        return Ends(slots, envs, agents, rewards, was_terminated, was_truncated, finals, self._agents)

    def _set_ready(self, acting: Flags, events: Events) -> None:
        """Set the rows of the agents that act."""
        ended, episodes, unclaimed = events
        slots = self._all_slots if acting.all() else np.flatnonzero(acting)
        new = acting & ~self._alive
        joined: Any = ()
        if np.count_nonzero(new):
            began = np.flatnonzero(new)
            agents, envs = np.divmod(began, self.num_envs)
            joined = Joins(began, envs, agents, self._agents)
            self._alive |= new
            self._seen |= new
        rewards = self._held.reshape(-1)[slots]
        self._held.reshape(-1)[slots] = 0.0
        obs = self._obs if slots is self._all_slots else self._obs[slots]
        states = StateRows(state_rows(self.env)[slots % self.num_envs]) if self._has_states else None
        self._ready = Ready(
            slots, obs, rewards, self.env_steps, joined, ended, episodes, unclaimed, states, seats=self._seats
        )

    def _states_at(self, envs: IntArray, over: Flags | None, infos: Mapping[str, Any]) -> StateRows:
        """Return the last states of trajectories that ended in worlds `envs` [K]."""
        states = state_rows(self.env)
        if over is not None:
            states = np.where(over[:, None], state_rows(self.env, infos), states)
        return StateRows(states[envs])

    def _acting(self, method: str, infos: Any, done: Flags, over: Flags | None, ended: Flags) -> Flags:
        """Return [A, E] which agents act next, after the trajectories that `ended`."""
        dead = done if over is None else done & ~over
        given = infos.get(ACTING)
        if given is None:
            acting: Flags = ~dead
        else:
            acting = self._flags(method, f"infos[{ACTING!r}]", given)
            if np.count_nonzero(both := acting & dead):
                agent, index = (int(one[0]) for one in np.nonzero(both))
                raise self._wrong(
                    f"world {index}, env step {self.env_steps[index]}: agent {self._agents[agent]!r} acts "
                    f"though it is done; clear its flag in infos[{ACTING!r}]", "ME100"
                )  # fmt: skip
        idle = ~np.logical_or.reduce(acting | (self._alive & ~ended), axis=0)
        if np.count_nonzero(idle) == 0:
            self._idle[:] = 0
            return acting
        self._idle = np.where(idle, self._idle + 1, 0)
        index = int(np.argmax(self._idle))
        where = f"world {index}, env step {self.env_steps[index]}"
        if given is None:
            raise self._wrong(
                f"{where}: all agents are done and it was not reset, expected a reset in the same step; put the last "
                f"observations into infos[{FINAL_OBS!r}], and flags [E] of the worlds into infos[{WAS_RESET!r}]",
                "ME099",
            )
        if self._idle[index] > MAX_EMPTY_STEPS:
            raise self._wrong(
                f"{where}: no agent has acted for {MAX_EMPTY_STEPS} env steps; let one act in infos[{ACTING!r}], or "
                "end the episode", "ME045"
            )  # fmt: skip
        return acting

    # Columns of the environment, which are dicts of arrays [E, ...] or arrays [E, A, ...], as arrays [A, E, ...].

    def _parts(self, method: str, name: str, column: Any) -> list[Any]:
        """Return the array of each agent."""
        agents = self._agents
        if isinstance(column, Mapping):
            if missing := [agent for agent in agents if agent not in column]:
                raise self._wrong(
                    f"{method}: {name} of agent {missing[0]!r} are missing; return {name} of all agents",
                    "ME021",
                )
            return [_leaves(column[agent]) for agent in agents]
        return [*self._agents_first(method, name, column)]

    def _agents_first(self, method: str, name: str, column: Any) -> Column:
        """Return an array [E, A, ...] as [A, E, ...], without a copy."""
        array = _array(column)
        if array.shape[:2] != (self.num_envs, len(self._agents)):
            raise self._wrong(
                f"{method}: {name} are {_described(column)}, expected a dict by agent of arrays "
                f"[{self.num_envs}, ...], or one array [{self.num_envs}, {len(self._agents)}, ...]; return one of "
                "them", "ME021"
            )  # fmt: skip
        return array.swapaxes(0, 1)

    def _grid(self, method: str, name: str, column: Any) -> Column:
        """Return numbers or flags as [A, E]."""
        if not isinstance(column, Mapping):
            grid = self._agents_first(method, name, column)
            if grid.ndim == 2 and grid.dtype.kind in "biuf":
                return np.ascontiguousarray(grid)
        parts = self._parts(method, name, column)
        for agent, part in zip(self._agents, parts, strict=True):
            if (
                not isinstance(part, np.ndarray)
                or part.shape != (self.num_envs,)
                or part.dtype.kind not in "biuf"
            ):
                raise self._wrong(
                    f"{method}: {name} of agent {agent!r} are {_described(part)}, expected numbers "
                    f"[{self.num_envs}]; return one for each world", "ME097"
                )  # fmt: skip
        return np.stack(parts)

    def _flags(self, method: str, name: str, column: Any) -> Flags:
        flags: Flags = self._grid(method, name, column) != 0
        return flags

    def _observations(self, method: str, name: str, column: Any) -> Any:
        """Return the observations of all agents, agent by agent: one array, `NestedRows`, or `Columns`."""
        if column is None:
            raise self._wrong(
                f"{method}: infos[{name!r}] is missing; put the last observations there", "ME099"
            )
        if not isinstance(column, Mapping) and self._box is not None:
            grid = self._agents_first(method, name, column)
            if grid.shape[2:] == self._box.shape and grid.dtype == self._box.dtype:
                # The usual case: all agents have one plain space.
                return np.ascontiguousarray(grid).reshape(-1, *grid.shape[2:])
        parts = self._parts(method, name, column)
        for agent, part in zip(self._agents, parts, strict=True):
            self._check_obs(f"{method}: {name} of agent {agent!r}", part, self.env.observation_spaces[agent])
        return _joined(parts)

    def _check_obs(self, whose: str, part: Any, space: gym.Space[Any]) -> None:
        nested = parts_of(space)
        if nested is None:
            good = isinstance(part, np.ndarray) and part.shape == (self.num_envs, *(space.shape or ()))
            if not good or not np.can_cast(part.dtype, space.dtype or part.dtype, "same_kind"):
                raise self._wrong(
                    f"{whose} are {_described(part)}, expected {space.dtype} "
                    f"{[self.num_envs, *(space.shape or ())]}, as its space says; fix the array or the space", "ME030"
                )  # fmt: skip
            return
        for key, inner in nested:
            if not isinstance(part, NestedRows) or key not in part.parts:
                raise self._wrong(f"{whose} have no entry {key!r}; return what the space says", "ME030")
            self._check_obs(f"{whose}, entry {key!r},", part.parts[key], inner)

    def _columns_of(self, slots: IntArray, actions: Any) -> Any:
        """Return actions as a column of the environment; zeros stand for agents that do not act."""
        agents, count = self._agents, self.num_envs
        spaces = [self.env.action_spaces[agent] for agent in agents]
        if isinstance(actions, np.ndarray) and all(parts_of(space) is None for space in spaces):
            flat = actions
            if len(slots) < len(self._all_slots) or slots is not self._waiting:
                flat = np.zeros((len(self._all_slots), *actions.shape[1:]), actions.dtype)
                flat[slots] = actions
            shape = len(agents), count, *flat.shape[1:]
            by_agent = [
                part.astype(space.dtype, copy=False)
                for part, space in zip(flat.reshape(shape), spaces, strict=True)
            ]
        else:
            chosen = dict(zip(slots.tolist(), actions, strict=True))
            by_agent = []
            for number, space in enumerate(spaces):
                idle = space.sample()
                each = [chosen.get(number * count + index, idle) for index in range(count)]
                empty: Any = create_empty_array(space, count)
                by_agent.append(concatenate(space, each, empty))
        return np.stack(by_agent, axis=1) if self._is_array else dict(zip(agents, by_agent, strict=True))

    def _reward_labels(self) -> Iterator[str]:
        for index, agent in self._seats:
            yield f"{self._name}.step: world {index}, env step {self.env_steps[index]}: the reward of agent {agent!r}"

    def _wrong(self, what: str, code: str) -> ContractError:
        return ContractError(f"{self._name}: {what}", code)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.env, method)(*args, **kwargs)
        except MenvError:
            raise
        except Exception as error:
            raise EnvCrashError(
                f"{self._name}.{method}, env step {int(self.env_steps.max())}: raised {in_words(error)}; the "
                "environment's own traceback is above (its worlds cannot be created again one by one)"
            ) from error


def _shape_of(env: VectorMultiAgentEnv) -> tuple[int, list[AgentId]]:
    missing = [
        name
        for name in ("num_envs", "possible_agents", "observation_spaces", "action_spaces")
        if not hasattr(env, name)
    ]
    if missing:
        raise ContractError(
            f"{type(env).__name__}: {', '.join(missing)} missing; set these attributes in its constructor",
            "ME001",
        )
    agents = list(env.possible_agents)
    for agent in agents:
        for name in ("observation_spaces", "action_spaces"):
            if agent not in getattr(env, name):
                raise ContractError(
                    f"{type(env).__name__}: {name} has no space of agent {agent!r}; add one", "ME003"
                )
    return int(env.num_envs), agents


def _by_agent(spaces: Any, agents: Sequence[Any]) -> gym.spaces.Dict:
    # A list keeps the order of the agents.
    return gym.spaces.Dict([(agent, spaces[agent]) for agent in agents])


def _array(values: Any) -> Column:
    """Return an array of NumPy, PyTorch or JAX as one of NumPy, without a copy where it is in this memory."""
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "detach"):
        tensor: Column = values.numpy(force=True)
        return tensor
    return np.asarray(values)


def _leaves(values: Any) -> Any:
    """Return a column as an array, or as `NestedRows` of arrays."""
    if isinstance(values, Mapping):
        return NestedRows({key: _leaves(value) for key, value in values.items()})
    return _array(values)


def _described(values: Any) -> str:
    return f"{values.dtype} {list(values.shape)}" if hasattr(values, "shape") else type(values).__name__


def _joined(parts: Sequence[Any]) -> Any:
    """Return the columns [E, ...] of several agents as one of [A * E, ...]."""
    return join_rows(parts) if len({_form(part) for part in parts}) == 1 else Columns(parts)


def _form(part: Any) -> Any:
    if isinstance(part, NestedRows):
        return tuple((name, _form(inner)) for name, inner in part.parts.items())
    return part.shape


def _flags_of(flags: Any, count: int, where: str) -> Flags | None:
    """Return flags [E]; None if none is set."""
    if flags is None:
        return None
    found = _array(flags)
    if found.shape != (count,):
        raise ContractError(
            f"{where} is {_described(found)}, expected flags [{count}]; return one for each world"
        )
    over: Flags = found != 0
    return over if np.count_nonzero(over) else None
