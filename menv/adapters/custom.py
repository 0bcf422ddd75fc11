"""A user's own `BaseEnv`: `CustomEnvs` checks its tables in the poll in which a mistake is made.

`SixDicts` checks the six nested dicts of an environment and makes tables from them. The checker plays environments
through the same adapter. Both call the environment, not before the first poll, and chain its errors.
"""

from __future__ import annotations

from collections import Counter
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
from menv.adapters.validation import (
    KEY_FIRST,
    any_set,
    as_rewards,
    by_sub_environment,
    check_answers,
    count_empty,
    flag_of,
    possible_agents,
    reward_labels,
    unknown_slot,
    validate_poll,
    wrong_count,
)
from menv.base_env import (
    ALL,
    COMMON,
    AgentId,
    BaseEnv,
    End,
    EnvId,
    EpisodeEnd,
    FloatArray,
    IntArray,
    Join,
    MultiEnvDict,
    Ready,
    Unclaimed,
)
from menv.env_calls import as_reward, how_many
from menv.errors import ContractError
from menv.spaces import own_copy

_KINDS: Mapping[str, tuple[type, str]] = {
    "ended": (End, "trajectory"),
    "episodes": (EpisodeEnd, "episode"),
    "unclaimed": (Unclaimed, "such reward"),
    "joined": (Join, "new trajectory"),
}
_MAX_SLOTS = 1 << 24
_KEPT_IDS = 65_536
_NO_SEAT: tuple[EnvId, AgentId] = (None, None)
# Fewer env steps than any sub-environment has.
_NEVER = -1


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

    def __init__(self, inner: BaseEnv, watcher: Any) -> None:
        self._inner = inner
        self._watcher = watcher
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
            if not isinstance(infos, Mapping | None):
                got = f"returned infos of type {type(infos).__name__}"
                raise self._wrong("try_reset", got, "{env_id: {agent_id: info}}", KEY_FIRST, "ME029")
            self._begin_all(obs, infos or {})
        return obs, infos

    def _begin_all(self, obs: MultiEnvDict, infos: Mapping[EnvId, Any]) -> None:
        """Begin episodes with what a reset returned; a string says that the observations come with a later poll."""
        for env_id, by_agent in obs.items():
            if isinstance(by_agent, dict):
                self._begin(env_id, by_agent, infos.get(env_id, {}))
            elif not isinstance(by_agent, str):
                got = f"returned {type(by_agent).__name__} under {env_id!r}"
                raise self._wrong("try_reset", got, "{env_id: {agent_id: obs}}", KEY_FIRST, "ME012")

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
        unseen = {join.env_id for join in self._events.joined}
        for env_id in dict.fromkeys([*obs, *rewards, *terminateds, *truncateds]):
            flags = [dict(part.get(env_id, {})) for part in (terminateds, truncateds)]
            tracker = self._trackers.get(env_id) or self._new_tracker(env_id)
            if env_id in unseen and any_set(flags[0], flags[1], tracker.where):
                got = f"env {env_id!r} ends trajectories that no poll has begun"
                raise self._wrong("poll", got, "rows of its reset first", "poll once after each reset")
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
        if self._watcher is not None:
            self._watcher.stepped(env_id, step)
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
        if self._watcher is not None:
            self._watcher.began(env_id, obs, infos)
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
    """Checks the tables of another `BaseEnv` and passes them on; `SixDicts` makes valid tables from its six dicts.

    No object is created per agent and step of a table, for simulators that step many worlds of many agents as arrays.
    In the result slots stay the same array while the same agents wait, env steps and last observations are copies,
    rewards are float64, and seats come from the joins.

    Attributes:
        inner: The other environment.
        possible_agents: The agents that may ever appear, None if it does not list them.
        seats: `seats[slot]` is the `(env_id, agent_id)` that has the slot, or had it last.
    """

    def __init__(self, inner: BaseEnv, watcher: Any = None) -> None:
        """`watcher` is of `check_env`: its `began` and `stepped` see what is in six dicts."""
        self.inner = inner
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        self.possible_agents = getattr(inner, "possible_agents", None)
        self.num_envs = inner.num_envs or 0
        self._dicts = None if inner.returns_table else SixDicts(inner, watcher)
        self._table = inner if self._dicts is None else self._dicts
        if self._dicts is None:
            self.lockstep, self.external = inner.lockstep, inner.external
            self.events_have_order = not inner.external
            self.idle_timeout = inner.idle_timeout
        self._wrong = partial(_wrong, inner)
        self.seats: list[tuple[EnvId, AgentId]] = [] if self._dicts is None else self._dicts.seats
        self._where = f"{type(inner).__name__}.poll"
        # [E] env steps when the inner environment began, now, and of each sub-environment at its last rows.
        self._before: IntArray = np.zeros(self.num_envs, np.int64)
        self._now = self._before
        self._had_rows = np.full(len(self._before), _NEVER)
        # [R] of the rows of the last poll, the same array while the same agents wait, and their sub-environments.
        self._slots: IntArray = np.zeros(0, np.int64)
        self._envs = self._slots
        # By slot: whether an agent lives there, whether it waits, and its sub-environment.
        self._alive, self._waits = np.zeros(0, np.bool_), np.zeros(0, np.bool_)
        self._env_of: IntArray = np.zeros(0, np.int64)
        # The slots of living agents by seat, and their number by sub-environment.
        self._slot_of: dict[tuple[EnvId, AgentId], int] = {}
        self._living: Counter[int] = Counter()
        # Running episodes: ids by index, and indices by id; then the latest index of each id, of very many the last.
        self._ids: dict[int, EnvId] = {}
        self._running: dict[EnvId, int] = {}
        self._indices: dict[EnvId, int] = {}
        # Whether a sub-environment was reset since the last poll, which ends agents that wait.
        self._was_reset = False
        # Whether a trajectory began or ended since the rows were checked last.
        self._changed = False

    def poll(self, timeout: float | None = None) -> Ready:
        """Poll the inner environment; raise a `ContractError` if a table contradicts itself or an earlier one."""
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
        self._check_kinds(ready)
        env_steps = self._steps(ready.env_steps)
        ended = [self._end(end) for end in ready.ended]
        self._was_reset = False
        episodes, unclaimed = self._episodes(ready)
        joined = [self._join(join) for join in ready.joined]
        slots = self._set_waiting(ready.slots, joined, env_steps)
        return Ready(
            slots, ready.obs, self._checked_rewards(ready, slots), env_steps, joined, ended, episodes, unclaimed,
            ready.infos, ready.taken, self.seats, (), ready.faults,
        )  # fmt: skip

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents; a table always gets slots and actions."""
        if self._dicts is not None:
            self._dicts.send_actions(slots, actions)
            return
        if slots is not self._slots or not self._waits[slots].all():
            slots, actions = self._checked_answers(slots, actions)
        elif len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        if len(slots):
            self._waits[slots] = False
            call_env(self.inner, "send_actions", slots, actions)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        self._was_reset = True
        result: tuple[Any, Any] = reset_base_env(self._table, env_id, seed, options)
        return result

    def try_restart(self, env_id: EnvId | None = None) -> None:
        self._was_reset = True
        call_env(self._table, "try_restart", env_id)

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
        self._was_reset = True
        return self.inner.call(env_id, method, *args)

    def index_of(self, env_id: EnvId) -> int:
        return self._indices[env_id]

    def start_from(self, env_steps: IntArray) -> None:
        if self._dicts is not None:
            self._dicts.start_from(env_steps)
            return
        self._before = self._now = env_steps.copy()
        self._had_rows = np.full(len(env_steps), _NEVER)

    # What a table may hold, in the order in which `poll` reads it.

    def _check_kinds(self, ready: Ready) -> None:
        if ready.played:
            raise self._bad(
                "played", "pieces of episodes", "none", "deliver rows; pieces are for menv's servers"
            )
        for part, (kind, what) in _KINDS.items():
            entries = getattr(ready, part)
            if not isinstance(entries, Sequence):
                raise self._bad(part, type(entries).__name__, "a list", "return an empty one for none")
            for entry in entries:
                if not isinstance(entry, kind):
                    rule, fix = f"menv.{kind.__name__}", f"return one for each {what}"
                    raise self._bad(part, type(entry).__name__, rule, fix)

    def _steps(self, env_steps: object) -> IntArray:
        """Return [E] env steps, a copy."""
        steps, listed = np.array(env_steps), self.num_envs
        if steps.ndim != 1 or (len(steps) and steps.dtype.kind not in "iu") or len(steps) < listed:
            raise self._bad(
                "env_steps", f"{steps.dtype} of shape {steps.shape}", f"[{self.num_envs or 'E'}] integers",
                "return the env steps of each sub-environment since its start",
            )  # fmt: skip
        more = len(steps) - len(self._before)
        if more > 0:
            unknown = np.zeros(more, np.int64)
            self._before, self._now = np.append(self._before, unknown), np.append(self._now, unknown)
            self._had_rows = np.append(self._had_rows, unknown + _NEVER)
        # Sub-environments that are not in the table (any more) keep their counts.
        now = self._now.copy()
        now[: len(steps)] = steps + self._before[: len(steps)]
        back = now < self._now
        if back.any():
            index = int(np.argmax(back))
            raise self._bad(
                "env_steps", f"{steps[index]} of sub-environment {index}, after "
                f"{self._now[index] - self._before[index]}", "never less than before",
                "count on from episode to episode",
            )  # fmt: skip
        self._now = now
        return now

    def _end(self, end: End) -> End:
        """Process the end of a trajectory; return it with a float reward and a copy of the observation."""
        slot, who = self._number("ended", end.slot), f"agent {end.agent_id!r} of env {end.env_id!r}"
        if slot >= len(self._alive) or not self._alive[slot]:
            raise self._bad(
                "ended", f"{who} ends on slot {slot}, on which no agent lives", "the slot of its Join",
                "end each trajectory once, and only after its Join",
            )  # fmt: skip
        name = self._name(slot)
        if self.seats[slot] != (end.env_id, end.agent_id):
            raise self._bad(
                "ended", f"{who} ends on slot {slot}, on which {name} lives", "the slot of its Join",
                "look up the slot that the agent joined on",
            )  # fmt: skip
        if not (end.terminated or end.truncated):
            raise self._bad(
                "ended", f"{name} is neither terminated nor truncated", "one of both",
                "set truncated where it was cut short, terminated where the rules ended it",
            )  # fmt: skip
        if not isinstance(end.info, Mapping):
            got = f"the info of {name} is {type(end.info).__name__}"
            raise self._bad("ended", got, "a dict", "give {} for nothing")
        if self._waits[slot] and not (end.withdrawn or self._was_reset):
            raise self._bad(
                "ended", f"{name} ends while it waits for an action", "an answer first",
                "let sub-environments wait until they have been answered",
            )  # fmt: skip
        self._alive[slot] = self._waits[slot] = False
        del self._slot_of[self.seats[slot]]
        index = int(self._env_of[slot])
        self._living[index] -= 1
        self._had_rows[index] = _NEVER
        self._changed = True
        reward = as_reward(end.reward, f"{self._where}: ended: the reward of {who}")
        return end._replace(slot=slot, reward=reward, obs=own_copy(end.obs))

    def _episodes(self, ready: Ready) -> tuple[list[EpisodeEnd], list[Unclaimed]]:
        episodes: list[EpisodeEnd] = []
        unclaimed: list[Unclaimed] = []
        for episode in ready.episodes:
            before = ready.unclaimed[len(unclaimed) : episode.unclaimed]
            unclaimed += map(self._check_unclaimed, before)
            episodes.append(self._end_episode(episode, len(ready.unclaimed)))
        unclaimed += map(self._check_unclaimed, ready.unclaimed[len(unclaimed) :])
        return episodes, unclaimed

    def _end_episode(self, episode: EpisodeEnd, unclaimed: int) -> EpisodeEnd:
        """Process the end of an episode, whose agents have ended before."""
        index, name = self._index("episodes", episode.env_index), f"env {episode.env_id!r}"
        if self._living[index]:
            lives = np.flatnonzero(self._alive & (self._env_of == index)).tolist()
            left = [self.seats[slot][1] for slot in lives]
            raise self._bad(
                "episodes", f"the episode of {name} ended while agents {left[:8]} live on",
                "a menv.End for each of them in `ended`", "end all agents in the poll in which the episode ends",
            )  # fmt: skip
        if not 0 <= episode.unclaimed <= unclaimed:
            raise self._bad(
                "episodes", f"{episode.unclaimed} entries of `unclaimed` before the end of {name}",
                f"0 to {unclaimed}", "count the entries of this episode and of earlier ones",
            )  # fmt: skip
        self._check_id("episodes", episode.env_id, index)
        self._had_rows[index] = _NEVER
        self._ids.pop(index, None)
        self._running.pop(episode.env_id, None)
        self._set_index(episode.env_id, index)
        length = episode.env_steps
        if not _is_natural(length):
            raise self._bad(
                "episodes", f"the episode of {name} has length {length!r}", "an integer from 0",
                "count the env steps of this episode alone",
            )  # fmt: skip
        return episode._replace(env_index=index, env_steps=int(length))

    def _check_unclaimed(self, unclaimed: Unclaimed) -> Unclaimed:
        index = self._index("unclaimed", unclaimed.env_index)
        self._check_id("unclaimed", unclaimed.env_id, index)
        whose = f"{self._where}: unclaimed: the reward of agent {unclaimed.agent_id!r} of env {unclaimed.env_id!r}"
        return unclaimed._replace(reward=as_reward(unclaimed.reward, whose), env_index=index)

    def _join(self, join: Join) -> Join:
        """Process the begin of a trajectory."""
        slot, index = self._number("joined", join.slot), self._index("joined", join.env_index)
        seat = join.env_id, join.agent_id
        self._check_key("joined", seat)
        if join.agent_id in (ALL, COMMON):
            got = f"an agent is called {join.agent_id!r}"
            raise self._bad("joined", got, "another name", "rename the agent")
        self._check_id("joined", join.env_id, index)
        if slot >= len(self._alive):
            more = max(slot + 1, 2 * len(self._alive)) - len(self._alive)
            self._alive, self._waits = (
                np.append(one, np.zeros(more, np.bool_)) for one in (self._alive, self._waits)
            )
            self._env_of = np.append(self._env_of, np.zeros(more, np.int64))
            self.seats += [_NO_SEAT] * more
        if self._alive[slot]:
            env_id, agent_id = self.seats[slot]
            raise self._bad(
                "joined", f"agent {join.agent_id!r} of env {join.env_id!r} joins on slot {slot}, on which agent "
                f"{agent_id!r} of env {env_id!r} lives", "a free slot",
                "end that agent in the same poll or before, or use another number",
            )  # fmt: skip
        if seat in self._slot_of:
            raise self._bad(
                "joined", f"{self._name(self._slot_of[seat])} joins again, on slot {slot}", "one life at a time",
                "end the first one before, or use another id for the other agent",
            )  # fmt: skip
        self._alive[slot], self._env_of[slot] = True, index
        self.seats[slot], self._slot_of[seat] = seat, slot
        self._ids[index], self._running[join.env_id] = join.env_id, index
        self._set_index(join.env_id, index)
        self._living[index] += 1
        self._had_rows[index] = _NEVER
        self._changed = True
        # numpy integers would overflow where random numbers are keyed.
        numbers = type(join.slot) is int and type(join.env_index) is int
        return join if numbers else join._replace(slot=slot, env_index=index)

    def _set_waiting(self, slots: object, joined: Sequence[Join], env_steps: IntArray) -> IntArray:
        """Set which agents wait; return [R] slots, the same array as last time if they are equal."""
        slots = np.asarray(slots)
        if slots.ndim != 1 or (len(slots) and slots.dtype.kind not in "iu"):
            got = f"{slots.dtype} of shape {slots.shape}"
            raise self._bad("slots", got, "[R] integers", "return one slot a row")
        slots = slots.astype(np.int64, copy=False)
        same = len(slots) == len(self._slots) and np.array_equal(slots, self._slots)
        if not same or self._changed:
            self._check_rows(slots, joined)
            self._envs, self._changed = np.unique(self._env_of[slots]), False
        if not same:
            self._slots = slots.copy()
        if self._waits[self._slots].any():
            name = self._name(int(self._slots[np.argmax(self._waits[self._slots])]))
            raise self._bad(
                "slots", f"{name} waits already", "each row once, and no other before it is answered",
                "leave out agents that were not answered",
            )  # fmt: skip
        stuck = env_steps[self._envs] <= self._had_rows[self._envs]
        if stuck.any():
            index = int(self._envs[np.argmax(stuck)])
            raise self._bad(
                "env_steps", f"sub-environment {index} has new rows and {env_steps[index]} env steps, as with its rows "
                "before", "more than then", "count one for each step of a sub-environment; random draws depend on it",
            )  # fmt: skip
        self._had_rows[self._envs] = env_steps[self._envs]
        self._waits[self._slots] = True
        return self._slots

    def _check_rows(self, slots: IntArray, joined: Sequence[Join]) -> None:
        unknown = self._unknown_slot(slots)
        if unknown is not None:
            raise self._bad(
                "slots", f"there is a row for slot {unknown}, on which no agent lives", "slots of menv.Join entries",
                "put a Join into `joined` with the first row of each trajectory, and no row after its End",
            )  # fmt: skip
        counts = np.bincount(slots, minlength=1)
        if counts.max() > 1:
            got = f"{self._name(int(np.argmax(counts)))} has {counts.max()} rows"
            raise self._bad("slots", got, "one", "deliver each agent once a poll")
        for join in joined:
            if join.slot >= len(counts) or not counts[join.slot]:
                raise self._bad(
                    "joined", f"{self._name(join.slot)} joins and has no row", "a row in the same poll",
                    "let agents join when they wait for their first action",
                )  # fmt: skip

    def _checked_rewards(self, ready: Ready, slots: IntArray) -> FloatArray:
        """Check the columns; return [R] rewards."""
        for part in ("rewards", "obs", *(("infos",) if ready.infos is not None else ())):
            self._check_length(part, getattr(ready, part), len(slots))
        stray = set(ready.taken) - set(slots.tolist()) if ready.taken else ()
        if stray:
            raise self._bad(
                "taken", f"an action for slot {min(stray, key=repr)!r}, which has no row", "slots of rows",
                "return an action together with the observation that it answers",
            )  # fmt: skip
        return as_rewards(ready.rewards, lambda: map(self._reward_label, slots.tolist()))

    def _check_length(self, part: str, column: Any, rows: int) -> None:
        sized = isinstance(column, Sequence | np.ndarray)
        if not sized or len(column) != rows:
            got = str(len(column)) if sized else type(column).__name__
            raise self._bad(part, got, f"{rows}, one for each slot", "return one row per waiting agent")

    def _checked_answers(self, slots: Any, actions: Any) -> tuple[IntArray, Any]:
        """Return slots and actions; raise unless they answer all waiting agents of their sub-environments."""
        if actions is not None:
            slots = np.asarray(slots, np.int64)
            if len(actions) != len(slots):
                raise wrong_count(len(actions), len(slots))
            unknown = self._unknown_slot(slots)
            if unknown is not None:
                raise unknown_slot(unknown)
        by_env = by_sub_environment(slots, actions, self.seats)
        waiting: dict[EnvId, dict[AgentId, int]] = {env_id: {} for env_id in by_env}
        for slot in np.flatnonzero(self._waits).tolist():
            env_id, agent = self.seats[slot]
            if env_id in waiting:
                waiting[env_id][agent] = slot
        for env_id, answers in by_env.items():
            check_answers(env_id, list(waiting[env_id]), answers)
        if actions is None:
            order = [waiting[env_id][agent] for env_id, answers in by_env.items() for agent in answers]
            return np.array(order, np.int64), [one for answers in by_env.values() for one in answers.values()]
        twice = np.flatnonzero(np.bincount(slots) > 1)
        if len(twice):
            raise ContractError(
                f"send_actions: env {self.seats[twice[0]][0]} got several actions for one slot, expected one; answer "
                "each row once"
            )
        return slots, actions

    # Numbers, ids and names.

    def _check_id(self, part: str, env_id: EnvId, index: int) -> None:
        if index in self._ids:
            if self._ids[index] != env_id:
                raise self._bad(
                    part, f"env {env_id!r} has env_index {index}, where the episode of env {self._ids[index]!r} runs",
                    "the index of each sub-environment's own", "end the episode that runs there, or fix the index",
                )  # fmt: skip
            return
        self._check_key(part, env_id)
        if env_id in self._running:
            raise self._bad(
                part, f"env {env_id!r} has env_index {index}, and its episode runs at {self._running[env_id]}",
                "the same index until it ends", "end the episode first, or fix the index",
            )  # fmt: skip

    def _check_key(self, part: str, key: object) -> None:
        try:
            hash(key)
        except TypeError:
            rule, fix = "ids that can be keys of a dict", "use numbers, texts, or tuples of them"
            raise self._bad(part, f"the id {key!r}", rule, fix) from None

    def _set_index(self, env_id: EnvId, index: int) -> None:
        if len(self._indices) >= _KEPT_IDS:
            self._indices.clear()
        self._indices[env_id] = index

    def _unknown_slot(self, slots: IntArray) -> int | None:
        bad = (slots < 0) | (slots >= len(self._alive))
        if not bad.any():
            bad = ~self._alive[slots]
        return int(slots[np.argmax(bad)]) if bad.any() else None

    def _number(self, part: str, slot: object) -> int:
        fix = "number trajectories from 0, and use the numbers of ended ones again"
        return self._integer(part, "slot", slot, _MAX_SLOTS, fix)

    def _index(self, part: str, index: object) -> int:
        fix = "give the place of the sub-environment in env_steps"
        return self._integer(part, "env_index", index, len(self._now), fix)

    def _integer(self, part: str, name: str, value: Any, stop: int, fix: str) -> int:
        if not _is_natural(value) or value >= stop:
            raise self._bad(part, f"{name} {value!r}", f"an integer from 0 to {stop - 1}", fix)
        return int(value)

    def _bad(self, part: str, got: str, expected: str, fix: str) -> ContractError:
        return self._wrong(f"poll: {part}", got, expected, fix)

    def _name(self, slot: int) -> str:
        if not 0 <= slot < len(self.seats) or self.seats[slot] is _NO_SEAT:
            return f"slot {slot}"
        env_id, agent_id = self.seats[slot]
        return f"agent {agent_id!r} of env {env_id!r} (slot {slot})"

    def _reward_label(self, slot: int) -> str:
        env_id, agent_id = self.seats[slot]
        return f"{self._where}: the reward of agent {agent_id!r} of env {env_id!r}"


def _is_natural(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)
