"""n copies of a `MultiAgentEnv` as a `BaseEnv`.

Each copy has a `Roster` that turns its dicts into rows. A copy steps when all its waiting agents
have been answered, and with `{}` while nobody waits. `menv.adapters.convert` creates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from menv.adapters.agent_tracker import InterruptibleAgentTracker, SlotPool, WaitingAgents, join_slots
from menv.adapters.local_envs import LocalEnvs
from menv.adapters.poll_events import EpisodeReplay, PollEvents
from menv.adapters.validation import (
    MAX_EMPTY_STEPS,
    as_rewards,
    by_sub_environment,
    check_answers,
    of_rosters,
    possible_agents,
    too_silent,
    wrong_count,
)
from menv.base_env import AgentId, EnvId, IntArray, Ready
from menv.errors import MenvError, raised_by_envs


class _Raised(NamedTuple):
    """What a step raised instead of returning anything."""

    error: BaseException


class MultiAgentEnvs(LocalEnvs):
    """Steps n multi-agent environments one after another."""

    def _prepare(self) -> None:
        num_envs = self.num_envs
        self._pool = SlotPool()
        self._rosters = [
            InterruptibleAgentTracker(index, index, self._pool, possible_agents(env))
            for index, env in enumerate(self._envs)
        ]
        self._everybody = list(range(num_envs))
        self._answers: list[dict[AgentId, Any] | None] = [None] * num_envs
        # Copies whose rows no poll has delivered yet, and copies whose rows nobody has answered yet.
        self._due: set[int] = set()
        self._waiting: set[int] = set()
        self._delivered: tuple[list[WaitingAgents], list[int], IntArray] = ([], [], np.zeros(0, np.int64))
        # Whether what a copy returned is still there when the next ones have stepped; None before a look.
        self._apart: bool | None = None

    def poll(self, timeout: float | None = None) -> Ready:
        """Step the copies that were answered and return their rows; never waits."""
        if not self._started:
            self._start()
        self._tear()
        self._step_answered()
        if len(self._due) == len(self._envs):
            fresh, rosters = self._everybody, self._rosters
        else:
            fresh = sorted(self._due)
            rosters = [self._rosters[index] for index in fresh]
        self._due.clear()
        self._waiting.update(fresh)
        slots = self._slots_of(fresh, [roster.waiting for roster in rosters])
        report = self._report
        informed = [roster for roster in rosters if roster.infos is not roster.waiting.no_infos]
        ready = Ready(
            slots,
            list(chain.from_iterable([roster.obs for roster in rosters])),
            as_rewards([*chain.from_iterable([roster.rewards for roster in rosters])], lambda: of_rosters(rosters)),
            self._env_steps,
            report.joined, report.ended, report.episodes, report.unclaimed,
            list(chain.from_iterable([roster.infos for roster in rosters])) if informed else [{}] * len(slots),
            {}, self._pool.seats, (), report.faults, report.shared_infos,
        )  # fmt: skip
        self._report, self._torn = PollEvents(), False
        return ready

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer copies; see `BaseEnv.send_actions`."""
        indices = self._delivered[1]
        if (
            slots is self._delivered[2]
            and actions is not None
            and len(self._waiting) == len(indices)
            and self._waiting.issuperset(indices)
        ):
            self._answer_all(actions)
            return
        by_env = by_sub_environment(slots, actions, self._pool.seats)
        told = {self._index(env_id): answers for env_id, answers in by_env.items()}
        # After `try_reset` rows may be answered before a poll has delivered them.
        self._answer(told, self._waiting if actions is not None else self._waiting | self._due)

    def _answer_all(self, actions: Sequence[Any]) -> None:
        layouts, indices, slots = self._delivered
        if len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        # Each takes its own off the front: a third of the time that slices take. To say `strict` costs a fifth more.
        rest = iter(actions)
        answers = [
            {layout.agents[0]: next(rest)} if len(layout.agents) == 1 else dict(zip(layout.agents, rest))  # noqa: B905
            for layout in layouts
        ]
        if len(answers) == len(self._envs):
            self._answers[:] = answers
        else:
            for index, by_agent in zip(indices, answers, strict=True):
                self._answers[index] = by_agent
        self._waiting.clear()

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the environment lists and those seen so far."""
        listed = possible_agents(self._envs[0]) or frozenset()
        return set(listed).union(*(roster.known for roster in self._rosters))

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that wait for their agent's next row."""
        return {roster.env_id: dict(roster.held) for roster in self._rosters if roster.held}

    def episode_start(self, index: int) -> int:
        """Return the env steps of a copy at its last reset."""
        return int(self._env_steps[index]) - self._rosters[index].episode_steps

    def slots_of(self, index: int) -> dict[AgentId, int]:
        """Return the slot of each agent that a copy knows."""
        return self._rosters[index].slots

    def present(self, index: int) -> tuple[Mapping[AgentId, int], IntArray]:
        """Return the slots of the agents that live in a copy, and the slots of those who wait."""
        roster = self._rosters[index]
        return {agent: roster.slots[agent] for agent in roster.living()}, roster.waiting.slots

    @property
    def seats(self) -> list[tuple[EnvId, AgentId]]:
        """The seats by slot."""
        return self._pool.seats

    @property
    def free_slots(self) -> list[int]:
        """Slots that nobody has, in the order in which they were given back."""
        return self._pool.free

    def _moved(self, index: int) -> bool:
        return self._rosters[index].answered or self._answers[index] is not None

    def _first_row(self, index: int) -> tuple[dict[AgentId, Any], dict[AgentId, Any]]:
        return self._rosters[index].by_agent()

    def _waits(self, index: int) -> Any:
        roster = self._rosters[index]
        return [roster.waiting.agents, roster.obs, [float(paid) for paid in roster.rewards], roster.held]

    def _clear(self, seats: Any) -> None:
        self._report, self._answers = PollEvents(), [None] * len(self._envs)
        self._due, self._waiting = set(), set(self._everybody)
        self._delivered = ([], [], np.zeros(0, np.int64))
        self._pool.put(seats)
        self._renew_rosters(self._everybody)

    def _renew_rosters(
        self, indices: Iterable[int], slots: Mapping[AgentId, int] = MappingProxyType({})
    ) -> None:
        """Replace rosters by such as know nothing but the slots of some agents."""
        for index in indices:
            roster = InterruptibleAgentTracker(index, index, self._pool, possible_agents(self._envs[index]))
            roster.slots.update(slots)
            self._rosters[index] = roster

    def _play(self, index: int, recorded: EpisodeReplay) -> bool:
        self._renew_rosters([index], recorded.slots)
        roster, step, report = self._rosters[index], self._envs[index].step, PollEvents()
        self._env_steps[index] = recorded.start
        with self._pool.untouched():
            roster.begin(*self._reset_once(index, recorded.seed), report)
            while self._env_steps[index] < recorded.stop:
                answers = {agent: next(recorded.actions[agent]) for agent in roster.waiting.agents}
                roster.answered |= bool(answers)
                if roster.step(step(answers), report):
                    return False
                self._env_steps[index] += 1
        return roster.slots == recorded.slots

    def _begin_next(self, index: int, slots: Mapping[AgentId, int]) -> None:
        self._renew_rosters([index], slots)
        self._begin(index, *self._reset_env(index))
        self._waiting.discard(index)

    def _start(self) -> None:
        self._started = True
        for index in range(len(self._envs)):
            self._begin(index, *self._reset_env(index))

    def _begin(self, index: int, obs: Any, infos: Any) -> None:
        self._rosters[index].begin(obs, infos, self._report)
        self._settle(index)

    def _step_answered(self) -> None:
        answers, self._answers = self._answers, [None] * len(self._envs)
        stepped = [index for index, by_agent in enumerate(answers) if by_agent is not None]
        self._env_steps[stepped if len(stepped) < len(answers) else slice(None)] += 1
        rosters, report = self._rosters, self._report
        outcomes: Any = self._outcomes(stepped, answers)
        if self._apart:
            # All steps first, and then all that came of them: each goes on with what the caches still hold of it.
            outcomes = [*outcomes]
        elif self._apart is None and len(stepped) > 1:
            outcomes = self._looked_at(outcomes)
        over = []
        for index, result in outcomes:
            roster = rosters[index]
            roster.answered = True
            if type(result) is _Raised:
                self._lose(index, result.error)
            elif roster.step(result, report):
                over.append(index)
                continue
            if not roster.waiting.agents:
                self._settle(index)
        for index in over:
            self._begin(index, *self._next_episode(index))
        self._due.update(stepped)

    def _outcomes(
        self, stepped: Sequence[int], answers: Sequence[dict[AgentId, Any] | None]
    ) -> Iterator[tuple[int, Any]]:
        """Step copies one after another, also past those that raise; yield what each returned, or `_Raised`."""
        envs = self._envs
        for index in stepped:
            try:
                result = envs[index].step(answers[index])
            except MenvError:
                raise
            except raised_by_envs() as error:
                result = _Raised(error)
            yield index, result
            # What was raised holds this very frame.
            result = None

    def _looked_at(self, outcomes: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Hand on what the copies' first steps return, each before the next one steps.

        Copies that return the very same dicts, as attributes of their class are, write over each other's results.
        """
        results = []
        for index, result in outcomes:
            results.append(result)
            yield index, result
        parts = [{id(part) for part in result} for result in results if isinstance(result, tuple | list)]
        self._apart = len(set().union(*parts)) == sum(map(len, parts))

    def _settle(self, index: int) -> None:
        """Step a copy with `{}` until somebody waits."""
        roster = self._rosters[index]
        empty = 0
        while not roster.waiting.agents:
            if empty == MAX_EMPTY_STEPS:
                raise too_silent(f"env {index} step")
            empty += 1
            self._step_once(index)
        self._due.add(index)

    def _step_once(self, index: int) -> None:
        """Take one env step in which nobody acts, and reset the copy if its episode ended."""
        self._env_steps[index] += 1
        self._report.step_on(index)
        try:
            result = self._envs[index].step({})
        except MenvError:
            raise
        except raised_by_envs() as error:
            self._lose(index, error)
            return
        if self._rosters[index].step(result, self._report):
            self._rosters[index].begin(*self._next_episode(index), self._report)

    def _lose(self, index: int, error: BaseException) -> None:
        roster = self._rosters[index]
        roster.lose({}, self._report, faulty=True)
        roster.begin(*self._made_anew(index, "step", error, steps=roster.episode_steps), self._report)

    def _abandon(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        self._answers[index] = None
        self._rosters[index].abandon(self._report)
        self._waiting.discard(index)
        self._begin(index, *self._reset_env(index, seed, options))

    def _answer(self, by_env: Mapping[int, dict[AgentId, Any]], waiting: set[int]) -> None:
        for index, answers in by_env.items():
            agents = self._rosters[index].waiting.agents if index in waiting else []
            if set(answers) != set(agents):
                check_answers(index, agents, answers)
        for index, answers in by_env.items():
            # No actions for a copy in which nobody waits say nothing; its own answers may be there already.
            if answers:
                self._answers[index] = {
                    agent: answers[agent] for agent in self._rosters[index].waiting.agents
                }
                self._rosters[index].answered = True
                self._waiting.discard(index)
                self._due.discard(index)

    def _slots_of(self, indices: list[int], layouts: list[WaitingAgents]) -> IntArray:
        """Return the rows' slots; the same array as last time while the layouts are the same."""
        before, order, slots = self._delivered
        if layouts != before or indices != order:
            slots = join_slots(layouts)
        self._delivered = (layouts, indices, slots)
        return slots
