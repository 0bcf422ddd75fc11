"""A user's own `BaseEnv`, which speaks in six nested dicts, as rows.

The same `AgentTracker` as in `multi_agent` reads its dicts. It is never reset behind its back: after
`"__all__"` the adapter calls its `try_reset`, waits on "async_reset_return", and expects a new env
id where the answer is `(None, None)`. `menv.adapters.convert` creates it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from menv.adapters.agent_tracker import AgentTracker, SlotAllocator, WaitingAgents, join_slots
from menv.adapters.poll_events import PollEvents
from menv.adapters.slot_table import SlotTracker
from menv.adapters.validation import (
    MAX_EMPTY_STEPS,
    as_rewards,
    by_sub_environment,
    check_answers,
    nested_answers,
    possible_agents,
    reward_labels,
    too_silent,
    wrong_count,
)
from menv.base_env import ALL, AgentId, BaseEnv, EnvId, EpisodeEnd, IntArray, MultiEnvDict, Ready, Unclaimed
from menv.errors import ContractError, EnvCrashError, MenvError, raised_by_envs
from menv.spaces import how_many

# SEAM menv.adapters.inner_envs
# What the adapters of a user's own `BaseEnv` have in common: it is called, and what it raises is chained.
#
# `custom` and `table` build on it. It knows nothing of what a poll returns.


class InnerEnvs(BaseEnv):
    """Stands before another `BaseEnv`, which is not touched before the first poll.

    Attributes:
        inner: The other one.
        possible_agents: The agents that may ever appear, None if it does not say.
    """

    returns_table = True

    def __init__(self, inner: BaseEnv) -> None:
        self.inner = inner
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        self.possible_agents = getattr(inner, "possible_agents", None)
        self.num_envs = inner.num_envs or 0

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the inner environment's own answer."""
        return self.inner.get_sub_environments(as_dict)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render through the inner environment."""
        return self.inner.try_render(env_id)

    def stop(self) -> None:
        """Stop the inner environment."""
        self.inner.stop()

    @abstractmethod
    def start_from(self, env_steps: IntArray) -> None:
        """Count env steps on from [E] these, so that nothing is drawn twice; nobody has polled yet."""

    def _inner_reset(self, env_id: EnvId | None, seed: int | None, options: dict[str, Any] | None) -> Any:
        # The classic signature is `try_reset(env_id)`: nothing is passed that was not asked for.
        given = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
        return self._call("try_reset", env_id, **given)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.inner, method)(*args, **kwargs)
        except MenvError:
            raise
        except raised_by_envs() as error:
            raise EnvCrashError(
                f"{type(self.inner).__name__}.{method}: raised {type(error).__name__}: {error}; "
                "the environment's own traceback is above"
            ) from error


class CustomEnvs(InnerEnvs):
    """Reads the six dicts of another `BaseEnv`."""

    def __init__(self, inner: BaseEnv) -> None:
        """Wrap `inner`, which is not touched before the first poll."""
        super().__init__(inner)
        self._allocator = SlotAllocator()
        self._trackers: dict[EnvId, AgentTracker] = {}
        self._env_steps = np.zeros(0, np.int64)
        # Indices of sub-environments that ended for good; the next new one takes over.
        self._free_indices: list[int] = []
        self._gone: dict[int, EnvId] = {}
        # Sub-environments whose episode has begun, that is, whose obs were seen since their end.
        self._running: set[EnvId] = set()
        # Those with rows that no poll has delivered yet, with rows that wait for an answer, and those
        # in which nobody waits, which go on with `{}`.
        self._due: set[EnvId] = set()
        self._waiting: set[EnvId] = set()
        self._silent: dict[EnvId, int] = {}
        # Those of the latter that were told to, and have not moved since.
        self._told: set[EnvId] = set()
        self._answers: MultiEnvDict = {}
        # What agents did themselves, in rows that no poll has delivered yet.
        self._taken: dict[int, Any] = {}
        self._events = PollEvents()
        self._delivered = (list[WaitingAgents](), np.zeros(0, np.int64))

    @property
    def gone(self) -> list[EnvId]:
        """The sub-environments that ended for good and whose place nobody has taken."""
        return list(self._gone.values())

    def poll(self, timeout: float | None = None) -> Ready:
        """Send what was answered, poll the inner environment and return its rows."""
        while True:
            # Once each: one that is busy would take another step for each `{}` more.
            answers: MultiEnvDict = {
                **self._answers,
                **{key: {} for key in self._silent if key not in self._told},
            }
            self._answers = {}
            self._told.update(self._silent)
            if answers:
                self._call("send_actions", answers)
            parts = self._six_dicts()
            self._read(parts)
            # Nothing came at all: the inner environment is busy, and waiting is the caller's business.
            if self._due or not self._silent or not any(parts[:4]):
                return self._deliver()

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents; see `BaseEnv.send_actions`."""
        by_env = by_sub_environment(slots, actions, self._allocator.seats)
        for env_id, answers in by_env.items():
            agents = (
                self._trackers[env_id].waiting.agents
                if env_id in self._waiting or env_id in self._due
                else []
            )
            check_answers(env_id, agents, answers)
        for env_id, answers in ((env_id, answers) for env_id, answers in by_env.items() if answers):
            self._answers[env_id] = answers
            self._trackers[env_id].answered = True
            self._waiting.discard(env_id)
            self._due.discard(env_id)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Pass the call on; the obs that it returns begin a new episode.

        A sub-environment in which nobody has been answered since its reset is left as it is.
        """
        fresh = [key for key in self._running if not self._trackers[key].answered]
        if (
            seed is None
            and options is None
            and (env_id in fresh or (env_id is None and len(fresh) == len(self._trackers) > 0))
        ):
            return self._first_rows(fresh if env_id is None else [env_id])
        result = self._inner_reset(env_id, seed, options)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise ContractError(
                f"{type(self.inner).__name__}.try_reset: returned {how_many(result)}, expected (obs, infos), two "
                "dicts by env id, or (None, None) where this environment resets itself; return both"
            )
        obs, infos = result
        if isinstance(obs, dict):
            self._begin_all(obs, infos or {})
        return obs, infos

    def _begin_all(self, obs: MultiEnvDict, infos: MultiEnvDict) -> None:
        """Begin an episode with what a reset returned, unless that is a text: then it comes with a later poll."""
        for env_id, by_agent in obs.items():
            if isinstance(by_agent, dict):
                self._begin(env_id, by_agent, infos.get(env_id, {}))
            elif not isinstance(by_agent, str):
                raise ContractError(
                    f"{type(self.inner).__name__}.try_reset: returned {type(by_agent).__name__} under {env_id!r}, "
                    "expected {env_id: {agent_id: obs}}; key by sub-environment first, then by agent"
                )

    def _first_rows(self, env_ids: list[EnvId]) -> tuple[MultiEnvDict, MultiEnvDict]:
        shown = {env_id: self._trackers[env_id].by_agent() for env_id in env_ids}
        return {key: obs for key, (obs, _) in shown.items()}, {
            key: infos for key, (_, infos) in shown.items()
        }

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Pass the call on; a running episode ends as truncated."""
        self.inner.try_restart(env_id)
        for key in list(self._running) if env_id is None else [env_id]:
            if key in self._running:
                self._trackers[key].truncate(self._events)
                self._stop_running(key)
                self.try_reset(key)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the inner environment lists and those seen so far."""
        listed = self.possible_agents or self.inner.get_agent_ids()
        return set(listed).union(*(tracker.slots for tracker in self._trackers.values()))

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the rewards that wait for their agent's next row."""
        return {env_id: dict(tracker.held) for env_id, tracker in self._trackers.items() if tracker.held}

    def start_from(self, env_steps: IntArray) -> None:
        """Count env steps on from [E] these, so that nothing is drawn twice; nobody has polled yet."""
        self._env_steps = env_steps.copy()
        self._free_indices = list(range(len(env_steps)))

    def _six_dicts(self) -> tuple[MultiEnvDict, ...]:
        result = self._call("poll")
        name = type(self.inner).__name__
        if isinstance(result, Ready):
            raise ContractError(
                f"{name}.poll: returned a menv.Ready, expected six nested dicts; set returns_table = True on the class"
            )
        if not isinstance(result, tuple | list) or len(result) != 6:
            raise ContractError(
                f"{name}.poll: returned {how_many(result)}, expected six nested dicts (obs, rewards, terminateds, "
                "truncateds, infos, off_policy_actions); split the old `dones` into terminateds and truncateds"
            )
        for part in result:
            if not isinstance(part, Mapping) or not all(
                isinstance(value, Mapping) for value in part.values()
            ):
                raise ContractError(
                    f"{name}.poll: one of the six values is not a dict of dicts, expected "
                    "{env_id: {agent_id: value}}; key by sub-environment first, then by agent"
                )
        return tuple(result)

    def _read(self, parts: tuple[MultiEnvDict, ...]) -> None:
        obs, rewards, terminateds, truncateds, infos, taken = parts
        for env_id in dict.fromkeys([*obs, *rewards, *terminateds, *truncateds]):
            flags = [dict(part.get(env_id, {})) for part in (terminateds, truncateds)]
            moved = obs.get(env_id) or any(flags[0].values()) or any(flags[1].values())
            if not moved and (env_id in self._waiting or env_id in self._due):
                # Others moved; in this one somebody still waits, and may be paid meanwhile.
                self._trackers[env_id].add_rewards(rewards.get(env_id, {}), self._events)
                continue
            if env_id not in self._running:
                gone = {agent for by_agent in flags for agent, flag in by_agent.items() if flag}
                first = {a: value for a, value in obs.get(env_id, {}).items() if not gone & {a, ALL}}
                self._begin(env_id, first, infos.get(env_id, {}), rewards.get(env_id, {}))
                if ALL not in gone:
                    continue
                obs, rewards = {**obs, env_id: {}}, {**rewards, env_id: {}}
            for name, by_agent in zip(("terminateds", "truncateds"), flags, strict=True):
                _with_all(env_id, name, by_agent)
            step = (dict(obs.get(env_id, {})), dict(rewards.get(env_id, {})), *flags, infos.get(env_id, {}))
            self._step(env_id, step)
        for env_id, actions in taken.items():
            # What belongs to the last observations of an episode is none of the next one's.
            if not any(part.get(env_id, {}).get(ALL) for part in (terminateds, truncateds)):
                self._take(env_id, actions, obs.get(env_id, {}))

    def _take(self, env_id: EnvId, actions: Mapping[AgentId, Any], obs: Mapping[AgentId, Any]) -> None:
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

    def _step(self, env_id: EnvId, step: Any) -> None:
        tracker = self._trackers[env_id]
        self._env_steps[tracker.env_index] += 1
        self._events.step_on(env_id)
        if tracker.step(step, self._events):
            self._stop_running(env_id)
            if self.try_reset(env_id) == (None, None):
                self._forget(env_id)
        else:
            self._note_waiting(env_id)

    def _note_waiting(self, env_id: EnvId) -> None:
        self._told.discard(env_id)
        if self._trackers[env_id].waiting.agents:
            self._due.add(env_id)
            self._silent.pop(env_id, None)
            return
        self._silent[env_id] = self._silent.get(env_id, 0) + 1
        if self._silent[env_id] > MAX_EMPTY_STEPS:
            raise too_silent(f"env {env_id} poll")

    def _begin(
        self, env_id: EnvId, obs: Any, infos: Any, rewards: Mapping[AgentId, Any] = MappingProxyType({})
    ) -> None:
        tracker = self._trackers.get(env_id) or self._new_tracker(env_id)
        if env_id in self._running:
            tracker.truncate(self._events)
            self._stop_running(env_id)
        tracker.add_rewards(rewards, self._events)
        tracker.begin(obs, infos, self._events)
        self._running.add(env_id)
        self._note_waiting(env_id)

    def _stop_running(self, env_id: EnvId) -> None:
        self._running.discard(env_id)
        self._due.discard(env_id)
        self._waiting.discard(env_id)
        self._silent.pop(env_id, None)
        self._told.discard(env_id)
        self._answers.pop(env_id, None)

    def _new_tracker(self, env_id: EnvId) -> AgentTracker:
        if self._free_indices:
            index = min(self._free_indices)
            self._free_indices.remove(index)
            self._gone.pop(index, None)
        else:
            index = len(self._env_steps)
            self._env_steps = np.append(self._env_steps, 0)
        tracker = self._trackers[env_id] = AgentTracker(env_id, index, self._allocator, possible_agents(self))
        return tracker

    def _forget(self, env_id: EnvId) -> None:
        tracker = self._trackers.pop(env_id)
        tracker.release_all()
        self._free_indices.append(tracker.env_index)
        self._gone[tracker.env_index] = env_id

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
        events, self._events = self._events, PollEvents()
        taken, self._taken = self._taken, {}
        return Ready(
            slots,
            list(chain.from_iterable(tracker.obs for tracker in trackers)),
            as_rewards(
                [*chain.from_iterable(tracker.rewards for tracker in trackers)], lambda: reward_labels(trackers)
            ),
            self._env_steps,
            events.joined, events.ended, events.episodes, events.unclaimed,
            list(chain.from_iterable(tracker.infos for tracker in trackers)),
            taken, self._allocator.seats, shared_infos=events.shared_infos,
        )  # fmt: skip


def _with_all(env_id: EnvId, name: str, flags: dict[AgentId, Any]) -> None:
    """Set `"__all__"` where no flags are given; some without it are a mistake."""
    if flags and ALL not in flags:
        raise ContractError(
            f"env {env_id} poll: {name} has no {ALL!r}, expected {ALL!r}: True where the episode ends for everyone; "
            "mend what poll returns"
        )
    flags.setdefault(ALL, False)


# SEAM menv.adapters.table
# A user's own `BaseEnv` that returns tables: what it says is looked at before anybody relies on it.
#
# A simulator that steps many worlds of many agents as arrays speaks so: nothing is created per agent and
# step, on either
# side. `menv.adapters.convert` creates this adapter. Who lives and who waits is the affair of `slot_book`.


class TableEnvs(InnerEnvs):
    """Passes on what another `BaseEnv` says, once it has been looked at.

    What it hands out is its own: slots stay the same array while the same agents wait, env steps and last
    observations are copies, rewards float64, and seats those of the joins.
    """

    def __init__(self, inner: BaseEnv) -> None:
        """Wrap `inner`, which is not touched before the first poll."""
        super().__init__(inner)
        self.lockstep, self.external = inner.lockstep, inner.external
        self.idle_timeout = inner.idle_timeout
        self._where = f"{type(inner).__name__}.poll"
        self._book = SlotTracker(self._where)
        # [E] env steps when the inner environment began, and by now.
        self._before: IntArray = np.zeros(self.num_envs, np.int64)
        self._now = self._before

    def poll(self, timeout: float | None = None) -> Ready:
        """Poll the inner environment; see `BaseEnv.poll`.

        Raises:
            ContractError: A table contradicts itself or one before.
        """
        ready = self._call("poll", *(() if timeout is None else (timeout,)))
        if not isinstance(ready, Ready):
            raise ContractError(
                f"{self._where}: returned {how_many(ready)}, expected a menv.Ready, because returns_table is set; "
                "return one, or leave returns_table out and return six nested dicts"
            )
        if ready.played:
            raise self._wrong(
                "played", "pieces of episodes", "none", "deliver rows; pieces are for menv's servers"
            )
        self._check_lists(ready)
        book, env_steps = self._book, self._steps(ready.env_steps)
        num_envs = len(env_steps)
        ended = [book.end(end) for end in ready.ended]
        book.reset = False
        episodes, credited = self._episodes(ready, num_envs)
        joined = [book.join(join, num_envs) for join in ready.joined]
        slots = book.wait(ready.slots, joined, env_steps)
        self._check_length("rewards", ready.rewards, slots)
        rewards = as_rewards(ready.rewards, lambda: map(self._whose, slots.tolist()))
        self._check_length("obs", ready.obs, slots)
        if ready.infos is not None:
            self._check_length("infos", ready.infos, slots)
        self._check_taken(ready.taken, slots)
        return Ready(
            slots, ready.obs, rewards, env_steps, joined, ended, episodes, credited, ready.infos, ready.taken,
            book.seats, (), ready.faults,
        )  # fmt: skip

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents; the inner environment is given slots and actions, whatever comes here."""
        if actions is None:
            slots, actions = self._from_nested(slots)
        slots = np.asarray(slots, np.int64)
        if len(actions) != len(slots):
            raise wrong_count(len(actions), len(slots))
        if len(slots):
            self._book.answered(slots)
            self._call("send_actions", slots, actions)

    def try_reset(
        self, env_id: EnvId | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Pass the call on; see `BaseEnv.try_reset`."""
        self._book.reset = True
        result: tuple[Any, Any] = self._inner_reset(env_id, seed, options)
        return result

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Pass the call on; see `BaseEnv.try_restart`."""
        self._book.reset = True
        self._call("try_restart", env_id)

    def get_agent_ids(self) -> set[AgentId]:
        """Return the agents that the inner environment lists and those seen so far."""
        listed = self.possible_agents or self.inner.get_agent_ids()
        return {*listed, *(agent for env_id, agent in self._book.seats if (env_id, agent) != (None, None))}

    def held_rewards(self) -> dict[EnvId, dict[AgentId, float]]:
        """Return the inner environment's own answer."""
        return self.inner.held_rewards()

    def rest(self) -> None:
        """Pass the call on; see `BaseEnv.rest`."""
        self.inner.rest()

    def unbroken(self) -> AbstractContextManager[Any]:
        """Return the inner environment's own answer; see `BaseEnv.unbroken`."""
        return self.inner.unbroken()

    def status(self) -> dict[str, Any]:
        """Return the inner environment's own answer; see `BaseEnv.status`."""
        return self.inner.status()

    def call(self, env_id: EnvId, method: str, *args: Any) -> Any:
        """Pass the call on; see `BaseEnv.call`."""
        self._book.reset = True
        return self.inner.call(env_id, method, *args)

    def index_of(self, env_id: EnvId) -> int:
        """Return the index of a sub-environment that has been heard of."""
        return self._book.indices[env_id]

    def start_from(self, env_steps: IntArray) -> None:
        """Count env steps on from [E] these, so that nothing is drawn twice; nobody has polled yet."""
        self._before = self._now = env_steps.copy()

    def _episodes(self, ready: Ready, num_envs: int) -> tuple[list[EpisodeEnd], list[Unclaimed]]:
        episodes: list[EpisodeEnd] = []
        credited: list[Unclaimed] = []
        for episode in ready.episodes:
            told = getattr(episode, "unclaimed", 0)
            credited += [self._book.credit(one, num_envs) for one in ready.unclaimed[len(credited) : told]]
            episodes.append(self._book.finish(episode, num_envs, len(ready.unclaimed)))
        credited += [self._book.credit(one, num_envs) for one in ready.unclaimed[len(credited) :]]
        return episodes, credited

    def _steps(self, env_steps: Any) -> IntArray:
        """Return [E] env steps, a copy."""
        steps = np.array(env_steps)
        if steps.ndim != 1 or (len(steps) and steps.dtype.kind not in "iu") or len(steps) < self.num_envs:
            raise self._wrong(
                "env_steps", f"{steps.dtype} of shape {steps.shape}", f"[{self.num_envs or 'E'}] integers",
                "return the env steps of each sub-environment since its start",
            )  # fmt: skip
        more = len(steps) - len(self._before)
        if more > 0:
            self._before, self._now = (
                np.append(one, np.zeros(more, np.int64)) for one in (self._before, self._now)
            )
        # Of sub-environments that are not there (any more) those of before count.
        now = self._now.copy()
        now[: len(steps)] = steps + self._before[: len(steps)]
        back = now < self._now
        if back.any():
            index = int(np.argmax(back))
            raise self._wrong(
                "env_steps", f"{steps[index]} of sub-environment {index}, after "
                f"{self._now[index] - self._before[index]}", "never less than before",
                "count on from episode to episode",
            )  # fmt: skip
        self._book.resize(len(now))
        self._now = now
        return now

    def _check_length(self, part: str, column: Any, slots: IntArray) -> None:
        if not isinstance(column, Sequence | np.ndarray) or len(column) != len(slots):
            got = len(column) if isinstance(column, Sequence | np.ndarray) else type(column).__name__
            raise self._wrong(
                part, f"{got}", f"{len(slots)}, one for each slot", "return a row for who waits only"
            )

    def _check_lists(self, ready: Ready) -> None:
        for part in ("ended", "episodes", "unclaimed", "joined"):
            if not isinstance(getattr(ready, part), Sequence):
                raise self._wrong(
                    part, type(getattr(ready, part)).__name__, "a list", "return an empty one for none"
                )

    def _check_taken(self, taken: Any, slots: IntArray) -> None:
        stray = set(taken) - set(slots.tolist()) if taken else ()
        if stray:
            raise self._wrong(
                "taken", f"an action for slot {min(stray, key=repr)!r}, which has no row", "slots of rows",
                "tell of an action together with the observation that it answers",
            )  # fmt: skip

    def _from_nested(self, answers: Any) -> tuple[IntArray, list[Any]]:
        told = {
            (env_id, agent): action
            for env_id, by_agent in nested_answers(answers).items()
            for agent, action in by_agent.items()
        }
        waiting = self._book.waiting()
        for env_id, agent in told:
            if (env_id, agent) not in waiting:
                agents = [other for other_env, other in waiting if other_env == env_id]
                check_answers(env_id, agents, answers[env_id])
        return np.array([waiting[seat] for seat in told], np.int64), list(told.values())

    def _whose(self, slot: int) -> str:
        env_id, agent_id = self._book.seats[slot]
        return f"{self._where}: the reward of agent {agent_id!r} of env {env_id!r}"

    def _wrong(self, part: str, got: str, expected: str, fix: str) -> ContractError:
        return ContractError(f"{self._where}: {part}: {got}, expected {expected}; {fix}")
