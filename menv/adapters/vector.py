"""Sub-environments that one object steps together: one agent each, slot = env id = index.

`LockstepEnvs` is the base of `VectorEnvs` here (a `VectorEnv`, with lists) and of `GymVectorEnvs` (arrays). The
sub-environments step when the last of them has been answered. `poll` returns rows like any other adapter; the vector
loop calls `poll_vector_step` instead, which costs nothing per sub-environment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from menv import rng
from menv.adapters.adapter import Adapter
from menv.adapters.poll_events import PollEvents, check_info
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
    End,
    EnvId,
    EpisodeEnd,
    Flags,
    FloatArray,
    IntArray,
    Join,
    MultiEnvDict,
    Ready,
    VectorStep,
)
from menv.env_calls import close_env, last_obs, returned
from menv.errors import (
    CallOrderError,
    ConfigError,
    ContractError,
    EnvCrashError,
    MenvError,
    in_words,
)
from menv.spaces import own_copy
from menv.vector_env import VectorEnv


class LockstepEnvs(Adapter):
    """Bookkeeping of E sub-environments that `env` steps together; nothing is reset before the first poll."""

    lockstep = can_restart = True
    env: Any

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._all_slots = np.arange(num_envs)
        self._no_infos: list[Mapping[str, Any]] = [{}] * num_envs
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
        # [E] True where no agent has acted since the reset.
        self._fresh: Flags = np.ones(num_envs, np.bool_)
        self._events = PollEvents()
        # A step whose ends a poll has returned, and whose rows the next poll returns.
        self._paused_step: VectorStep | None = None
        # The last vector step, if the vector loop drives this environment.
        self._vector_step: VectorStep | None = None
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
        self._refuse_two_drivers()
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
        if self.paused:
            return self._events.take_ends(self.env_steps, self._seats)
        slots, obs, rewards, infos = self._undelivered()
        self._delivered = True
        self._renewed.clear()
        events, self._events = self._events, PollEvents()
        return Ready(
            slots, obs, rewards, self.env_steps,
            events.joined, events.ended, events.episodes, events.unclaimed, infos, {}, self._seats,
        )  # fmt: skip

    def poll_vector_step(self) -> VectorStep:
        """Reset everything, the first time, or step with the actions of `send_vector_actions`; never waits.

        Raises:
            CallOrderError: There are no actions, or `poll` was called before.
        """
        if self._started and (self._vector_step is None or self._actions is None):
            raise CallOrderError(
                "poll_vector_step: no actions were sent, expected send_vector_actions before each call; do not mix it "
                "with poll"
            )
        if not self._started:
            self._started = True
            obs, infos = self._reset_all(None, None)
            no_flags = np.zeros(self.num_envs, np.bool_)
            self._vector_step = VectorStep(
                obs, np.zeros(self.num_envs), no_flags, no_flags, infos, None, ~no_flags
            )
        else:
            self._vector_step = self._take_step(self._actions, None)
            self._count(self._vector_step)
            if self._vector_step.done is not None:
                self._reset_done(self._vector_step, self._vector_step.done)
        self._actions = None
        return self._vector_step

    def send_vector_actions(self, actions: Any) -> None:
        """Set the E actions for the last vector step; sub-environments that are done ignore theirs."""
        self._actions = actions

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer rows, all of them before the next poll; see `BaseEnv.send_actions`."""
        if actions is None:
            self._answer(of_only_agents(slots, self.index_of, self._waiting()))
            return
        if len(slots) != len(actions):
            raise wrong_count(len(actions), len(slots))
        if slots is self._slots and self._delivered and self._actions is None and not self._some_actions:
            self._actions = actions
        else:
            indices = [int(slot) for slot in slots]
            if len(set(indices)) != len(indices):
                raise self._stray(indices)
            self._answer(dict(zip(indices, actions, strict=True)))

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        self._refuse_two_drivers()
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
            infos[index] = {SINGLE_AGENT: dict(self._infos[places[index]])}
        return obs, infos

    def leave_vector_steps(self) -> None:
        """Reset everything, so that `poll` can be called again."""
        self._vector_step = None
        self._fresh[:] = False
        self._set_first_rows(*self._reset_all(None, None))

    def start_from(self, env_steps: IntArray) -> None:
        """Reset everything at the next poll, as if it were the first, and count env steps on from [E] `env_steps`."""
        self._started = self._delivered = False
        self._vector_step = self._actions = self._paused_step = None
        self._some_actions.clear()
        self._renewed.clear()
        self._events = PollEvents()
        self.env_steps[:] = env_steps

    @property
    def resetting(self) -> Flags:
        """[E] True for sub-environments that are done and that the next step resets."""
        step = self._vector_step
        if step is None or step.done is None or step.finals is not None:
            return np.zeros(self.num_envs, np.bool_)
        return step.done

    def get_agent_ids(self) -> set[AgentId]:
        return {SINGLE_AGENT}

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._close()

    def _refuse_two_drivers(self) -> None:
        if self._vector_step is not None:
            raise CallOrderError(
                "poll, try_reset: a sampler is driving this environment, expected one driver; make another one for "
                "calls of your own"
            )

    def _undelivered(self) -> tuple[IntArray, Any, FloatArray, Sequence[Mapping[str, Any]]]:
        if not self._delivered:
            return self._slots, self._obs, self._rewards, self._infos
        at = np.flatnonzero(np.isin(self._slots, list(self._renewed)))
        return self._slots[at], _rows_at(self._obs, at), self._rewards[at], _rows_at(self._infos, at)

    def _renew(self, index: int) -> None:
        """Forget the answer for one row, which a reset has changed, and keep the other answers."""
        if self._actions is not None:
            self._some_actions = dict(zip(self._slots.tolist(), self._actions, strict=True))
            self._actions = None
        self._some_actions.pop(index, None)
        self._renewed.add(index)

    def _count(self, step: VectorStep) -> None:
        """Count an env step of each sub-environment that was not reset."""
        self.env_steps += 1 if step.begun is None else ~step.begun

    def _reset_one(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Reset a sub-environment that has moved; raises where that is impossible."""
        if self._untouched(index) and seed is None and options is None:
            return
        raise ConfigError(
            f"try_reset: env {index} cannot be reset apart from the others, expected try_reset() for all of them; "
            "leave the env id out"
        )

    def _untouched(self, index: int) -> bool:
        return bool(self._fresh[index]) and self._actions is None and index not in self._some_actions

    def _start(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self._started = True
        self._set_first_rows(*self._reset_all(seed, options))

    def _set_first_rows(self, obs: object, infos: Sequence[Any]) -> None:
        self._begin(self._all_slots)
        self._slots, self._obs, self._infos = self._all_slots, obs, infos or self._no_infos
        self._rewards = np.zeros(self.num_envs)
        self._delivered, self._actions = False, None
        self._some_actions.clear()
        self._renewed.clear()

    def _begin(self, indices: IntArray) -> None:
        self._fresh[indices] = True
        self._episode_start[indices] = self.env_steps[indices]
        self._events.joined += [Join(index, index, SINGLE_AGENT, index) for index in indices.tolist()]

    def _truncate(self, indices: IntArray) -> None:
        events = self._events
        unreported = {join.slot for join in events.joined}
        events.joined = [join for join in events.joined if join.slot not in set(indices.tolist())]
        places = {slot: place for place, slot in enumerate(self._slots.tolist())}
        for index in indices.tolist():
            # An episode whose begin was not reported is dropped, and one that is over was reported.
            if index not in unreported and index in places:
                place = places[index]
                length = int(self.env_steps[index] - self._episode_start[index])
                final, info = own_copy(self._obs[place]), self._infos[place]
                events.ended.append(End(index, index, SINGLE_AGENT, 0.0, False, True, final, info))
                events.episodes.append(EpisodeEnd(index, False, True, length, index))

    def _step(self) -> None:
        slots, actions = self._slots, self._actions
        self._actions = None
        self._fresh[:] = False
        self._advance(self._take_step(actions, slots))

    def _advance(self, step: VectorStep) -> None:
        """Count a step and report its ends; then set its rows, or pause."""
        self._count(step)
        if step.done is not None:
            self._end(np.flatnonzero(step.done), step)
            if self.pauses_at_ends:
                self._paused_step = step
                return
        self._set_rows(step)

    def _take_step(self, actions: object, slots: IntArray | None) -> VectorStep:
        """Take an env step. A reset is no step: a reward that wrappers add to it is dropped."""
        step = self._step_all(actions, slots)
        if step.begun is not None:
            step.rewards = np.where(step.begun, 0.0, step.rewards)
        return step

    def _set_rows(self, step: VectorStep) -> None:
        self._paused_step = None
        rewards = as_rewards(step.rewards, lambda: env_reward_labels("step"))
        begun, absent = step.begun, None
        if step.done is not None:
            rewards = np.where(step.done, 0.0, rewards)
            self._reset_done(step, step.done)
            if step.finals is None:
                absent = step.done
            else:
                begun = step.done
        if begun is not None:
            self._begin(np.flatnonzero(begun))
        self._slots, self._rewards = self._all_slots, rewards
        self._obs, self._infos = step.obs, step.infos or self._no_infos
        if absent is not None:
            present = self._slots = np.flatnonzero(~absent)
            self._rewards = rewards[present]
            self._obs, self._infos = _rows_at(step.obs, present), _rows_at(self._infos, present)
        self._delivered = False
        if not len(self._slots):
            self._advance(self._take_step([], self._slots))

    def _end(self, done: IntArray, step: VectorStep) -> None:
        indices = done.tolist()
        finals, infos = step.finals, step.final_infos
        if finals is None:
            finals = [own_copy(step.obs[i]) for i in indices]
            infos = [(step.infos or self._no_infos)[i] for i in indices]
        lengths = (self.env_steps[done] - self._episode_start[done]).tolist()
        for place, index in enumerate(indices):
            flags = bool(step.terminated[index]), bool(step.truncated[index])
            reward = float(step.rewards[index])
            end = End(index, index, SINGLE_AGENT, reward, *flags, finals[place], infos[place])
            self._events.ended.append(end)
            self._events.episodes.append(EpisodeEnd(index, *flags, lengths[place], index))

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


def _rows_at(values: Any, places: IntArray) -> Any:
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
        self._refuse_two_drivers()
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
