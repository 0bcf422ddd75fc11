"""Sub-environments that one object steps together: one agent each, slot = env id = index.

`LockstepEnvs` is the base of `VectorEnvs` here (a `VectorEnv`, with lists) and of `GymVectorEnvs` (arrays). The
sub-environments step when the last of them has been answered. Joins, ends and episodes are columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from menv import rng
from menv.adapters.adapter import Adapter
from menv.adapters.poll_events import check_info
from menv.adapters.validation import (
    STEP_PARTS,
    as_flags,
    as_rewards,
    check_counts,
    env_reward_labels,
    of_only_agents,
    stray_answers,
    wrong_count,
)
from menv.base_env import (
    SINGLE_AGENT,
    AgentId,
    Ends,
    EnvId,
    EpisodeEnds,
    Flags,
    FloatArray,
    IntArray,
    Joins,
    MultiEnvDict,
    Ready,
    VectorStep,
)
from menv.env_calls import close_env, last_obs, returned
from menv.errors import (
    ConfigError,
    ContractError,
    EnvCrashError,
    MenvError,
    in_words,
)
from menv.spaces import own_copy
from menv.vector_env import VectorEnv

_NOBODY: IntArray = np.zeros(0, np.int64)
_NAMES = (SINGLE_AGENT,)


class LockstepEnvs(Adapter):
    """Bookkeeping of E sub-environments that `env` steps together; nothing is reset before the first poll."""

    lockstep = can_restart = True
    env: Any

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._all_slots = np.arange(num_envs)
        self._agent_numbers = np.zeros(num_envs, np.int64)
        self._seats = [(index, SINGLE_AGENT) for index in range(num_envs)]
        self.env_steps = np.zeros(num_envs, np.int64)
        self._episode_start = np.zeros(num_envs, np.int64)
        # The rows of the last step.
        self._slots: IntArray = self._all_slots
        self._obs: Any = []
        self._rewards: FloatArray = np.zeros(num_envs)
        self._infos: Sequence[Mapping[str, Any]] = ()
        # Whether a poll has delivered them, the actions for all of them, and actions for some of them, by index.
        self._delivered = False
        self._actions: Any = None
        self._some_actions: dict[int, Any] = {}
        # Rows that a reset changed after their delivery: only these are delivered again.
        self._renewed: set[int] = set()
        # What the next poll reports: sub-environments that began, and ends.
        self._joined: IntArray = _NOBODY
        self._ended: list[Ends] = []
        self._episodes: list[EpisodeEnds] = []
        # A step whose ends a poll has returned, and whose rows the next poll returns.
        self._paused_step: VectorStep | None = None
        self._started = False
        self._stopped = False

    @abstractmethod
    def _reset_all(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Sequence[Any]]:
        """Reset everything and return E observations and E info dicts."""

    @abstractmethod
    def _step_all(self, actions: object, slots: IntArray | None) -> VectorStep:
        """Step everything with the actions of the rows at `slots` [R], None for all E; others are ignored."""

    def _reset_done(self, step: VectorStep, done: Flags) -> None:
        """Reset the sub-environments that are done [E], unless `env` does, and put their first rows into the step."""

    @abstractmethod
    def _close(self) -> None:
        """Close the environment."""

    def poll(self, timeout: float | None = None) -> Ready:
        """Step once all rows have been answered and return the new rows; never waits.

        Raises:
            ContractError: Only some rows were answered.
        """
        if not self._started:
            self._start(None, None)
        if self._some_actions and not self._renewed:
            missing = [index for index in self._slots.tolist() if index not in self._some_actions]
            raise ContractError(
                f"poll: {len(self._some_actions)} of {len(self._slots)} sub-environments were answered, none for env "
                f"{missing[:16]}, expected all: they step together; answer every row that poll returned"
            )
        if self._paused_step is not None:
            self._set_rows(self._paused_step)
        elif self._actions is not None:
            self._step()
        self.paused = self._paused_step is not None
        ended, episodes = _only(self._ended), _only(self._episodes)
        self._ended, self._episodes = [], []
        if self.paused:
            return Ready(_NOBODY, [], np.zeros(0), self.env_steps, (), ended, episodes, seats=self._seats)
        slots, obs, rewards, infos = self._undelivered()
        infos = infos or None
        self._delivered = True
        self._renewed.clear()
        began, self._joined = self._joined, _NOBODY
        joined = Joins(began, began, self._agent_numbers[: len(began)], _NAMES) if len(began) else ()
        return Ready(slots, obs, rewards, self.env_steps, joined, ended, episodes, (), infos, {}, self._seats)

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer rows, all of them before the next poll; see `BaseEnv.send_actions`."""
        if actions is None:
            self._answer(of_only_agents(slots, self.index_of, self._waiting()))
            return
        if len(slots) != len(actions):
            raise wrong_count(len(actions), len(slots))
        is_new = self._delivered and self._actions is None and not self._some_actions and not self._renewed
        if slots is self._slots and is_new:
            self._actions = actions
        else:
            indices = [int(slot) for slot in slots]
            if len(set(indices)) != len(indices):
                raise self._stray(indices)
            if early := self._renewed.intersection(indices):
                # The rows of a reset are answered after the poll that returns them.
                raise stray_answers(sorted(early), sorted(self._waiting() - early))
            self._answer(dict(zip(indices, actions, strict=True)))

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        if self._paused_step is not None:
            self._set_rows(self._paused_step)
        if not self._started:
            self._start(seed, options)
        elif env_id is not None:
            self._reset_one(self.index_of(env_id), seed, options)
        elif seed is not None or options is not None or not all(map(self._untouched, range(self.num_envs))):
            self._truncate(self._all_slots)
            self._set_first_rows(*self._reset_all(seed, options))
        places = {slot: place for place, slot in enumerate(self._slots.tolist())}
        obs: MultiEnvDict = {}
        infos: MultiEnvDict = {}
        for index in self.indices(env_id):
            if index not in places:
                # Done; the next step resets it, and its row comes with a later poll.
                marker: Any = "async_reset_return"
                obs[index] = infos[index] = marker
                continue
            obs[index] = {SINGLE_AGENT: self._obs[places[index]]}
            infos[index] = {SINGLE_AGENT: dict(self._infos[places[index]]) if self._infos else {}}
        return obs, infos

    def start_from(self, env_steps: IntArray) -> None:
        """Reset everything at the next poll, as if it were the first, and count env steps on from [E] `env_steps`."""
        self._started = self._delivered = False
        self._actions = self._paused_step = None
        self._some_actions.clear()
        self._renewed.clear()
        self._joined, self._ended, self._episodes = _NOBODY, [], []
        self.env_steps[:] = env_steps

    def get_agent_ids(self) -> set[AgentId]:
        return {SINGLE_AGENT}

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._close()

    def _undelivered(self) -> tuple[IntArray, Any, FloatArray, Any]:
        if not self._delivered:
            return self._slots, self._obs, self._rewards, self._infos
        at = np.flatnonzero(np.isin(self._slots, list(self._renewed)))
        infos = _rows_at(self._infos, at) if self._infos else ()
        return self._slots[at], _rows_at(self._obs, at), self._rewards[at], infos

    def _renew(self, index: int) -> None:
        """Forget the answer for one row, which a reset has changed, and keep the other answers."""
        if self._actions is not None:
            self._some_actions = dict(zip(self._slots.tolist(), self._actions, strict=True))
            self._actions = None
        self._some_actions.pop(index, None)
        self._renewed.add(index)

    def _count(self, step: VectorStep) -> None:
        """Count an env step of each sub-environment that was not reset."""
        self.env_steps += 1
        if step.begun is not None:
            self.env_steps[step.begun] -= 1

    def _reset_one(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Reset a sub-environment that has moved; raises where that is impossible."""
        if self._untouched(index) and seed is None and options is None:
            return
        raise ConfigError(
            f"try_reset: env {index} cannot be reset apart from the others, expected try_reset() for all of them; "
            "leave the env id out"
        )

    def _untouched(self, index: int) -> bool:
        is_new = self.env_steps[index] == self._episode_start[index] and index in self._slots
        return bool(is_new) and self._actions is None and index not in self._some_actions

    def _start(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self._started = True
        self._set_first_rows(*self._reset_all(seed, options))

    def _set_first_rows(self, obs: object, infos: Sequence[Any]) -> None:
        self._begin(self._all_slots)
        self._slots, self._obs, self._infos = self._all_slots, obs, infos
        self._rewards = np.zeros(self.num_envs)
        self._delivered, self._actions = False, None
        self._some_actions.clear()
        self._renewed.clear()

    def _begin(self, indices: IntArray) -> None:
        self._episode_start[indices] = self.env_steps[indices]
        self._joined = np.concatenate((self._joined, indices)) if len(self._joined) else indices

    def _truncate(self, indices: IntArray) -> None:
        # An episode whose begin was not reported is dropped, and one that is over was reported.
        reported = ~np.isin(indices, self._joined) & np.isin(indices, self._slots)
        self._joined = self._joined[~np.isin(self._joined, indices)]
        at = np.flatnonzero(np.isin(self._slots, indices[reported]))
        if len(at):
            over, places = self._slots[at], at.tolist()
            flags = np.zeros(len(at), np.bool_)
            finals = [own_copy(self._obs[place]) for place in places]
            infos = [self._infos[place] for place in places] if self._infos else ()
            self._report(over, np.zeros(len(at)), flags, ~flags, finals, infos)

    def _report(
        self,
        over: IntArray,
        rewards: FloatArray,
        terminated: Flags,
        truncated: Flags,
        finals: Any,
        infos: Any,
    ) -> None:
        """Report the ends of the episodes of some sub-environments."""
        lengths = (self.env_steps - self._episode_start).take(over)
        agents = self._agent_numbers[: len(over)]
        self._ended.append(Ends(over, over, agents, rewards, terminated, truncated, finals, _NAMES, infos))
        self._episodes.append(EpisodeEnds(over, terminated, truncated, lengths))

    def _step(self) -> None:
        slots, actions = self._slots, self._actions
        self._actions = None
        self._advance(self._take_step(actions, slots))

    def _advance(self, step: VectorStep) -> None:
        """Count a step and report its ends; then set its rows, or pause."""
        self._count(step)
        if step.done is not None:
            self._end(step.done.nonzero()[0], step)
            if self.pauses_at_ends:
                self._paused_step = step
                return
        self._set_rows(step)

    def _take_step(self, actions: object, slots: IntArray | None) -> VectorStep:
        """Take an env step. A reset is not a step: a reward that wrappers add to it is dropped."""
        step = self._step_all(actions, slots)
        rewards = as_rewards(step.rewards, self._reward_labels)
        if step.begun is not None:
            rewards = np.array(rewards)
            rewards[step.begun] = 0.0
        step.rewards = rewards
        return step

    def _reward_labels(self) -> Iterator[str]:
        return env_reward_labels(f"{type(self.env).__name__}.step, env step {self.env_steps.max() + 1}")

    def _set_rows(self, step: VectorStep) -> None:
        self._paused_step = None
        rewards, begun, absent = step.rewards, step.begun, None
        if step.done is not None:
            self._reset_done(step, step.done)
            if step.finals is None:
                absent = step.done
            else:
                begun = step.done.nonzero()[0]
                rewards = np.array(rewards)
                rewards[begun] = 0.0
        if begun is not None:
            self._begin(begun)
        self._slots, self._rewards, self._obs, self._infos = self._all_slots, rewards, step.obs, step.infos
        if absent is not None:
            present = self._slots = (~absent).nonzero()[0]
            self._rewards, self._obs = rewards.take(present), _rows_at(step.obs, present)
            self._infos = _rows_at(step.infos, present) if step.infos else ()
        self._delivered = False
        if not len(self._slots):
            self._advance(self._take_step([], self._slots))

    def _end(self, done: IntArray, step: VectorStep) -> None:
        finals, infos = step.finals, step.final_infos
        if finals is None:
            is_array = isinstance(step.obs, np.ndarray)
            finals = (
                step.obs.take(done, axis=0) if is_array else [own_copy(step.obs[i]) for i in done.tolist()]
            )
            infos = [step.infos[i] for i in done.tolist()] if step.infos else ()
        terminated, truncated = step.terminated.take(done), step.truncated.take(done)
        if terminated.dtype.kind != "b" or truncated.dtype.kind != "b":
            terminated, truncated = terminated != 0, truncated != 0
        self._report(done, step.rewards.take(done), terminated, truncated, finals, infos)

    def _waiting(self) -> set[int]:
        waits = self._started and self._actions is None
        return set(self._slots.tolist()) - self._some_actions.keys() if waits else set()

    def _answer(self, answers: Mapping[int, Any]) -> None:
        waiting = self._waiting()
        stray = [index for index in answers if index not in waiting]
        if stray:
            raise self._stray(stray)
        self._some_actions.update(answers)
        self._renewed.difference_update(answers)
        if len(self._some_actions) == len(self._slots):
            self._actions = [self._some_actions[index] for index in self._slots.tolist()]
            self._some_actions = {}
            self._delivered = True

    def _stray(self, indices: Sequence[int]) -> ContractError:
        return stray_answers(indices, [] if self._actions is not None else self._slots.tolist())

    def _returned(self, result: object, number: int, method: str, expected: str) -> Any:
        return returned(
            result, number, f"{type(self.env).__name__}.{method}", expected, "fix its return value"
        )

    def _check_counts(self, method: str, names: Sequence[str], parts: Sequence[Any]) -> None:
        check_counts(names, parts, self.num_envs, f"{type(self.env).__name__}.{method}")

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.env, method)(*args, **kwargs)
        except MenvError:
            raise
        except Exception as error:
            where, here = f"{type(self.env).__name__}.{method}", error.__traceback__
            # No frame below this one: the method does not accept these arguments.
            if method in _SIGNATURES and isinstance(error, TypeError) and here and here.tb_next is None:
                raise ContractError(
                    f"{where}: {error}, expected {_SIGNATURES[method]}; declare these parameters", "ME010"
                ) from error
            raise EnvCrashError(
                f"{where}, env step {int(self.env_steps.max())}: raised {in_words(error)}; the "
                "environment's own traceback is above (its sub-environments cannot be created again one by one)"
            ) from error


def _only(reports: list[Any]) -> Any:
    """Return what a poll reports: columns, or objects in the rare case of several columns."""
    return reports[0] if len(reports) == 1 else [one for report in reports for one in report]


def _rows_at(values: Any, places: IntArray) -> Any:
    if isinstance(values, np.ndarray):
        return values.take(places, axis=0)
    return [values[place] for place in places.tolist()] if isinstance(values, list) else values[places]


class VectorEnvs(LockstepEnvs):
    """Steps one `VectorEnv`; a finished sub-environment is reset by `reset_at` in the same poll.

    `seed` gives every reset its own seed, None resets without seeds.
    """

    def __init__(self, env: VectorEnv, *, seed: int | None = None, first_index: int = 0) -> None:
        super().__init__(env.num_envs)
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._seed = seed
        self._first_index = first_index

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the sub-environments if they are separate objects."""
        found = self.env.get_sub_environments()
        return dict(enumerate(found)) if as_dict else list(found)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        return self.env.try_render_at(self.index_of(env_id or 0))

    def try_restart(self, env_id: EnvId | None = None) -> None:
        for index in self.indices(env_id):
            self._call("restart_at", index)
            if self._started:
                self._reset_one(index, None, {})

    def _reset_one(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Reset one sub-environment, unless it was just reset."""
        if self._untouched(index) and seed is None and options is None:
            return
        self._truncate(np.array([index]))
        obs, info = self._reset_at(index, seed, options or None)
        self._obs, self._infos = list(self._obs), list(self._infos)
        self._obs[index], self._infos[index] = obs, info
        self._rewards[index] = 0.0
        self._begin(np.array([index]))
        self._renew(index)

    def _reset_all(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Sequence[Any]]:
        seeds = None
        if seed is not None or self._seed is not None:
            seeds = [self._seed_of(index) if seed is None else seed + index for index in range(self.num_envs)]
        if seeds is None and options is None:
            result = self._call("vector_reset")
        else:
            result = self._call("vector_reset", seeds=seeds, options=options and [options] * self.num_envs)
        obs, infos = self._returned(result, 2, "vector_reset", "two lists (obs, infos)")
        self._check_counts("vector_reset", STEP_PARTS[::4], (obs, infos))
        return list(obs), as_infos(infos, "vector_reset")

    def _step_all(self, actions: Any, slots: IntArray | None) -> VectorStep:
        result = self._call("vector_step", list(actions))
        self._returned(result, 5, "vector_step", f"five lists ({', '.join(STEP_PARTS)})")
        self._check_counts("vector_step", STEP_PARTS, result)
        obs, raw_rewards, terminateds, truncateds, infos = result
        rewards = as_rewards(raw_rewards, lambda: env_reward_labels("vector_step"))
        terminated, truncated = (
            as_flags(flags, f"vector_step: {name}").astype(np.bool_)
            for name, flags in (("terminateds", terminateds), ("truncateds", truncateds))
        )
        over = terminated | truncated
        done = np.flatnonzero(over).tolist()
        obs, infos = list(obs), as_infos(infos, "vector_step")
        finals = [last_obs(obs[index], f"vector_step, env {index}") for index in done]
        final_infos = [infos[index] for index in done]
        flags = over if done else None
        return VectorStep(obs, rewards, terminated, truncated, infos, flags, None, finals, final_infos)

    def _reset_done(self, step: VectorStep, done: Flags) -> None:
        for index in np.flatnonzero(done).tolist():
            seed = None if self._seed is None else self._seed_of(index)
            step.obs[index], step.infos[index] = self._reset_at(index, seed, None)  # type: ignore[index]

    def _close(self) -> None:
        close_env(self.env)

    def _reset_at(self, index: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        if seed is None and options is None:
            result = self._call("reset_at", index)
        else:
            result = self._call("reset_at", index, seed=seed, options=options)
        obs, info = self._returned(result, 2, "reset_at", "(obs, info)")
        check_info(info, f"reset_at, env {index}: info")
        return obs, info

    def _seed_of(self, index: int) -> int:
        assert self._seed is not None
        return rng.reset_seed(self._seed, self._first_index + index, int(self.env_steps[index]))


_SIGNATURES: Final = {
    "vector_reset": "vector_reset(self, *, seeds=None, options=None)",
    "reset_at": "reset_at(self, index, *, seed=None, options=None)",
    "vector_step": "vector_step(self, actions)",
    "restart_at": "restart_at(self, index)",
}


def as_infos(infos: Sequence[Any], where: str) -> list[Any]:
    """Return E info dicts, or raise a `ContractError` that names the sub-environment."""
    listed = list(infos)
    # One check of all types instead of one per info.
    if set(map(type, listed)) != {dict}:
        for index, info in enumerate(listed):
            check_info(info, f"{where}, env {index}: info")
    return listed
