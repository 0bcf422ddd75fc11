"""Sub-environments that one object steps together: one agent each, slot = env id = index.

The base of `vector` (lists) and `gym_vector` (arrays). The sub-environments step when the last of them has been
answered. `poll` returns rows like any other adapter; the vector loop calls `poll_vector_step` instead, which costs
nothing per sub-environment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from menv.adapters.adapter import Adapter
from menv.adapters.poll_events import PollEvents
from menv.adapters.validation import as_rewards, env_reward_labels, of_only_agents, stray_answers, wrong_count
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
from menv.errors import CallOrderError, ConfigError, ContractError, EnvCrashError
from menv.spaces import how_many, own_copy


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
        # The last vector step, if the vector loop drives this environment.
        self._vector_step: VectorStep | None = None
        self._started = False
        self._stopped = False

    @property
    def vector_steps(self) -> LockstepEnvs | None:
        return self

    @abstractmethod
    def _reset_all(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Sequence[Any]]:
        """Reset everything and return E observations and E info dicts."""

    @abstractmethod
    def _step_all(self, actions: Any, slots: IntArray | None) -> VectorStep:
        """Step everything with the actions of the rows at `slots` [R], None for all E; others are ignored."""

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
        if self._actions is not None:
            self._step()
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
        """Reset one or all; see `BaseEnv.try_reset`."""
        self._refuse_two_drivers()
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
        self._vector_step = self._actions = None
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
        """Return the one agent id."""
        return {SINGLE_AGENT}

    def stop(self) -> None:
        """Close the environment; may be called more than once."""
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

    def _set_first_rows(self, obs: Any, infos: Sequence[Any]) -> None:
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
        while True:
            self._set_rows(self._take_step(actions, slots))
            if len(self._slots):
                self._delivered = False
                return
            slots, actions = self._slots, []

    def _take_step(self, actions: Any, slots: IntArray | None) -> VectorStep:
        """Take an env step. A reset is no step: a reward that wrappers add to it is dropped."""
        step = self._step_all(actions, slots)
        if step.begun is not None:
            step.rewards = np.where(step.begun, 0.0, step.rewards)
        return step

    def _set_rows(self, step: VectorStep) -> None:
        self._count(step)
        rewards = as_rewards(step.rewards, lambda: env_reward_labels("step"))
        begun, absent = step.begun, None
        if step.done is not None:
            rewards = np.where(step.done, 0.0, rewards)
            self._end(np.flatnonzero(step.done), step)
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

    def _wrong(self, method: str, got: Any, expected: str) -> ContractError:
        return ContractError(
            f"{type(self.env).__name__}.{method}: returned {how_many(got)}, expected {expected}; fix its return value"
        )

    def _crash(self, where: str, error: BaseException) -> EnvCrashError:
        return EnvCrashError(
            f"{where}, env step {int(self.env_steps.max())}: raised {type(error).__name__}: {error}; "
            "the environment's own traceback is above (its sub-environments cannot be created again one by one)"
        )


def _rows_at(values: Any, places: IntArray) -> Any:
    if isinstance(values, VectorInfos):
        return values.at(places)
    return values[places] if isinstance(values, np.ndarray) else [values[place] for place in places.tolist()]


class VectorInfos(Sequence[Mapping[str, Any]]):
    """The infos of a vectorised gymnasium environment, a dict of arrays, as one dict per row, built when it is read.

    Args:
        infos: As gymnasium returns them, with a mask under `_<key>` for each key.
        indices: [R] sub-environments of the rows.
        resets: The infos of a later reset, and [E] True for the sub-environments that it reset.
    """

    __slots__ = ("_indices", "_infos", "_resets")

    def __init__(
        self,
        infos: Mapping[str, Any],
        indices: IntArray,
        resets: tuple[Mapping[str, Any], npt.NDArray[np.bool_]] | None = None,
    ) -> None:
        self._infos = infos
        self._indices = indices
        self._resets = resets

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> VectorInfos: ...

    def __getitem__(self, place: int | slice) -> Mapping[str, Any] | VectorInfos:
        if isinstance(place, slice):
            return VectorInfos(self._infos, self._indices[place], self._resets)
        return self._of(int(self._indices[place]))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(self._of, self._indices.tolist())

    @property
    def names(self) -> Collection[str]:
        """The names of all entries."""
        return self._infos.keys() if self._resets is None else {*self._infos, *self._resets[0]}

    def at(self, places: IntArray) -> VectorInfos:
        """Return the infos at some places."""
        return VectorInfos(self._infos, self._indices[places], self._resets)

    def _of(self, index: int) -> Mapping[str, Any]:
        if self._resets is not None and self._resets[1][index]:
            return info_of(self._resets[0], index)
        return info_of(self._infos, index)


def info_of(infos: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """Return what a dict of arrays says about one sub-environment; values without a mask belong to all."""
    found: dict[str, Any] = {}
    for name, values in infos.items():
        mask = infos.get(f"_{name}")
        is_mask = name.startswith("_") and name[1:] in infos
        try:
            if is_mask or (mask is not None and not mask[index]):
                continue
            if isinstance(values, dict):
                found[name] = info_of(values, index)
            else:
                found[name] = values[index] if isinstance(values, np.ndarray | list | tuple) else values
        except (IndexError, TypeError) as error:
            raise ContractError(
                f"env {index} step: infos hold nothing of it under {name!r} ({error}), expected an array of one value "
                f"for each sub-environment, and one of flags, {'_' + name!r}, if only some have it; fix its infos"
            ) from error
    return found


def by_name(infos: Any, num_envs: int, where: str) -> Mapping[str, Any]:
    """Return infos as a dict of arrays; gymnasium's `DictInfoToList` gives a list of dicts."""
    if isinstance(infos, Mapping):
        return infos
    listed = isinstance(infos, list | tuple)
    if infos is None or (listed and not infos):
        return {}
    if not listed or [isinstance(info, Mapping) for info in infos] != [True] * num_envs:
        size = f" of {len(infos)}" if listed else ""
        raise ContractError(
            f"{where}: returned infos that are a {type(infos).__name__}{size}, expected a dict of arrays, or a list of "
            f"{num_envs} dicts; fix its return value"
        )
    names = dict.fromkeys(chain.from_iterable(infos))
    values = {name: [info.get(name) for info in infos] for name in names}
    return {**values, **{f"_{name}": [name in info for info in infos] for name in names}}
