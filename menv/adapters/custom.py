"""A user's own `BaseEnv` that returns the six nested dicts, as rows.

The same `AgentTracker` as in `multi_agent` reads its dicts. The adapter never resets it unasked: after `"__all__"` it
calls `try_reset`, waits if the answer is "async_reset_return", and expects a new env id if it is `(None, None)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.agent_tracker import AgentTracker, SlotAllocator, WaitingAgents, join_slots
from menv.adapters.poll_events import PollEvents
from menv.adapters.validation import (
    MAX_EMPTY_STEPS,
    as_rewards,
    by_sub_environment,
    check_answers,
    empty_steps_error,
    possible_agents,
    reward_labels,
)
from menv.base_env import ALL, AgentId, BaseEnv, EnvId, IntArray, MultiEnvDict, Ready
from menv.errors import ContractError, EnvCrashError, MenvError, raised_by_envs
from menv.spaces import how_many

_PARTS = ("obs", "rewards", "terminateds", "truncateds", "infos", "off_policy_actions")


class InnerEnvs(Adapter):
    """Base of `CustomEnvs` and `TableEnvs`: calls another `BaseEnv`, not before the first poll, and chains its errors.

    Attributes:
        inner: The other environment.
        possible_agents: The agents that may ever appear, None if it does not list them.
    """

    def __init__(self, inner: BaseEnv) -> None:
        self.inner = inner
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        self.possible_agents = getattr(inner, "possible_agents", None)
        self.num_envs = inner.num_envs or 0
        # `check_env`: its `began` and `stepped` see what the inner environment returned.
        self.watcher: Any = None

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the answer of the inner environment."""
        return self.inner.get_sub_environments(as_dict)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render through the inner environment."""
        return self.inner.try_render(env_id)

    def stop(self) -> None:
        """Stop the inner environment."""
        self.inner.stop()

    def _inner_reset(self, env_id: EnvId | None, seed: int | None, options: dict[str, Any] | None) -> Any:
        # The classic signature is `try_reset(env_id)`: other arguments are passed only if they are given.
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
        super().__init__(inner)
        self._allocator = SlotAllocator()
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
        self._delivered = (list[WaitingAgents](), np.zeros(0, np.int64))

    @property
    def gone(self) -> list[EnvId]:
        """The sub-environments that ended for good and were not replaced."""
        return list(self._gone.values())

    def poll(self, timeout: float | None = None) -> Ready:
        """Send the answers, poll the inner environment and return its rows."""
        while True:
            # `{}` is sent once per step: a busy sub-environment would take another step for each.
            empty: MultiEnvDict = {key: {} for key in self._empty_steps if key not in self._sent_empty}
            answers: MultiEnvDict = {**self._answers, **empty}
            self._answers = {}
            self._sent_empty.update(self._empty_steps)
            if answers:
                self._call("send_actions", answers)
            parts = self._six_dicts()
            self._read(parts)
            # If nothing came at all the inner environment is busy, and the caller decides how long to wait.
            if self._due or not self._empty_steps or not any(parts[:4]):
                return self._deliver()

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        """Answer waiting agents; see `BaseEnv.send_actions`."""
        by_env = by_sub_environment(slots, actions, self._allocator.seats)
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
        """Reset through the inner environment; the observations that it returns begin a new episode.

        A sub-environment in which no agent has been answered since its reset is not reset again.
        """
        fresh = [key for key in self._running if not self._trackers[key].answered]
        all_fresh = env_id is None and len(fresh) == len(self._trackers) > 0
        if seed is None and options is None and (env_id in fresh or all_fresh):
            env_ids = fresh if env_id is None else [env_id]
            shown = {key: self._trackers[key].by_agent() for key in env_ids}
            return {key: row[0] for key, row in shown.items()}, {key: row[1] for key, row in shown.items()}
        result = self._inner_reset(env_id, seed, options)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise ContractError(
                f"{type(self.inner).__name__}.try_reset: returned {how_many(result)}, expected (obs, infos), two "
                "dicts by env id, or (None, None) where this environment resets itself; return both",
                "ME011",
            )
        obs, infos = result
        if isinstance(obs, dict):
            self._begin_all(obs, infos or {})
        return obs, infos

    def _begin_all(self, obs: MultiEnvDict, infos: MultiEnvDict) -> None:
        """Begin episodes with what a reset returned; a string says that the observations come with a later poll."""
        for env_id, by_agent in obs.items():
            if isinstance(by_agent, dict):
                self._begin(env_id, by_agent, infos.get(env_id, {}))
            elif not isinstance(by_agent, str):
                raise ContractError(
                    f"{type(self.inner).__name__}.try_reset: returned {type(by_agent).__name__} under {env_id!r}, "
                    "expected {env_id: {agent_id: obs}}; key by sub-environment first, then by agent",
                    "ME012",
                )

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Restart through the inner environment; a running episode ends as truncated."""
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
        """Count env steps on from [E] `env_steps`; see `Adapter.start_from`."""
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
                "truncateds, infos, off_policy_actions); split the old `dones` into terminateds and truncateds",
                "ME020",
            )
        for part_name, part in zip(_PARTS, result, strict=True):
            if not isinstance(part, Mapping) or not all(
                isinstance(value, Mapping) for value in part.values()
            ):
                raise ContractError(
                    f"{name}.poll: {part_name} is not a dict of dicts, expected "
                    "{env_id: {agent_id: value}}; key by sub-environment first, then by agent",
                    "ME021",
                )
        return tuple(result)

    def _read(self, parts: tuple[MultiEnvDict, ...]) -> None:
        obs, rewards, terminateds, truncateds, infos, taken = parts
        for env_id in dict.fromkeys([*obs, *rewards, *terminateds, *truncateds]):
            flags = [dict(part.get(env_id, {})) for part in (terminateds, truncateds)]
            moved = obs.get(env_id) or any(flags[0].values()) or any(flags[1].values())
            if not moved and (env_id in self._waiting or env_id in self._due):
                # It has not stepped: an agent still waits, and may have got a reward.
                self._trackers[env_id].add_rewards(rewards.get(env_id, {}), self._events)
                continue
            if env_id not in self._running:
                over = {agent for by_agent in flags for agent, flag in by_agent.items() if flag}
                first = {a: value for a, value in obs.get(env_id, {}).items() if not over & {a, ALL}}
                self._begin(env_id, first, infos.get(env_id, {}), rewards.get(env_id, {}))
                if ALL not in over:
                    continue
                obs, rewards = {**obs, env_id: {}}, {**rewards, env_id: {}}
            for name, by_agent in zip(("terminateds", "truncateds"), flags, strict=True):
                _add_missing_all(env_id, name, by_agent)
            step = (dict(obs.get(env_id, {})), dict(rewards.get(env_id, {})), *flags, infos.get(env_id, {}))
            self._step(env_id, step)
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

    def _step(self, env_id: EnvId, step: Any) -> None:
        tracker = self._trackers[env_id]
        if self.watcher is not None:
            self.watcher.stepped(env_id, step)
        self._env_steps[tracker.env_index] += 1
        self._events.count_step(env_id)
        if tracker.step(step, self._events):
            self._stop_running(env_id)
            if self.try_reset(env_id) == (None, None):
                del self._trackers[env_id]
                tracker.release_all()
                self._free_indices.append(tracker.env_index)
                self._gone[tracker.env_index] = env_id
        else:
            self._update_waiting(env_id)

    def _update_waiting(self, env_id: EnvId) -> None:
        self._sent_empty.discard(env_id)
        if self._trackers[env_id].waiting.agents:
            self._due.add(env_id)
            self._empty_steps.pop(env_id, None)
            return
        self._empty_steps[env_id] = self._empty_steps.get(env_id, 0) + 1
        if self._empty_steps[env_id] > MAX_EMPTY_STEPS:
            raise empty_steps_error(f"env {env_id} poll")

    def _begin(
        self, env_id: EnvId, obs: Any, infos: Any, rewards: Mapping[AgentId, Any] = MappingProxyType({})
    ) -> None:
        tracker = self._trackers.get(env_id) or self._new_tracker(env_id)
        if env_id in self._running:
            tracker.truncate(self._events)
            self._stop_running(env_id)
        tracker.add_rewards(rewards, self._events)
        if self.watcher is not None:
            self.watcher.began(env_id, obs, infos)
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
        tracker = self._trackers[env_id] = AgentTracker(env_id, index, self._allocator, possible_agents(self))
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
            self._env_steps,
            events.joined, events.ended, events.episodes, events.unclaimed,
            list(chain.from_iterable(tracker.infos for tracker in trackers)),
            taken, self._allocator.seats, shared_infos=events.shared_infos,
        )  # fmt: skip


def _add_missing_all(env_id: EnvId, name: str, flags: dict[AgentId, Any]) -> None:
    """Set `"__all__"` to False if there are no flags; flags without it are an error."""
    if flags and ALL not in flags:
        raise ContractError(
            f"env {env_id} poll: {name} has no {ALL!r}, expected {ALL!r}: True where the episode ends for everyone; "
            "fix what poll returns",
            "ME022",
        )
    flags.setdefault(ALL, False)
