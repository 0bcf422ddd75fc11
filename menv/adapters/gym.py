"""n copies of a `gymnasium.Env` as a `BaseEnv`: one agent each, slot = env id = index.

The adapter resets a finished copy itself and delivers its first row in the same poll.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from menv.adapters.local_envs import LocalEnvs, interrupted_poll_error
from menv.adapters.poll_events import PollEvents, check_info
from menv.adapters.validation import as_rewards, of_only_agents, stray_answers, wrong_count
from menv.base_env import (
    SINGLE_AGENT,
    AgentId,
    End,
    EpisodeEnd,
    Join,
    Ready,
)
from menv.env_calls import OR_MANY_AGENTS, as_flag, as_reward, last_obs, many_agents, returned
from menv.errors import ContractError, MenvError
from menv.spaces import own_copy

Step = Callable[[Any], Any]


class GymEnvs(LocalEnvs):
    """Steps n gymnasium environments one after another."""

    only_agent = SINGLE_AGENT

    def _prepare(self) -> None:
        num_envs = self.num_envs
        # [E] slots of all copies; answers to this very array need no lookup.
        self._all_slots = np.arange(num_envs)
        self._order = range(num_envs)
        self.seats = [(index, SINGLE_AGENT) for index in range(num_envs)]
        self._steps = [env.step for env in self._envs]
        self._episode_start = [0] * num_envs
        # The last row of each copy, and whether its episode has had no step yet.
        self._obs: list[Any] = [None] * num_envs
        self._infos: list[Mapping[str, Any]] = [{}] * num_envs
        self._fresh = [False] * num_envs
        # Copies with rows that no poll has delivered yet, and copies that wait for an answer.
        self._due: frozenset[int] = frozenset()
        self._waiting: frozenset[int] = frozenset()
        self._all = frozenset(self._order)
        self._answers: tuple[Sequence[int], Sequence[Any]] = ((), ())
        # Copies that were stepped and their rewards, which the next poll returns.
        self._stepped: tuple[Sequence[int], list[Any]] | None = None

    def poll(self, timeout: float | None = None) -> Ready:
        """Step the copies that were answered and return their rows; never waits."""
        if not self._started:
            self._start()
        if self._in_poll:
            raise interrupted_poll_error()
        self._in_poll = True
        order, actions = self._answers
        self._answers = ((), ())
        if self._stepped is not None:
            (order, rewards), self._stepped = self._stepped, None
        else:
            rewards = self._step(order, actions) if len(order) else []
        if self._over and self.pauses_at_ends and not self.paused:
            self._stepped, self.paused, self._in_poll = (order, rewards), True, False
            return self._events.take_ends(self.env_steps, self.seats)
        self.paused = False
        if self._over:
            self._begin_over()
        if self._due:
            undelivered = sorted(self._due.difference(order))
            order, rewards = [*order, *undelivered], [*rewards, *[0.0] * len(undelivered)]
            order = self._order if order == list(self._order) else order
            self._due = frozenset()
        events = self._events
        if order is self._order:
            self._waiting = self._all
            slots, obs, infos = self._all_slots, list(self._obs), list(self._infos)
        else:
            waiting = self._waiting.union(order)
            self._waiting = self._all if len(waiting) == len(self._envs) else waiting
            slots = np.array(order, np.int64)
            obs, infos = [self._obs[i] for i in order], [self._infos[i] for i in order]
        ready = Ready(
            slots, obs, as_rewards(rewards, lambda: map(_reward_label, order), OR_MANY_AGENTS), self.env_steps,
            events.joined, events.ended, events.episodes, events.unclaimed, infos, {}, self.seats,
            (), events.faults,
        )  # fmt: skip
        self._events, self._in_poll = PollEvents(), False
        return ready

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        if actions is None:
            waiting = self._waiting | self._due
            by_index = of_only_agents(slots, self.index_of, waiting)
            self._answer(list(by_index), list(by_index.values()), waiting)
        elif slots is self._all_slots and self._waiting is self._all and len(actions) == len(slots):
            self._waiting, self._answers = frozenset(), (self._order, actions)
        else:
            self._answer([int(slot) for slot in slots], list(actions), self._waiting)

    def get_agent_ids(self) -> set[AgentId]:
        return {SINGLE_AGENT}

    def episode_start(self, index: int) -> int:
        return self._episode_start[index]

    def _moved(self, index: int) -> bool:
        return index in self._answers[0] or not self._fresh[index]

    def _first_row(self, index: int) -> tuple[dict[AgentId, Any], dict[AgentId, Any]]:
        return {SINGLE_AGENT: self._obs[index]}, {SINGLE_AGENT: dict(self._infos[index])}

    def _clear(self) -> None:
        self._events, self._answers, self._due = PollEvents(), ((), ()), frozenset()
        self._stepped = None
        self._waiting = self._all

    def _reset_and_begin(
        self, index: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        self._begin(index, *self._reset_env(index, seed, options))
        self._due |= {index}
        self._waiting = self._waiting.difference((index,))

    def _start(self) -> None:
        self._started = True
        for index in self._order:
            obs, info = self._reset_env(index)
            why = many_agents(self._envs[index], obs)
            if why is not None:
                raise ContractError(
                    f"env {index}: {why}, expected that of one agent; return it{OR_MANY_AGENTS}", "ME007"
                )
            self._begin(index, obs, info)
        self._due = self._all

    def _begin(self, index: int, obs: object, info: object) -> None:
        self._set_first_row(index, obs, info)
        self._events.joined.append(Join(index, index, SINGLE_AGENT, index))

    def _set_first_row(self, index: int, obs: Any, info: Any) -> None:
        if type(info) is not dict:
            check_info(info, f"env {index} reset: info")
        self._obs[index], self._infos[index] = obs, info
        self._steps[index] = self._envs[index].step
        self._episode_start[index] = self.env_steps.item(index)
        self._fresh[index] = True

    def _truncate(self, index: int) -> None:
        order, actions = self._answers
        if index in order:
            kept = [(i, action) for i, action in zip(order, actions, strict=True) if i != index]
            self._answers = ([i for i, _ in kept], [action for _, action in kept])
        if not self._drop_join(index):
            length, reward = int(self.env_steps[index]) - self._episode_start[index], 0.0
            stepped, rewards = self._stepped or ((), [])
            if index in stepped:
                place = list(stepped).index(index)
                reward, rewards[place] = rewards[place], 0.0
            final, info = own_copy(self._obs[index]), self._infos[index]
            self._end(End(index, index, SINGLE_AGENT, reward, False, True, final, info), length)

    def _drop_join(self, index: int) -> bool:
        """Forget the join of an episode that no poll has reported; False if one has."""
        joined = [join for join in self._events.joined if join.slot != index]
        dropped = len(joined) < len(self._events.joined)
        self._events.joined = joined
        return dropped

    def _lose(self, index: int, error: BaseException) -> None:
        # The step that raised does not belong to the episode.
        length = int(self.env_steps[index]) - 1 - self._episode_start[index]
        if not self._drop_join(index):
            lost = End(index, index, SINGLE_AGENT, 0.0, False, True, None, {}, withdrawn=True)
            self._events.ended.append(lost)
            self._events.episodes.append(EpisodeEnd(index, False, True, length, index, faulty=True))
        self._begin(index, *self._recreate(index, "step", error, steps=length))

    def _step(self, order: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Step copies one after another, report ends, replace copies that raised, and return the rewards.

        Raises:
            ContractError: A step returned something invalid; the message names the copy.
        """
        all_copies = order is self._order
        steps = self._steps if all_copies else [self._steps[index] for index in order]
        rewards: list[Any] = []
        # By place in `order`.
        ends: dict[int, End] = {}
        raised: list[tuple[int, BaseException]] = []
        todo = zip(order, steps, actions, strict=True)
        while len(rewards) < len(order):
            error = self._step_until_one_raises(todo, rewards, ends)
            if error is not None:
                raised.append((order[len(rewards)], error))
                rewards.append(0.0)
        # The error's traceback holds this frame: without this line only the garbage collector would free them.
        error = None
        if all_copies:
            self.env_steps += 1
        else:
            self.env_steps[list(order)] += 1
        for place, end in ends.items():
            # The last reward belongs to the end, not to the next row.
            rewards[place] = 0.0
            self._end(end, self.env_steps.item(end.slot) - self._episode_start[end.slot])
            self._over.append(end.slot)
        # Popped, for the same reason.
        while raised:
            self._lose(*raised.pop(0))
        return rewards

    def _step_until_one_raises(
        self, todo: Iterator[tuple[int, Step, Any]], rewards: list[Any], ends: dict[int, End]
    ) -> BaseException | None:
        all_obs, all_infos, fresh = self._obs, self._infos, self._fresh
        index, terminated, truncated = 0, False, False
        result: Any = (None, 0.0, False, False, {})
        try:
            for index, step, action in todo:
                result = step(action)
                obs, reward, terminated, truncated, info = result
                if type(info) is not dict:
                    check_info(info, f"env {index} step: info")
                if terminated or truncated:
                    flags = _flag(index, "terminated", terminated), _flag(index, "truncated", truncated)
                    final = last_obs(obs, f"env {index} step")
                    ends[len(rewards)] = End(index, index, SINGLE_AGENT, reward, *flags, final, info)
                all_obs[index], all_infos[index], fresh[index] = obs, info, False
                rewards.append(reward)
            if terminated is None or truncated is None:
                # Checked in the last step only: if a `return` forgets the flags, it does so in every step.
                _flag(index, "terminated", terminated)
                _flag(index, "truncated", truncated)
        except MenvError:
            raise
        except Exception as error:
            _check_result(index, result, error)
            return error
        return None

    def _end(self, end: End, length: int) -> None:
        # Most rewards are valid, and building the label costs more than this check.
        if type(end.reward) is not float or not math.isfinite(end.reward):
            end = end._replace(reward=as_reward(end.reward, _reward_label(end.slot), OR_MANY_AGENTS))
        self._events.ended.append(end)
        self._events.episodes.append(EpisodeEnd(end.slot, end.terminated, end.truncated, length, end.slot))

    def _answer(self, indices: list[int], actions: list[Any], waiting: frozenset[int]) -> None:
        stray = [index for index in indices if index not in waiting]
        if stray or len(set(indices)) != len(indices):
            raise stray_answers(stray or indices, sorted(waiting))
        if len(actions) != len(indices):
            raise wrong_count(len(actions), len(indices))
        order, before = self._answers
        self._answers = ([*order, *indices], [*before, *actions])
        if len(self._answers[0]) == len(self._envs):
            # All copies are answered: use the order in which they can step together.
            by_index = dict(zip(*self._answers, strict=True))
            self._answers = (self._order, [by_index[index] for index in self._order])
        self._waiting = self._waiting.difference(indices)
        self._due = self._due.difference(indices)


def _flag(index: int, name: str, flag: object) -> bool:
    if flag is True or flag is False:
        return flag
    return as_flag(flag, f"env {index} step: {name}", f"return one flag{OR_MANY_AGENTS}")


def _reward_label(index: int) -> str:
    return f"env {index} step: the reward"


def _check_result(index: int, result: Any, error: BaseException) -> None:
    """Raise `ContractError` if `error` comes from reading the result of a step, and not from inside the step."""
    here = error.__traceback__
    if here is not None and here.tb_next is None:
        _, _, terminated, truncated, _ = returned(result, 5, f"env {index} step")
        _flag(index, "terminated", terminated)
        _flag(index, "truncated", truncated)
