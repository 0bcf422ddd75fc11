"""n copies of a `MultiAgentEnv` as a `BaseEnv`.

Each copy has an `AgentTracker` that turns its dicts into rows. A copy steps when all its waiting agents have been
answered, and with `{}` while none waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from menv.adapters.agent_tracker import AgentTracker, SlotAllocator, WaitingAgents, join_slots
from menv.adapters.local_envs import LocalEnvs, interrupted_poll_error
from menv.adapters.poll_events import PollEvents
from menv.adapters.validation import (
    as_rewards,
    by_sub_environment,
    check_answers,
    count_empty,
    possible_agents,
    reward_labels,
    wrong_count,
)
from menv.base_env import AgentId, EnvId, IntArray, Ready
from menv.errors import MenvError

# Getters of `map`, which take a third of the time of a comprehension.
_WAITING, _OBS, _REWARDS, _INFOS = map(attrgetter, ("waiting", "obs", "rewards", "infos"))


class MultiAgentEnvs(LocalEnvs):
    """Steps n multi-agent environments one after another."""

    def _prepare(self) -> None:
        num_envs = self.num_envs
        self._allocator = SlotAllocator()
        self.seats = self._allocator.seats
        self.possible_agents = possible_agents(self._envs[0])
        self._trackers = self._new_trackers()
        self._all_indices = list(range(num_envs))
        self._answers: list[dict[AgentId, Any] | None] = [None] * num_envs
        # Copies whose rows no poll has delivered yet, and copies whose rows wait for an answer.
        self._due: set[int] = set()
        self._waiting: set[int] = set()
        self._delivered: tuple[list[WaitingAgents], list[int], IntArray] = ([], [], np.zeros(0, np.int64))

    def poll(self, timeout: float | None = None) -> Ready:
        """Step the copies that were answered and return their rows; never waits."""
        if not self._started:
            self._start()
        if self._in_poll:
            raise interrupted_poll_error()
        self._in_poll = True
        if self.paused:
            self._begin_over()
        else:
            self._step_answered()
        if self._over:
            self.paused, self._in_poll = True, False
            return self._events.take_ends(self.env_steps, self.seats)
        self.paused = False
        if len(self._due) == len(self._envs):
            fresh, trackers = self._all_indices, self._trackers
        else:
            fresh = sorted(self._due)
            trackers = [self._trackers[index] for index in fresh]
        self._due.clear()
        self._waiting.update(fresh)
        slots = self._joined_slots(fresh, list(map(_WAITING, trackers)))
        events = self._events
        infos = list(chain.from_iterable(map(_INFOS, trackers)))
        ready = Ready(
            slots,
            list(chain.from_iterable(map(_OBS, trackers))),
            as_rewards(
                list(chain.from_iterable(map(_REWARDS, trackers))), lambda: reward_labels(trackers)
            ),
            self.env_steps,
            events.joined, events.ended, events.episodes, events.unclaimed,
            infos if any(infos) else [{}] * len(slots),
            {}, self.seats, (), events.faults, events.shared_infos,
        )  # fmt: skip
        self._events, self._in_poll = PollEvents(), False
        return ready

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        layouts, indices, delivered = self._delivered
        if (
            slots is delivered
            and actions is not None
            and len(self._waiting) == len(indices)
            and self._waiting.issuperset(indices)
        ):
            if len(actions) != len(slots):
                raise wrong_count(len(actions), len(slots))
            rest = iter(actions)
            for index, layout in zip(indices, layouts, strict=True):
                # An iterator takes a third of the time of slices, and `strict` would cost a fifth more.
                self._answers[index] = dict(zip(layout.agents, rest))  # noqa: B905
            self._waiting.clear()
            return
        by_env = by_sub_environment(slots, actions, self.seats)
        by_index = {self.index_of(env_id): answers for env_id, answers in by_env.items()}
        # After `try_reset` rows may be answered before a poll has delivered them.
        self._answer(by_index, self._waiting if actions is not None else self._waiting | self._due)

    def get_agent_ids(self) -> set[AgentId]:
        return set(self.possible_agents or ()).union(*(tracker.slots for tracker in self._trackers))

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        return {tracker.env_id: dict(tracker.held) for tracker in self._trackers if tracker.held}

    def episode_start(self, index: int) -> int:
        return int(self.env_steps[index]) - self._trackers[index].episode_steps

    def _moved(self, index: int) -> bool:
        return self._trackers[index].answered or self._answers[index] is not None

    def _first_row(self, index: int) -> tuple[dict[AgentId, Any], dict[AgentId, Any]]:
        return self._trackers[index].by_agent()

    def _new_trackers(self) -> list[AgentTracker]:
        return [
            AgentTracker(
                index, index, self._allocator, possible_agents(env), getattr(env, "common_reward", None)
            )
            for index, env in enumerate(self._envs)
        ]

    def _clear(self) -> None:
        self._events, self._answers = PollEvents(), [None] * len(self._envs)
        self._due, self._waiting = set(), set(self._all_indices)
        self._delivered = ([], [], np.zeros(0, np.int64))
        self._allocator.clear()
        self._trackers = self._new_trackers()

    def _start(self) -> None:
        self._started = True
        for index in range(len(self._envs)):
            self._begin(index, *self._reset_env(index))

    def _begin(self, index: int, obs: object, infos: object) -> None:
        self._trackers[index].begin(obs, infos, self._events)
        self._step_until_waiting(index)

    def _step_answered(self) -> None:
        answers, self._answers = self._answers, [None] * len(self._envs)
        envs, trackers, events, over = self._envs, self._trackers, self._events, self._over
        stepped = self._all_indices
        if None in answers:
            stepped = [index for index, by_agent in enumerate(answers) if by_agent is not None]
        self.env_steps[stepped if len(stepped) < len(answers) else slice(None)] += 1
        for index in stepped:
            tracker = trackers[index]
            tracker.answered = True
            try:
                result = envs[index].step(answers[index])
            except MenvError:
                raise
            except Exception as error:
                # The traceback of an error holds this frame.
                result = None
                self._lose(index, error)
            else:
                if tracker.step(result, events):
                    over.append(index)
                    continue
            if not tracker.waiting.agents:
                self._step_until_waiting(index)
        if over and not self.pauses_at_ends:
            self._begin_over()
        self._due.update(stepped)

    def _step_until_waiting(self, index: int) -> None:
        """Step a copy with `{}` until an agent waits."""
        tracker = self._trackers[index]
        empty = 0
        while not tracker.waiting.agents and index not in self._over:
            empty = count_empty(empty, f"env {index} step", tracker.all_ended)
            self._step_once(index)
        self._due.add(index)

    def _step_once(self, index: int) -> None:
        """Take one env step in which no agent acts, and reset the copy if its episode ended."""
        self.env_steps[index] += 1
        self._events.count_step(index)
        try:
            result = self._envs[index].step({})
        except MenvError:
            raise
        except Exception as error:
            self._lose(index, error)
            return
        if not self._trackers[index].step(result, self._events):
            return
        # A poll pauses once: an env step without agents can end the next episode, too.
        if self.pauses_at_ends and not self.paused:
            self._over.append(index)
        else:
            self._trackers[index].begin(*self._next_episode(index), self._events)

    def _lose(self, index: int, error: BaseException) -> None:
        tracker = self._trackers[index]
        tracker.lose({}, self._events)
        tracker.begin(*self._recreate(index, "step", error, steps=tracker.episode_steps), self._events)

    def _truncate(self, index: int) -> None:
        tracker, self._answers[index] = self._trackers[index], None
        if index in self._due:
            tracker.add_rewards(dict(zip(tracker.waiting.agents, tracker.rewards, strict=True)), self._events)
        tracker.truncate(self._events)

    def _reset_and_begin(
        self, index: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        self._waiting.discard(index)
        self._begin(index, *self._reset_env(index, seed, options))

    def _answer(self, by_env: Mapping[int, dict[AgentId, Any]], waiting: set[int]) -> None:
        for index, answers in by_env.items():
            agents = self._trackers[index].waiting.agents if index in waiting else []
            if set(answers) != set(agents):
                check_answers(index, agents, answers)
        for index, answers in by_env.items():
            # `{}` for a copy in which no agent waits changes nothing; it may have its answers already.
            if answers:
                self._answers[index] = {
                    agent: answers[agent] for agent in self._trackers[index].waiting.agents
                }
                self._trackers[index].answered = True
                self._waiting.discard(index)
                self._due.discard(index)

    def _joined_slots(self, indices: list[int], layouts: list[WaitingAgents]) -> IntArray:
        """Return the rows' slots; the same array as last time while the layouts are the same."""
        before, order, slots = self._delivered
        if layouts != before or indices != order:
            slots = join_slots(layouts)
        self._delivered = (layouts, indices, slots)
        return slots
