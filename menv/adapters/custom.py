"""A user's own `BaseEnv`: `SixDicts` makes tables of its six nested dicts, `CustomEnvs` passes its own tables on.

Both call the environment, not before the first poll, and chain its errors. Tables are trusted, unless `strict` is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from menv.adapters.adapter import Adapter, call_env, reset_base_env
from menv.adapters.agent_tracker import AgentTracker, SlotAllocator, WaitingAgents, join_slots
from menv.adapters.poll_events import PollEvents
from menv.adapters.table_checks import TableChecks
from menv.adapters.validation import (
    any_set,
    as_rewards,
    by_sub_environment,
    check_answers,
    count_empty,
    flag_of,
    nested_answers,
    possible_agents,
    reward_labels,
    validate_poll,
    wrong_count,
)
from menv.base_env import (
    ALL,
    AgentId,
    BaseEnv,
    End,
    EnvId,
    EpisodeEnd,
    IntArray,
    Join,
    MultiEnvDict,
    Ready,
    Unclaimed,
)
from menv.env_calls import as_reward, how_many
from menv.errors import ContractError
from menv.spaces import own_copy

_KEPT_IDS = 65_536
_NO_SEAT: tuple[EnvId, AgentId] = (None, None)


def _wrong(
    env: BaseEnv, where: str, got: str, expected: str, fix: str, finding: str = "ME100"
) -> ContractError:
    return ContractError(f"{type(env).__name__}.{where}: {got}, expected {expected}; {fix}", finding)


class SixDicts(BaseEnv):
    """Reads the six dicts of another `BaseEnv` into tables, with the same `AgentTracker` as in `multi_agent`.

    It never resets the other environment unasked: after `"__all__"` it calls `try_reset`, waits if the answer is
    "async_reset_return", and expects a new env id if it is `(None, None)`.
    """

    returns_table = True
    pauses_at_ends = False

    def __init__(self, inner: BaseEnv) -> None:
        self._inner = inner
        self._wrong = partial(_wrong, inner)
        self._allocator = SlotAllocator()
        self.seats = self._allocator.seats
        self._trackers: dict[EnvId, AgentTracker] = {}
        self._env_steps = np.zeros(0, np.int64)
        # Indices of sub-environments that ended for good, free for new ones.
        self._free_indices: list[int] = []
        self._gone: dict[int, EnvId] = {}
        # Sub-environments whose episode has begun: they had observations since their last end.
        self._running: set[EnvId] = set()
        # Sub-environments with rows that no poll has delivered yet; with rows that wait for an answer; and without a
        # waiting agent, which step with `{}`, with the number of such steps.
        self._due: set[EnvId] = set()
        self._waiting: set[EnvId] = set()
        self._empty_steps: dict[EnvId, int] = {}
        # The ones among the latter that were sent `{}` and have not stepped since.
        self._sent_empty: set[EnvId] = set()
        self._answers: MultiEnvDict = {}
        # Actions that agents chose themselves, by slot, in rows that no poll has delivered yet.
        self._taken: dict[int, Any] = {}
        self._events = PollEvents()
        # Sub-environments whose episode has ended and that were not reset yet.
        self.over: list[EnvId] = []
        self._delivered = (list[WaitingAgents](), np.zeros(0, np.int64))

    @property
    def gone(self) -> list[EnvId]:
        """The sub-environments that ended for good and were not replaced."""
        return list(self._gone.values())

    def poll(self, timeout: float | None = None) -> Ready:
        if self.over:
            self._begin_over()
            if self._due or not self._empty_steps:
                return self._deliver()
        while True:
            # `{}` is sent once per step: a busy sub-environment would take another step for each.
            empty: MultiEnvDict = {key: {} for key in self._empty_steps if key not in self._sent_empty}
            answers: MultiEnvDict = {**self._answers, **empty}
            self._answers = {}
            self._sent_empty.update(self._empty_steps)
            if answers:
                call_env(self._inner, "send_actions", answers)
            parts = validate_poll(call_env(self._inner, "poll"), self._wrong)
            self._read(parts)
            if self.over:
                return self._events.take_ends(self._env_steps.copy(), self.seats)
            # If nothing came at all the inner environment is busy, and the caller decides how long to wait.
            if self._due or not self._empty_steps or not any(parts[:4]):
                return self._deliver()

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents, also for rows that only `try_reset` has returned."""
        by_env = by_sub_environment(slots, actions, self.seats)
        for env_id, answers in by_env.items():
            waits = env_id in self._waiting or env_id in self._due
            check_answers(env_id, self._trackers[env_id].waiting.agents if waits else [], answers)
        for env_id, answers in by_env.items():
            if answers:
                self._answers[env_id] = answers
                self._trackers[env_id].answered = True
                self._waiting.discard(env_id)
                self._due.discard(env_id)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Reset the other environment; the observations that it returns begin a new episode.

        A sub-environment in which no agent has been answered since its reset is not reset again.
        """
        fresh = [key for key in self._running if not self._trackers[key].answered]
        all_fresh = env_id is None and len(fresh) == len(self._trackers) > 0
        if seed is None and options is None and (env_id in fresh or all_fresh):
            env_ids = fresh if env_id is None else [env_id]
            shown = {key: self._trackers[key].by_agent() for key in env_ids}
            return {key: row[0] for key, row in shown.items()}, {key: row[1] for key, row in shown.items()}
        result = reset_base_env(self._inner, env_id, seed, options)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise self._wrong(
                "try_reset", f"returned {how_many(result)}",
                "(obs, infos), two dicts by env id, or (None, None) where this environment resets itself",
                "return both", "ME011",
            )  # fmt: skip
        obs, infos = result
        if isinstance(obs, dict):
            # A string says that the observations come with a later poll.
            for key, by_agent in obs.items():
                if not isinstance(by_agent, str):
                    self._begin(
                        key, by_agent, infos.get(key, {}) if isinstance(infos, Mapping) else infos or {}
                    )
        return obs, infos

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Restart the other environment; a running episode ends as truncated."""
        call_env(self._inner, "try_restart", env_id)
        for key in list(self._running) if env_id is None else [env_id]:
            if key in self._running:
                self._trackers[key].truncate(self._events)
                self._stop_running(key)
                self.try_reset(key)

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        return {env_id: dict(tracker.held) for env_id, tracker in self._trackers.items() if tracker.held}

    def start_from(self, env_steps: IntArray) -> None:
        self._env_steps = env_steps.copy()
        self._free_indices = list(range(len(env_steps)))

    def _read(self, parts: tuple[MultiEnvDict, ...]) -> None:
        obs, rewards, terminateds, truncateds, infos, taken = parts
        for env_id in dict.fromkeys([*obs, *rewards, *terminateds, *truncateds]):
            flags = [dict(part.get(env_id, {})) for part in (terminateds, truncateds)]
            tracker = self._trackers.get(env_id) or self._new_tracker(env_id)
            waits = env_id in self._waiting or env_id in self._due
            if waits and not obs.get(env_id) and not any_set(flags[0], flags[1], tracker.where):
                # It has not stepped: an agent still waits, and may have got a reward.
                tracker.add_rewards(rewards.get(env_id, {}), self._events)
                continue
            if env_id not in self._running:
                over = {a for by_agent in flags for a in by_agent if flag_of(by_agent, a, tracker.where)}
                first = {a: value for a, value in obs.get(env_id, {}).items() if not over & {a, ALL}}
                self._begin(env_id, first, infos.get(env_id, {}), rewards.get(env_id, {}))
                if ALL not in over:
                    continue
                obs, rewards = {**obs, env_id: {}}, {**rewards, env_id: {}}
            for by_agent in flags:
                if not by_agent:
                    by_agent[ALL] = False
            step = (dict(obs.get(env_id, {})), dict(rewards.get(env_id, {})), *flags, infos.get(env_id, {}))
            self._step(tracker, env_id, step)
        for env_id, actions in taken.items():
            # Actions that came with the end of an episode do not belong to the next one.
            if not any(part.get(env_id, {}).get(ALL) for part in (terminateds, truncateds)):
                self._add_taken(env_id, actions, obs.get(env_id, {}))

    def _add_taken(self, env_id: EnvId, actions: Mapping[AgentId, Any], obs: Mapping[AgentId, Any]) -> None:
        stray = [agent for agent in actions if agent not in obs]
        if stray:
            raise ContractError(
                f"env {env_id} poll: off_policy_actions name {stray[0]!r}, which has no observation in this poll, "
                "expected agents of obs only; return an action together with the observation that it answers"
            )
        if env_id in self._due:
            tracker = self._trackers[env_id]
            waiting = tracker.waiting.agents
            self._taken.update({tracker.slots[a]: action for a, action in actions.items() if a in waiting})

    def _step(self, tracker: AgentTracker, env_id: EnvId, step: object) -> None:
        self._env_steps[tracker.env_index] += 1
        self._events.count_step(env_id)
        if tracker.step(step, self._events):
            self._stop_running(env_id)
            self.over.append(env_id)
            if not self.pauses_at_ends:
                self._begin_over()
        else:
            self._update_waiting(env_id)

    def _begin_over(self) -> None:
        """Reset the sub-environments whose episode has ended."""
        while self.over:
            env_id = self.over.pop(0)
            if self.try_reset(env_id) == (None, None):
                tracker = self._trackers.pop(env_id)
                tracker.release_all()
                self._free_indices.append(tracker.env_index)
                self._gone[tracker.env_index] = env_id

    def _update_waiting(self, env_id: EnvId) -> None:
        self._sent_empty.discard(env_id)
        tracker, empty = self._trackers[env_id], self._empty_steps.pop(env_id, 0)
        if tracker.waiting.agents:
            self._due.add(env_id)
        else:
            self._empty_steps[env_id] = count_empty(empty, f"env {env_id} poll", tracker.all_ended)

    def _begin(
        self, env_id: EnvId, obs: object, infos: object, rewards: Mapping[AgentId, Any] = MappingProxyType({})
    ) -> None:
        tracker = self._trackers.get(env_id) or self._new_tracker(env_id)
        if env_id in self._running:
            tracker.truncate(self._events)
            self._stop_running(env_id)
        tracker.add_rewards(rewards, self._events)
        tracker.begin(obs, infos, self._events)
        self._running.add(env_id)
        self._update_waiting(env_id)

    def _stop_running(self, env_id: EnvId) -> None:
        for env_ids in (self._running, self._due, self._waiting, self._sent_empty):
            env_ids.discard(env_id)
        self._empty_steps.pop(env_id, None)
        self._answers.pop(env_id, None)

    def _new_tracker(self, env_id: EnvId) -> AgentTracker:
        if self._free_indices:
            index = min(self._free_indices)
            self._free_indices.remove(index)
            self._gone.pop(index, None)
        else:
            index = len(self._env_steps)
            self._env_steps = np.append(self._env_steps, 0)
        tracker = self._trackers[env_id] = AgentTracker(
            env_id, index, self._allocator, possible_agents(self._inner)
        )
        return tracker

    def _deliver(self) -> Ready:
        due = [env_id for env_id in self._trackers if env_id in self._due]
        self._due.clear()
        self._waiting.update(due)
        trackers = [self._trackers[env_id] for env_id in due]
        layouts = [tracker.waiting for tracker in trackers]
        before, slots = self._delivered
        if layouts != before:
            slots = join_slots(layouts)
        self._delivered = (layouts, slots)
        rewards = list(chain.from_iterable(tracker.rewards for tracker in trackers))
        events, self._events = self._events, PollEvents()
        taken, self._taken = self._taken, {}
        return Ready(
            slots,
            list(chain.from_iterable(tracker.obs for tracker in trackers)),
            as_rewards(rewards, lambda: reward_labels(trackers)),
            self._env_steps.copy(),
            events.joined, events.ended, events.episodes, events.unclaimed,
            list(chain.from_iterable(tracker.infos for tracker in trackers)),
            taken, self.seats, shared_infos=events.shared_infos,
        )  # fmt: skip


class CustomEnvs(Adapter):
    """Passes on the tables of another `BaseEnv`; `SixDicts` makes tables of six dicts.

    No object is created per agent and step of a table, for simulators that step many worlds of many agents as arrays.
    In the result slots stay the same array while the same agents wait, env steps and last observations are copies,
    rewards are float64, and seats come from the joins.

    Attributes:
        inner: The other environment.
        possible_agents: The agents that may ever appear, None if it does not list them.
        seats: `seats[slot]` is the `(env_id, agent_id)` that has the slot, or had it last.
    """

    def __init__(self, inner: BaseEnv, strict: bool = False) -> None:
        """`strict` refuses tables that contradict themselves or an earlier one, and answers that no agent waits for."""
        self.inner = inner
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        self.possible_agents = getattr(inner, "possible_agents", None)
        self.num_envs = inner.num_envs or 0
        self._dicts = None if inner.returns_table else SixDicts(inner)
        self._table = inner if self._dicts is None else self._dicts
        if self._dicts is None:
            self.lockstep, self.external = inner.lockstep, inner.external
            self.events_have_order = not inner.external
            self.idle_timeout = inner.idle_timeout
        self._wrong = partial(_wrong, inner)
        self.seats: list[tuple[EnvId, AgentId]] = [] if self._dicts is None else self._dicts.seats
        self._where = f"{type(inner).__name__}.poll"
        self._checks = TableChecks(self._where, self.num_envs, self.seats) if strict else None
        # [E] env steps when the inner environment began.
        self._before: IntArray = np.zeros(self.num_envs, np.int64)
        # [R] of the rows of the last poll, the same array while the same agents wait.
        self._slots: IntArray = np.zeros(0, np.int64)
        # The latest index of each id.
        self._indices: dict[EnvId, int] = {}

    def poll(self, timeout: float | None = None) -> Ready:
        if self._dicts is not None:
            self._dicts.pauses_at_ends = self.pauses_at_ends
            ready = self._dicts.poll()
            self.paused = bool(self._dicts.over)
            return ready
        ready = call_env(self.inner, "poll", *(() if timeout is None else (timeout,)))
        if not isinstance(ready, Ready):
            raise self._wrong(
                "poll", f"returned {how_many(ready)}", "a menv.Ready, because returns_table is set",
                "return one, or leave returns_table out and return six nested dicts",
            )  # fmt: skip
        if self._checks is not None:
            self._checks.check(ready)
        joined = [self._join(join) for join in ready.joined]
        slots = np.asarray(ready.slots, np.int64)
        if not np.array_equal(slots, self._slots):
            self._slots = slots.copy()
        rewards = as_rewards(ready.rewards, lambda: map(self._reward_label, slots.tolist()))
        return Ready(
            self._slots, ready.obs, rewards, self._env_steps(ready.env_steps), joined,
            [self._end(end) for end in ready.ended], [self._end_episode(one) for one in ready.episodes],
            list(map(self._unclaimed, ready.unclaimed)), ready.infos, ready.taken, self.seats, (), ready.faults,
        )  # fmt: skip

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents; a table always gets slots and actions."""
        if self._dicts is not None:
            self._dicts.send_actions(slots, actions)
            return
        if actions is None:
            slots, actions = self._by_slot(slots)
        if len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        if self._checks is not None:
            self._checks.answer(slots, actions)
        if len(slots):
            call_env(self.inner, "send_actions", slots, actions)

    def _by_slot(self, by_env: Any) -> tuple[IntArray, list[Any]]:
        waiting = {self.seats[slot]: slot for slot in self._slots.tolist()}
        answers: dict[int, Any] = {}
        for env_id, by_agent in nested_answers(by_env).items():
            check_answers(env_id, [agent for one, agent in waiting if one == env_id], by_agent)
            answers |= {waiting[env_id, agent]: action for agent, action in by_agent.items()}
        return np.array(list(answers), np.int64), list(answers.values())

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        self._note_reset()
        result: tuple[Any, Any] = reset_base_env(self._table, env_id, seed, options)
        return result

    def try_restart(self, env_id: EnvId | None = None) -> None:
        self._note_reset()
        call_env(self._table, "try_restart", env_id)

    def _note_reset(self) -> None:
        if self._checks is not None:
            self._checks.was_reset = True

    def get_agent_ids(self) -> set[AgentId]:
        listed = self.possible_agents or self.inner.get_agent_ids()
        return {*listed, *(seat[1] for seat in self.seats if seat is not _NO_SEAT)}

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        return self._table.held_rewards()

    @property
    def gone(self) -> Sequence[EnvId]:
        return () if self._dicts is None else self._dicts.gone

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        return self.inner.get_sub_environments(as_dict)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        return self.inner.try_render(env_id)

    def stop(self) -> None:
        self.inner.stop()

    def rest(self) -> None:
        self.inner.rest()

    def unbroken(self) -> AbstractContextManager[Any]:
        return self.inner.unbroken()

    def status(self) -> dict[str, Any]:
        return self.inner.status()

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        self._note_reset()
        return self.inner.call(env_id, method, *args)

    def index_of(self, env_id: EnvId) -> int:
        return self._indices[env_id]

    def start_from(self, env_steps: IntArray) -> None:
        if self._dicts is not None:
            self._dicts.start_from(env_steps)
        else:
            self._before = env_steps.copy()

    # Parts of a table, in the types that samplers need: numpy integers would overflow where random numbers are keyed.

    def _env_steps(self, env_steps: Any) -> IntArray:
        """Return [E] env steps, a copy; sub-environments that are not in the table (any more) keep their counts."""
        steps, before = np.asarray(env_steps, np.int64), self._before
        now = np.append(before, np.zeros(max(0, len(steps) - len(before)), np.int64))
        self._before = now.copy()
        now[: len(steps)] += steps
        return now

    def _join(self, join: Join) -> Join:
        slot, index = int(join.slot), int(join.env_index)
        self.seats += [_NO_SEAT] * (slot + 1 - len(self.seats))
        self.seats[slot] = join.env_id, join.agent_id
        self._set_index(join.env_id, index)
        return (
            join
            if type(join.slot) is type(join.env_index) is int
            else join._replace(slot=slot, env_index=index)
        )

    def _end(self, end: End) -> End:
        label = f"{self._where}: ended: the reward of agent {end.agent_id!r} of env {end.env_id!r}"
        return end._replace(slot=int(end.slot), reward=as_reward(end.reward, label), obs=own_copy(end.obs))

    def _end_episode(self, episode: EpisodeEnd) -> EpisodeEnd:
        index = int(episode.env_index)
        self._set_index(episode.env_id, index)
        return episode._replace(env_index=index, env_steps=int(episode.env_steps))

    def _unclaimed(self, one: Unclaimed) -> Unclaimed:
        label = f"{self._where}: unclaimed: the reward of agent {one.agent_id!r} of env {one.env_id!r}"
        return one._replace(reward=as_reward(one.reward, label), env_index=int(one.env_index))

    def _set_index(self, env_id: EnvId, index: int) -> None:
        if len(self._indices) >= _KEPT_IDS:
            self._indices.clear()
        self._indices[env_id] = index

    def _reward_label(self, slot: int) -> str:
        env_id, agent_id = self.seats[slot]
        return f"{self._where}: the reward of agent {agent_id!r} of env {env_id!r}"
