"""n copies of a `gymnasium.Env` as a `BaseEnv`: one agent each, slot = env id = index.

The adapter resets a finished copy itself and delivers its new first row in the same poll.
`menv.loop.convert` creates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from menv.adapters.answers import nested_answers
from menv.adapters.local_envs import LocalEnvs
from menv.adapters.recorded import Recorded
from menv.adapters.report import Report, check_info, finite, own_copy
from menv.base_env import (
    SINGLE_AGENT,
    AgentId,
    End,
    EnvId,
    EpisodeEnd,
    FloatArray,
    IntArray,
    Join,
    MultiEnvDict,
    Ready,
)  # fmt: skip
from menv.errors import ContractError, MenvError


class GymEnvs(LocalEnvs):
    """Steps n gymnasium environments one after another."""

    def __init__(
        self,
        make_env: Callable[[int], Any] | None,
        num_envs: int,
        existing: Sequence[Any] = (),
        *,
        seed: int | None = None,
        first_index: int = 0,
        restarts: bool = True,
    ) -> None:
        """Create the missing copies; arguments as in `LocalEnvs`."""
        super().__init__(make_env, num_envs, existing, seed=seed, first_index=first_index, restarts=restarts)
        # An environment that is built in its first reset may not have them yet.
        self.observation_space = getattr(self._envs[0], "observation_space", None)
        self.action_space = getattr(self._envs[0], "action_space", None)
        self._all = np.arange(num_envs)
        self._order = range(num_envs)
        self._seats = [(index, SINGLE_AGENT) for index in range(num_envs)]
        self._steps = [env.step for env in self._envs]
        self._episode_start = [0] * num_envs
        # The row that each copy's agent waits with, and whether its episode has seen no step yet.
        self._obs: list[Any] = [None] * num_envs
        self._infos: list[Mapping[str, Any]] = [{}] * num_envs
        self._fresh = [False] * num_envs
        # Copies with rows that no poll has delivered yet, and copies that wait for an answer.
        self._due: frozenset[int] = frozenset()
        self._waiting: frozenset[int] = frozenset()
        self._everybody = frozenset(self._order)
        self._answers: tuple[Sequence[int], Sequence[Any]] = ((), ())

    def poll(self, timeout: float | None = None) -> Ready:
        """Step the copies that were answered and return their rows; never waits."""
        if not self._started:
            self._start()
        order, actions = self._answers
        self._answers = ((), ())
        rewards = self._step(order, actions) if len(order) else []
        if self._due:
            undelivered = sorted(self._due.difference(order))
            order, rewards = [*order, *undelivered], [*rewards, *[0.0] * len(undelivered)]
            order = self._order if order == list(self._order) else order
            self._due = frozenset()
        report, self._report = self._report, Report()
        if order is self._order:
            self._waiting = self._everybody
            slots, obs, infos = self._all, list(self._obs), list(self._infos)
        else:
            self._waiting = self._waiting.union(order)
            slots = np.array(order, np.int64)
            obs, infos = [self._obs[i] for i in order], [self._infos[i] for i in order]
        return Ready(
            slots, obs, self._as_numbers(rewards, order), self._env_steps,
            report.joined, report.ended, report.episodes, report.unclaimed, infos, {}, self._seats,
            (), report.faults,
        )  # fmt: skip

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer copies; see `BaseEnv.send_actions`."""
        if actions is None:
            by_env = nested_answers(slots)
            indices = [self._only_agent(env_id, answers) for env_id, answers in by_env.items()]
            self._answer(
                indices, [answers[SINGLE_AGENT] for answers in by_env.values()], self._waiting | self._due
            )
        elif slots is self._all and self._waiting is self._everybody and len(actions) == len(slots):
            self._waiting = frozenset()
            self._answers = (self._order, actions)
        else:
            self._answer([int(slot) for slot in slots], list(actions), self._waiting)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[MultiEnvDict, MultiEnvDict]:
        """Reset one copy or all; see `BaseEnv.try_reset`."""
        indices = range(len(self._envs)) if env_id is None else [self._index(env_id)]
        if not self._started:
            self._start()
        for index in indices:
            if not self._fresh[index] or seed is not None or options is not None:
                self._abandon(index, seed, options)
        obs: MultiEnvDict = {index: {SINGLE_AGENT: self._obs[index]} for index in indices}
        infos: MultiEnvDict = {index: {SINGLE_AGENT: dict(self._infos[index])} for index in indices}
        return obs, infos

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Create one copy or all anew; their next rows are the first of a new episode."""
        for index in range(len(self._envs)) if env_id is None else [self._index(env_id)]:
            self._replace_env(index)
            self._tell_created(index)
            if self._started:
                self._abandon(index, None, None)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the one agent id."""
        return {SINGLE_AGENT}

    def episode_start(self, index: int) -> int:
        """Return the env steps of a copy at its last reset."""
        return self._episode_start[index]

    def slots_of(self, index: int) -> dict[AgentId, int]:
        """Return the slot of a copy's agent."""
        return {SINGLE_AGENT: index}

    def present(self, index: int) -> tuple[Mapping[AgentId, int], IntArray]:
        """Return the slot of a copy's agent, which waits."""
        return self.slots_of(index), np.array([index])

    @property
    def seats(self) -> Sequence[tuple[EnvId, AgentId]]:
        """The seats by slot."""
        return self._seats

    def _waits(self, index: int) -> Any:
        """Return the observation that a copy's agent waits with."""
        return self._obs[index]

    def _clear(self, seats: Any) -> None:
        """Forget all rows, answers and episodes."""
        self._report, self._answers, self._due = Report(), ((), ()), frozenset()
        self._waiting = self._everybody

    def _play(self, index: int, recorded: Recorded) -> bool:
        """Play an episode again; see `LocalEnvs.take_up`."""
        self._env_steps[index] = self._episode_start[index] = recorded.start
        self._obs[index], self._infos[index] = self._reset_once(index, recorded.seed)
        self._fresh[index] = recorded.stop == recorded.start
        for _ in range(recorded.start, recorded.stop):
            action = next(recorded.actions[SINGLE_AGENT])
            obs, _, terminated, truncated, info = self._steps[index](action)
            self._obs[index], self._infos[index] = obs, info
            if terminated or truncated:
                return False
        return True

    def _begin_next(self, index: int, slots: Mapping[AgentId, int]) -> None:
        """Begin a new episode."""
        self._begin(index, *self._reset_env(index))
        self._due |= {index}
        self._waiting = self._waiting.difference((index,))

    def _start(self) -> None:
        """Reset every copy for the first time."""
        self._started = True
        for index in self._order:
            self._begin(index, *self._reset_env(index))
        self._due = self._everybody

    def _begin(self, index: int, obs: Any, info: Any) -> None:
        """Note the first row of an episode."""
        if type(info) is not dict:
            check_info(info, f"env {index} reset")
        self._obs[index], self._infos[index] = obs, info
        self._episode_start[index] = self._env_steps.item(index)
        self._fresh[index] = True
        self._report.joined.append(Join(index, index, SINGLE_AGENT, index))

    def _replace_env(self, index: int) -> None:
        """Close a copy and create it anew."""
        super()._replace_env(index)
        self._steps[index] = self._envs[index].step

    def _abandon(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """End the running episode as truncated and reset."""
        order, actions = self._answers
        if index in order:
            kept = [(i, action) for i, action in zip(order, actions, strict=True) if i != index]
            self._answers = ([i for i, _ in kept], [action for _, action in kept])
        if not self._forget_untold(index):
            length = int(self._env_steps[index]) - self._episode_start[index]
            self._end(index, self._obs[index], 0.0, (False, True), self._infos[index], length)
        self._begin(index, *self._reset_env(index, seed, options))
        self._due |= {index}
        self._waiting = self._waiting.difference((index,))

    def _forget_untold(self, index: int) -> bool:
        """Take back the join of an episode that nobody was told of, which never was; False if it was told."""
        joined = [join for join in self._report.joined if join.slot != index]
        untold = len(joined) < len(self._report.joined)
        self._report.joined = joined
        return untold

    def _lose(self, index: int, error: Exception) -> None:
        """End the episode of a copy that raised in a step, and begin the next one in a new copy."""
        if not self._forget_untold(index):
            # The step that raised is none of the episode's.
            length = int(self._env_steps[index]) - 1 - self._episode_start[index]
            lost = End(index, index, SINGLE_AGENT, 0.0, False, True, None, {}, withdrawn=True)
            self._report.ended.append(lost)
            self._report.episodes.append(EpisodeEnd(index, False, True, length, index, faulty=True))
        self._begin(index, *self._made_anew(index, "step", error))

    def _step(self, order: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Step the copies in `order`, reset those that finish, replace those that raise, return their rewards."""
        steps = self._steps if order is self._order else [self._steps[index] for index in order]
        todo = zip(order, steps, actions, strict=True)
        rewards: list[Any] = []
        finished: list[int] = []
        broken: list[tuple[int, Exception]] = []
        while len(rewards) < len(order):
            error = self._step_until_one_raises(todo, rewards, finished)
            if error is not None:
                broken.append((order[len(rewards)], error))
                rewards.append(0.0)
        self._env_steps[slice(None) if order is self._order else list(order)] += 1
        for index in finished:
            self._begin(index, *self._next_episode(index))
        # Taken out, for what these hold in turn is this call: nothing would be let go of without the collector.
        error = None
        while broken:
            self._lose(*broken.pop(0))
        return rewards

    def _step_until_one_raises(
        self,
        todo: Iterator[tuple[int, Callable[..., Any], Any]],
        rewards: list[Any],
        finished: list[int],
    ) -> Exception | None:
        """Step the next copies and note their rewards; return what one raised, None if all were stepped."""
        all_obs, all_infos, fresh = self._obs, self._infos, self._fresh
        index = 0
        try:
            for index, step, action in todo:
                obs, reward, terminated, truncated, info = step(action)
                if type(info) is not dict:
                    check_info(info, f"env {index} step")
                if terminated or truncated:
                    length = self._env_steps.item(index) + 1 - self._episode_start[index]
                    self._end(index, obs, reward, (bool(terminated), bool(truncated)), info, length)
                    finished.append(index)
                    reward = 0.0
                all_obs[index], all_infos[index], fresh[index] = obs, info, False
                rewards.append(reward)
        except MenvError:
            raise
        except Exception as error:
            check_unpacking(index, error)
            return error
        return None

    def _end(
        self,
        index: int,
        obs: Any,
        reward: Any,
        flags: tuple[bool, bool],
        info: Mapping[str, Any],
        length: int,
    ) -> None:
        """Report the end of a copy's episode."""
        # Most rewards are what they should be; a message costs more than a look at them.
        good = type(reward) is float and math.isfinite(reward)
        number = reward if good else finite(reward, f"env {index} step: the reward")
        self._report.ended.append(End(index, index, SINGLE_AGENT, number, *flags, own_copy(obs), info))
        self._report.episodes.append(EpisodeEnd(index, *flags, length, index))

    def _answer(self, indices: list[int], actions: list[Any], waiting: frozenset[int]) -> None:
        """Note the answers of some copies."""
        stray = [index for index in indices if index not in waiting]
        if stray or len(set(indices)) != len(indices):
            raise ContractError(
                f"send_actions: got an action for env {(stray or indices)[:16]}, expected each of the waiting "
                f"{sorted(waiting)[:16]} at most once; poll first, then answer the rows it returned"
            )
        if len(actions) != len(indices):
            raise ContractError(
                f"send_actions: got {len(actions)} actions for {len(indices)} slots, expected one for each; "
                "keep them in the order of the slots"
            )
        order, before = self._answers
        self._answers = ([*order, *indices], [*before, *actions])
        self._waiting = self._waiting.difference(indices)
        self._due = self._due.difference(indices)

    def _only_agent(self, env_id: EnvId, answers: Mapping[AgentId, Any]) -> int:
        """Return the index of a copy whose only agent is answered."""
        if set(answers) != {SINGLE_AGENT}:
            raise ContractError(
                f"send_actions: env {env_id} got actions for {sorted(map(repr, answers))}, expected {SINGLE_AGENT!r}; "
                "a single-agent environment has this one agent"
            )
        return self._index(env_id)

    def _as_numbers(self, rewards: list[Any], order: Sequence[int]) -> FloatArray:
        """Return the rewards as [R] float64."""
        try:
            numbers = np.array(rewards, np.float64)
        except (TypeError, ValueError):
            numbers = np.zeros((0, 0))
        # The sum is finite if each is: one reduction instead of a look at every reward.
        if numbers.ndim == 1 and math.isfinite(np.add.reduce(numbers)):
            return numbers
        checked = [
            finite(reward, f"env {index} step: the reward")
            for index, reward in zip(order, rewards, strict=True)
        ]
        return np.array(checked, np.float64)


def check_unpacking(index: int, error: Exception) -> None:
    """Tell a wrong number of return values from a crash inside an environment.

    Args:
        index: The environment.
        error: Raised while its step was called and what this returned was taken apart, as it was caught there.

    Raises:
        ContractError: It is the former.
    """
    here = error.__traceback__
    if isinstance(error, ValueError | TypeError) and here is not None and here.tb_next is None:
        raise ContractError(
            f"env {index} step: could not unpack what step returned ({error}), expected "
            "(obs, reward, terminated, truncated, info); split the old `done` into terminated and truncated, or "
            "wrap the environment in menv.wrappers.LegacyGym"
        ) from error
