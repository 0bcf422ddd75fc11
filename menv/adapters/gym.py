"""n copies of a `gymnasium.Env` as a `BaseEnv`: one agent each, slot = env id = index.

The adapter resets a finished copy itself and delivers its new first row in the same poll. While all copies wait and
are answered together, `poll_vector_step` returns a step of all of them without an object for a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from menv.adapters.local_envs import LocalEnvs
from menv.adapters.poll_events import EpisodeReplay, PollEvents, check_info
from menv.adapters.validation import as_rewards, of_only_agents, stray_answers, wrong_count
from menv.base_env import (
    SINGLE_AGENT,
    AgentId,
    End,
    EnvId,
    EpisodeEnd,
    IntArray,
    Join,
    Ready,
    VectorStep,
)  # fmt: skip
from menv.errors import ContractError, MenvError, raised_by_envs
from menv.spaces import OR_MANY_AGENTS, as_flag, as_reward, how_many, last_obs, many_agents, own_copy

# SEAM menv.adapters.gym_steps
# An env step of some gymnasium environments, one after another: what they returned, who finished, who raised.
#
# `menv.adapters.gym` takes its steps here and makes rows or a frame of them. Nothing here resets, reports or
# counts.


Step = Callable[[Any], Any]


class FinishedCopy(NamedTuple):
    """The end of an episode.

    Attributes:
        place: Among those that were stepped.
        env_index: Of the environment.
        obs: The last observation, a copy.
        reward: As it was paid.
        info: The last info dict.
        flags: Whether it was terminated, and truncated.
    """

    place: int
    env_index: int
    obs: Any
    reward: Any
    info: Mapping[str, Any]
    flags: tuple[bool, bool]


@dataclass(slots=True)
class SteppedCopies:
    """What came of R steps.

    Attributes:
        rewards: R; 0.0 where an environment raised.
        overs: Of those that finished, in order.
        broken: The environments that raised, and what.
    """

    rewards: list[Any] = field(default_factory=list)
    overs: list[FinishedCopy] = field(default_factory=list)
    broken: list[tuple[int, BaseException]] = field(default_factory=list)


@dataclass(slots=True)
class StepObservations:
    """What each environment shows, by index; a step writes over it.

    Attributes:
        obs: The last observations.
        infos: The info dicts that came with them.
        fresh: Whether the episode has seen no step yet.
    """

    obs: list[Any]
    infos: list[Mapping[str, Any]]
    fresh: list[bool]


def take_steps(
    order: Sequence[int], steps: Sequence[Step], actions: Sequence[Any], seen: StepObservations
) -> SteppedCopies:
    """Step environments one after another, also past those that raise.

    Args:
        order: R indices.
        steps: R methods.
        actions: R.
        seen: Is written.

    Raises:
        ContractError: One returned something else than a step does; it names which.
    """
    taken = SteppedCopies()
    todo = zip(order, steps, actions, strict=True)
    while len(taken.rewards) < len(order):
        error = _step_until_one_raises(todo, taken, seen)
        if error is not None:
            taken.broken.append((order[len(taken.rewards)], error))
            taken.rewards.append(0.0)
    # What an error holds in turn is this call: nothing would be let go of without the collector.
    error = None
    return taken


def _step_until_one_raises(
    todo: Iterator[tuple[int, Step, Any]], taken: SteppedCopies, seen: StepObservations
) -> BaseException | None:
    """Step the next environments and note what comes of it; return what one raised, None if all were stepped."""
    all_obs, all_infos, fresh, rewards = seen.obs, seen.infos, seen.fresh, taken.rewards
    index, terminated, truncated = 0, False, False
    try:
        for index, step, action in todo:
            obs, reward, terminated, truncated, info = step(action)
            if type(info) is not dict:
                check_info(info, f"env {index} step")
            if terminated or truncated:
                flags = _flag(index, "terminated", terminated), _flag(index, "truncated", truncated)
                taken.overs.append(
                    FinishedCopy(len(rewards), index, last_obs(obs, f"env {index} step"), reward, info, flags)
                )
            all_obs[index], all_infos[index], fresh[index] = obs, info, False
            rewards.append(reward)
        if terminated is None or truncated is None:
            # Looked at in the last one alone: flags that are None for want of a `return` are so in each.
            _flag(index, "terminated", terminated)
            _flag(index, "truncated", truncated)
    except MenvError:
        raise
    except raised_by_envs() as error:
        _check_unpacking(index, error)
        return error
    return None


def _flag(index: int, name: str, flag: Any) -> bool:
    return (
        flag
        if flag is True or flag is False
        else as_flag(flag, f"env {index} step: {name}", f"return one flag{OR_MANY_AGENTS}")
    )


def _check_unpacking(index: int, error: BaseException) -> None:
    """Tell a wrong number of return values from a crash inside an environment.

    Args:
        index: The environment.
        error: Raised while its step was called and what this returned was taken apart, as it was caught there.

    Raises:
        ContractError: It is the former.
    """
    here = error.__traceback__
    if here is None or here.tb_next is not None:
        return
    if isinstance(error, ValueError | RuntimeError) and "ambiguous" in str(error):
        raise ContractError(
            f"env {index} step: terminated or truncated is an array of several, expected True or False; return one flag"
            f"{OR_MANY_AGENTS}"
        ) from error
    if "non-iterable NoneType" in str(error):
        raise ContractError(
            f"env {index} step: returned {how_many(None)}, expected (obs, reward, terminated, truncated, info); return "
            "all five from step"
        ) from error
    if isinstance(error, ValueError | TypeError):
        raise ContractError(
            f"env {index} step: could not unpack what step returned ({error}), expected "
            "(obs, reward, terminated, truncated, info); split the old `done` into terminated and truncated, or "
            "wrap the environment in menv.wrappers.LegacyGym"
        ) from error


class GymEnvs(LocalEnvs):
    """Steps n gymnasium environments one after another."""

    def _prepare(self) -> None:
        num_envs = self.num_envs
        # [E] slots of all copies; whoever answers them with this very array is in nobody's way.
        self.all_slots = np.arange(num_envs)
        self._order = range(num_envs)
        self._seats = [(index, SINGLE_AGENT) for index in range(num_envs)]
        self._steps = [env.step for env in self._envs]
        self._episode_start = [0] * num_envs
        # The rows that the copies' agents wait with.
        self._seen = StepObservations([None] * num_envs, [{}] * num_envs, [False] * num_envs)
        # Copies with rows that no poll has delivered yet, and copies that wait for an answer.
        self._due: frozenset[int] = frozenset()
        self._waiting: frozenset[int] = frozenset()
        self._everybody = frozenset(self._order)
        self._answers: tuple[Sequence[int], Sequence[Any]] = ((), ())
        # The rewards of a step of everybody that `poll_vector_step` took, and of which a poll has to tell.
        self._stepped: list[Any] | None = None
        self._nobody = np.zeros(num_envs, np.bool_)

    def poll(self, timeout: float | None = None) -> Ready:
        """Step the copies that were answered and return their rows; never waits."""
        if not self._started:
            self._start()
        self._tear()
        order, actions = self._answers
        self._answers = ((), ())
        if self._stepped is not None:
            order, rewards, self._stepped = self._order, self._stepped, None
        else:
            rewards = self._step(order, actions) if len(order) else []
        if self._due:
            undelivered = sorted(self._due.difference(order))
            order, rewards = [*order, *undelivered], [*rewards, *[0.0] * len(undelivered)]
            order = self._order if order == list(self._order) else order
            self._due = frozenset()
        events = self._events
        if order is self._order:
            self._waiting = self._everybody
            slots, obs, infos = self.all_slots, list(self._seen.obs), list(self._seen.infos)
        else:
            waiting = self._waiting.union(order)
            self._waiting = self._everybody if len(waiting) == len(self._envs) else waiting
            slots = np.array(order, np.int64)
            obs, infos = [self._seen.obs[i] for i in order], [self._seen.infos[i] for i in order]
        ready = Ready(
            slots, obs, as_rewards(rewards, lambda: map(_whose, order), OR_MANY_AGENTS), self._env_steps,
            events.joined, events.ended, events.episodes, events.unclaimed, infos, {}, self._seats,
            (), events.faults,
        )  # fmt: skip
        self._events, self._torn = PollEvents(), False
        return ready

    def poll_vector_step(self) -> VectorStep | None:
        """Step all copies at once, when all of them have been answered in one go; never waits.

        Returns:
            None where there is more to tell than a frame does: the next `poll` tells it.
        """
        order, actions = self._answers
        if order is not self._order or self._due:
            return None
        self._answers = ((), ())
        taken = self._step_all(order, actions)
        # A reset that raises counts as a step, too.
        now = self._env_steps.copy()
        begun = [self._next_episode(over.env_index) for over in taken.overs]
        if taken.broken or self._events.faults:
            self._tell(taken, now, begun)
            self._stepped = taken.rewards
            return None
        for over, row in zip(taken.overs, begun, strict=True):
            self._show(over.env_index, *row)
        self._waiting = self._everybody
        return self._frame(taken)

    def _frame(self, taken: SteppedCopies) -> VectorStep:
        """Return a step of everybody, after which new episodes have begun."""
        seen, nobody = self._seen, self._nobody
        frame = VectorStep(
            seen.obs, as_rewards(taken.rewards, lambda: map(_whose, self._order), OR_MANY_AGENTS), nobody, nobody,
            list(seen.infos) if any(seen.infos) else (),
        )  # fmt: skip
        if taken.overs:
            frame.done, frame.terminated, frame.truncated = nobody.copy(), nobody.copy(), nobody.copy()
            for over in taken.overs:
                index = over.env_index
                frame.done[index] = True
                frame.terminated[index], frame.truncated[index] = over.flags
            frame.finals = [over.obs for over in taken.overs]
            frame.final_infos = [over.info for over in taken.overs]
        return frame

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer copies; see `BaseEnv.send_actions`."""
        if actions is None:
            waiting = self._waiting | self._due
            by_index = of_only_agents(slots, self._index, waiting)
            self._answer(list(by_index), list(by_index.values()), waiting)
        elif slots is self.all_slots and self._waiting is self._everybody and len(actions) == len(slots):
            self._waiting = frozenset()
            self._answers = (self._order, actions)
        else:
            self._answer([int(slot) for slot in slots], list(actions), self._waiting)

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

    def _moved(self, index: int) -> bool:
        return index in self._answers[0] or not self._seen.fresh[index]

    def _first_row(self, index: int) -> tuple[dict[AgentId, Any], dict[AgentId, Any]]:
        return {SINGLE_AGENT: self._seen.obs[index]}, {SINGLE_AGENT: dict(self._seen.infos[index])}

    def _waits(self, index: int) -> Any:
        return self._seen.obs[index]

    def _clear(self, seats: Any) -> None:
        self._events, self._answers, self._due = PollEvents(), ((), ()), frozenset()
        self._stepped = None
        self._waiting = self._everybody

    def _play(self, index: int, recorded: EpisodeReplay) -> bool:
        self._env_steps[index] = self._episode_start[index] = recorded.start
        self._seen.obs[index], self._seen.infos[index] = self._reset_once(index, recorded.seed)
        self._steps[index] = self._envs[index].step
        self._seen.fresh[index] = recorded.stop == recorded.start
        for _ in range(recorded.start, recorded.stop):
            action = next(recorded.actions[SINGLE_AGENT])
            obs, _, terminated, truncated, info = self._steps[index](action)
            self._seen.obs[index], self._seen.infos[index] = obs, info
            self._env_steps[index] += 1
            if terminated or truncated:
                return False
        return True

    def _begin_next(self, index: int, slots: Mapping[AgentId, int]) -> None:
        self._begin(index, *self._reset_env(index))
        self._due |= {index}
        self._waiting = self._waiting.difference((index,))

    def _start(self) -> None:
        self._started = True
        for index in self._order:
            obs, info = self._reset_env(index)
            why = many_agents(self._envs[index], obs)
            if why is not None:
                raise ContractError(
                    f"env {index}: {why}, expected that of one agent; return it{OR_MANY_AGENTS}"
                )
            self._begin(index, obs, info)
        self._due = self._everybody

    def _begin(self, index: int, obs: Any, info: Any) -> None:
        self._show(index, obs, info)
        self._events.joined.append(Join(index, index, SINGLE_AGENT, index))

    def _show(self, index: int, obs: Any, info: Any) -> None:
        if type(info) is not dict:
            check_info(info, f"env {index} reset")
        self._seen.obs[index], self._seen.infos[index] = obs, info
        self._steps[index] = self._envs[index].step
        self._episode_start[index] = self._env_steps.item(index)
        self._seen.fresh[index] = True

    def _abandon(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        order, actions = self._answers
        if index in order:
            kept = [(i, action) for i, action in zip(order, actions, strict=True) if i != index]
            self._answers = ([i for i, _ in kept], [action for _, action in kept])
        if not self._forget_untold(index):
            length = int(self._env_steps[index]) - self._episode_start[index]
            last = own_copy(self._seen.obs[index])
            self._end(index, last, 0.0, (False, True), self._seen.infos[index], length)
        self._begin(index, *self._reset_env(index, seed, options))
        self._due |= {index}
        self._waiting = self._waiting.difference((index,))

    def _forget_untold(self, index: int) -> bool:
        """Take back the join of an episode that nobody was told of, which never was; False if it was told."""
        joined = [join for join in self._events.joined if join.slot != index]
        untold = len(joined) < len(self._events.joined)
        self._events.joined = joined
        return untold

    def _lose(self, index: int, error: BaseException) -> None:
        # The step that raised is none of the episode's.
        length = int(self._env_steps[index]) - 1 - self._episode_start[index]
        if not self._forget_untold(index):
            lost = End(index, index, SINGLE_AGENT, 0.0, False, True, None, {}, withdrawn=True)
            self._events.ended.append(lost)
            self._events.episodes.append(EpisodeEnd(index, False, True, length, index, faulty=True))
        self._begin(index, *self._made_anew(index, "step", error, steps=length))

    def _step(self, order: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Step the copies in `order`, reset those that finish, replace those that raise, return their rewards."""
        taken = self._step_all(order, actions)
        now = self._env_steps.copy()
        self._tell(taken, now, [self._next_episode(over.env_index) for over in taken.overs])
        return taken.rewards

    def _step_all(self, order: Sequence[int], actions: Sequence[Any]) -> SteppedCopies:
        everybody = order is self._order
        steps = self._steps if everybody else [self._steps[index] for index in order]
        taken = take_steps(order, steps, actions, self._seen)
        self._env_steps[slice(None) if everybody else list(order)] += 1
        return taken

    def _tell(self, taken: SteppedCopies, now: IntArray, begun: Sequence[tuple[Any, Any]]) -> None:
        """Report ends of episodes, at env steps [E] `now`, and what has `begun`; begin anew where something raised."""
        for over in taken.overs:
            # What was paid last is none of the next row's.
            taken.rewards[over.place] = 0.0
            length = now.item(over.env_index) - self._episode_start[over.env_index]
            self._end(over.env_index, over.obs, over.reward, over.flags, over.info, length)
        for over, row in zip(taken.overs, begun, strict=True):
            self._begin(over.env_index, *row)
        # Taken out, for what these hold in turn is this call.
        while taken.broken:
            self._lose(*taken.broken.pop(0))

    def _end(
        self,
        index: int,
        obs: Any,
        reward: Any,
        flags: tuple[bool, bool],
        info: Mapping[str, Any],
        length: int,
    ) -> None:
        """Report the end of a copy's episode; `obs` is nobody else's."""
        # Most rewards are what they should be; a message costs more than a look at them.
        good = type(reward) is float and math.isfinite(reward)
        number = reward if good else as_reward(reward, _whose(index), OR_MANY_AGENTS)
        self._events.ended.append(End(index, index, SINGLE_AGENT, number, *flags, obs, info))
        self._events.episodes.append(EpisodeEnd(index, *flags, length, index))

    def _answer(self, indices: list[int], actions: list[Any], waiting: frozenset[int]) -> None:
        stray = [index for index in indices if index not in waiting]
        if stray or len(set(indices)) != len(indices):
            raise stray_answers(stray or indices, sorted(waiting))
        if len(actions) != len(indices):
            raise wrong_count(len(actions), len(indices))
        order, before = self._answers
        self._answers = ([*order, *indices], [*before, *actions])
        if len(self._answers[0]) == len(self._envs):
            # All together once more, however they came apart.
            by_index = dict(zip(*self._answers, strict=True))
            self._answers = (self._order, [by_index[index] for index in self._order])
        self._waiting = self._waiting.difference(indices)
        self._due = self._due.difference(indices)


def _whose(index: int) -> str:
    return f"env {index} step: the reward"
