"""The agents of one sub-environment: which are alive, which wait for an action, and which rewards are pending.

The adapters of dict environments (`multi_agent`, `custom`, `external`) keep one `AgentTracker` per sub-environment and
pass it what the environment returned; it turns the dicts into rows, joins and ends. It never calls an environment.
A reward for a dead agent, or for one that has no further row, is reported as unclaimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from menv.adapters.poll_events import PollEvents, all_empty, check_info
from menv.adapters.validation import (
    RESERVED,
    any_set,
    flag_of,
    lasting,
    refuse_none,
    reserved_error,
    validate_reset,
    validate_step,
)  # fmt: skip
from menv.base_env import (
    ALL,
    COMMON,
    AgentId,
    End,
    EnvId,
    EpisodeEnd,
    IntArray,
    Join,
    SharedInfo,
    Unclaimed,
)
from menv.env_calls import as_reward
from menv.errors import ContractError
from menv.spaces import own_copy

_KEPT_SLOTS = 256
_KEPT_LAYOUTS = 256
_SLOT_BYTES = attrgetter("slot_bytes")
_NO_INFO: Mapping[str, Any] = {}
_NO_FLAGS: Mapping[AgentId, bool] = {}


class WaitingAgents:
    """A group of agents that wait together, in the environment's order, and their slots.

    Trackers keep these objects and use them again, so that adapters can compare them by identity.

    Attributes:
        slots: [R]; `slot_list` and `slot_bytes` hold the same.
        checked_at: The tracker's count of ends when all of them were alive.
        no_terminateds: `terminateds` of the last step that ended no trajectory; so for `no_truncateds` and
            `empty_infos`. None before there was one, or where the environment may change the values.
    """

    __slots__ = (
        "agents", "checked_at", "empty_infos", "no_infos", "no_rewards", "no_terminateds", "no_truncateds",
        "slot_bytes", "slot_list", "slots",
    )  # fmt: skip

    def __init__(self, agents: list[AgentId], slots: IntArray) -> None:
        self.agents = agents
        self.slots = slots
        self.slot_list: list[int] = slots.tolist()
        self.slot_bytes = slots.tobytes()
        self.no_rewards = [0.0] * len(agents)
        self.no_infos: list[Mapping[str, Any]] = [_NO_INFO] * len(agents)
        self.checked_at = -1
        self.no_terminateds: Mapping[AgentId, Any] | None = None
        self.no_truncateds: Mapping[AgentId, Any] | None = None
        self.empty_infos: Mapping[AgentId, Any] | None = None


def join_slots(layouts: list[WaitingAgents]) -> IntArray:
    """Return the slots of all layouts in one array."""
    # A third of the time that joining lists or concatenating arrays takes.
    return np.frombuffer(b"".join(map(_SLOT_BYTES, layouts)), np.int64)


class SlotAllocator:
    """The slots of all sub-environments of one adapter: small integers, one per running trajectory.

    Freed slots are used before new ones, so that arrays indexed by slot stay short.

    Attributes:
        seats: `seats[slot]` is the `(env_id, agent_id)` that has the slot, or had it last.
        free: Freed slots, in the order in which they were freed.
    """

    def __init__(self) -> None:
        self.seats: list[tuple[EnvId, AgentId]] = []
        self.free: list[int] = []

    def allocate(self, env_id: EnvId, agent_id: AgentId) -> int:
        """Return a slot for an agent."""
        if self.free:
            slot = self.free.pop()
            self.seats[slot] = (env_id, agent_id)
            return slot
        self.seats.append((env_id, agent_id))
        return len(self.seats) - 1

    def clear(self) -> None:
        """Forget all slots."""
        self.seats.clear()
        self.free.clear()


class AgentTracker:
    """The agents of one sub-environment, episode after episode.

    Agents that are gone keep their slots for a while, so that layouts stay the same objects when they return.

    Attributes:
        waiting: The agents that wait for an action.
        obs: Their observations, as the environment returned them; `infos` and `rewards` have the same order.
        rewards: What each of them earned since its previous row.
        held: Rewards of agents that do not wait, for their next row.
        episode_steps: Env steps of the running episode.
        answered: Whether an agent has been answered since the last reset; set by the adapter.
        slots: The slot of each known agent, in the order of first use.
    """

    def __init__(
        self,
        env_id: EnvId,
        env_index: int,
        allocator: SlotAllocator,
        possible_agents: frozenset[AgentId] | None,
        common_reward: str | None = None,
    ) -> None:
        self._common_reward = common_reward
        self.env_id = env_id
        self.env_index = env_index
        self.obs: list[Any] = []
        self.rewards: list[float] = []
        self.infos: list[Mapping[str, Any]] = []
        self.episode_steps = 0
        self.answered = False
        self.slots: dict[AgentId, int] = {}
        self.held: dict[AgentId, float] = {}
        self._allocator = allocator
        self._layouts: dict[tuple[AgentId, ...], WaitingAgents] = {}
        self._possible = possible_agents
        self._none_waiting = WaitingAgents([], np.zeros(0, np.int64))
        self.waiting = self._none_waiting
        self._alive: set[AgentId] = set()
        self._dead: set[AgentId] = set()
        # Counts ends of trajectories: a layout that was checked at this count needs no second check.
        self._num_ends = 0

    def begin(self, obs: Any, infos: Any, events: PollEvents) -> None:
        """Begin an episode with what `reset` returned."""
        validate_reset(obs, infos, self._wrong)
        self.episode_steps = 0
        self.answered = False
        if COMMON in infos:
            self._share(infos[COMMON], events)
        self._set_waiting(obs, infos, events)

    def step(self, result: Any, events: PollEvents) -> bool:
        """Process what `step` returned; True if the episode is over and a reset is due.

        Raises:
            ContractError: The five dicts break the contract of `MultiAgentEnv`.
        """
        layout = self.waiting
        if self._common_reward is not None:
            result = self._pay_team(result)
        try:
            obs, rewards, terminateds, truncateds, infos = result
            # Flags and infos are usually the same as before: comparing dicts is cheaper than reading them.
            unchanged = (
                type(obs) is type(rewards) is type(infos) is dict
                and terminateds == layout.no_terminateds
                and truncateds == layout.no_truncateds
                and infos == layout.empty_infos
            )
        except (TypeError, ValueError, RuntimeError):
            unchanged = False
        if unchanged:
            self.episode_steps += 1
            infos = _NO_INFO
        else:
            rest = self._read_changes(result, events)
            if rest is None:
                return True
            obs, rewards, infos = rest
        if not self.held and [*obs] == layout.agents == [*rewards] and layout.checked_at == self._num_ends:
            # The same agents as last time, each with a reward for its own action: nothing to look up.
            self.obs, self.rewards = [*obs.values()], [*rewards.values()]
            self.infos = self._infos_of(infos, layout) if infos else layout.no_infos
            return False
        if not (RESERVED.isdisjoint(obs) and RESERVED.isdisjoint(rewards)):
            raise reserved_error("step", obs, rewards, self._wrong)
        if rewards:
            self._add_rewards(rewards, obs, _NO_FLAGS, _NO_FLAGS, events)
        self._set_waiting(obs, infos, events)
        return False

    def _pay_team(self, result: Any) -> Any:
        """Return what `step` returned, with the team's reward for each agent that had a trajectory."""
        team = self.alive()
        if (
            not isinstance(result, tuple)
            or len(result) != 5
            or not isinstance(result[1], Mapping)
            or not team
        ):
            return result
        total = sum(self._number(agent, reward) for agent, reward in result[1].items())
        share = total / len(team) if self._common_reward == "mean" else total
        return result[0], dict.fromkeys(team, float(share)), *result[2:]

    def _read_changes(self, result: object, events: PollEvents) -> tuple[Any, Any, Any] | None:
        """Process flags and infos; return the observations, rewards and infos that are left, None at the end."""
        self.episode_steps += 1
        obs, rewards, terminateds, truncateds, infos = validate_step(result, self._wrong)
        over = any(self._flags(ALL, terminateds, truncateds))
        flagged = any_set(terminateds, truncateds, self.where)
        if over:
            self._finish(obs, rewards, terminateds, truncateds, infos, events)
            return None
        layout = self.waiting
        if COMMON in infos:
            self._share(infos[COMMON], events)
        elif all_empty(infos):
            layout.empty_infos = {agent: {} for agent in infos}
            infos = _NO_INFO
        if flagged:
            self._add_rewards(rewards, obs, terminateds, truncateds, events)
            self._hold_zeros(rewards)
            return self._end_flagged(obs, terminateds, truncateds, infos, events), {}, infos
        layout.no_terminateds, layout.no_truncateds = lasting(terminateds), lasting(truncateds)
        for kept, flags in ((layout.no_terminateds, terminateds), (layout.no_truncateds, truncateds)):
            if kept is None:
                refuse_none(flags, self.where)
        return obs, rewards, infos

    def step_plain(self, obs: Mapping[AgentId, Any], rewards: Mapping[AgentId, float]) -> bool:
        """Process new observations and finite rewards of the agents that wait; False, and no change, if there is more.

        A fast path of `step`.
        """
        layout = self.waiting
        if type(obs) is not dict or [*obs] != layout.agents:
            return False
        if self.held or layout.checked_at != self._num_ends or not rewards.keys() <= obs.keys():
            return False
        self.episode_steps += 1
        self.obs, self.infos = [*obs.values()], layout.no_infos
        self.rewards = [rewards.get(agent, 0.0) for agent in obs] if rewards else layout.no_rewards
        return True

    def add_rewards(self, rewards: Mapping[AgentId, Any], events: PollEvents) -> None:
        """Hold rewards that came before the episode's first observation, or while agents wait."""
        self._add_rewards(rewards, (), _NO_FLAGS, _NO_FLAGS, events)

    def truncate(self, events: PollEvents) -> None:
        """End the running episode as truncated, because of a reset from outside."""
        self._drop_joins(events)
        self._finish({}, {}, {ALL: False}, {ALL: True}, {}, events)

    def lose(self, rewards: Mapping[AgentId, Any], events: PollEvents) -> None:
        """End an episode that crashed or lost its caller, without an outcome of the last actions.

        The last row of each agent is withdrawn. No action can own the `rewards` since then: they become unclaimed.
        """
        self._drop_joins(events)
        pending = dict(self.held)
        for agent, reward in rewards.items():
            pending[agent] = pending.get(agent, 0.0) + self._number(agent, reward)
        self._report_unclaimed(pending, events)
        events.ended += [
            End(self.slots[agent], self.env_id, agent, 0.0, False, True, None, {}, withdrawn=True)
            for agent in self.alive()
        ]
        self._dead |= self._alive
        self._alive.clear()
        self._num_ends += 1
        self._close_episode((False, True), events)
        events.episodes[-1] = events.episodes[-1]._replace(faulty=True)

    def _drop_joins(self, events: PollEvents) -> None:
        """Forget trajectories that began in an episode of which no poll has reported anything."""
        for join in events.joined:
            if join.env_index == self.env_index and join.agent_id in self._alive:
                self.leave(join.agent_id)
        events.joined = [join for join in events.joined if join.env_index != self.env_index]

    def by_agent(self) -> tuple[dict[AgentId, Any], dict[AgentId, Any]]:
        """Return the observations and infos of the agents that wait."""
        agents = self.waiting.agents
        return dict(zip(agents, self.obs, strict=True)), dict(zip(agents, self.infos, strict=True))

    def alive(self) -> list[AgentId]:
        """Return the agents with a running trajectory, in the order of their slots' first use."""
        return [agent for agent in self.slots if agent in self._alive]

    @property
    def all_ended(self) -> bool:
        """Whether agents appeared in this episode and all have ended."""
        return bool(self._dead) and not self._alive

    # For external episodes: a tracker serves one episode id after the other, and some agents have no rows here.

    def reopen(self, env_id: EnvId) -> None:
        """Serve another episode id from now on; agents keep their slots."""
        self.env_id = env_id
        self.episode_steps = 0
        for agent, slot in self.slots.items():
            self._allocator.seats[slot] = env_id, agent

    def enter(self, agent: AgentId) -> tuple[int, Join | None]:
        """Return the slot of an agent without rows, and its join if its trajectory begins."""
        if agent not in self.slots:
            self._new_layout((agent,))
        slot = self.slots[agent]
        if agent in self._alive:
            return slot, None
        self._alive.add(agent)
        self._dead.discard(agent)
        return slot, Join(slot, self.env_id, agent, self.env_index)

    def leave(self, agent: AgentId) -> None:
        """End the trajectory of an agent."""
        self._alive.discard(agent)
        self._dead.add(agent)
        self._num_ends += 1

    def close(self, terminated: bool, truncated: bool) -> EpisodeEnd:
        """End an episode whose agents entered and left."""
        events = PollEvents()
        self._close_episode((terminated, truncated), events)
        return events.episodes[0]

    def _add_rewards(
        self, rewards: Any, obs: Any, terminateds: Any, truncateds: Any, events: PollEvents
    ) -> None:
        held = self.held
        for agent, reward in rewards.items():
            try:
                if not reward and reward == 0:
                    continue
            except (ValueError, RuntimeError):
                # An array or a tensor of several elements, which `_number` refuses with the agent's name.
                pass
            if agent in self._dead and (agent not in obs or terminateds.get(agent) or truncateds.get(agent)):
                events.unclaimed.append(
                    Unclaimed(self.env_id, agent, self._number(agent, reward), self.env_index)
                )
            else:
                if type(reward) is not float or not math.isfinite(reward):
                    reward = self._number(agent, reward)
                held[agent] = held.get(agent, 0.0) + reward

    def _hold_zeros(self, rewards: Any) -> None:
        """Hold rewards of 0 of agents that have not appeared: a return of 0 is one, too."""
        if self._possible and len(self._possible) > len(self._alive) + len(self._dead):
            known = self._alive | self._dead
            for agent in [one for one in rewards if one in self._possible and one not in known]:
                self.held.setdefault(agent, 0.0)

    def _report_unclaimed(self, rewards: Mapping[AgentId, float], events: PollEvents) -> None:
        events.unclaimed += [
            Unclaimed(self.env_id, agent, reward, self.env_index)
            for agent, reward in rewards.items()
            if reward
        ]

    def _end_flagged(
        self, obs: Any, terminateds: Any, truncateds: Any, infos: Any, events: PollEvents
    ) -> dict[AgentId, Any]:
        """End the agents whose own flag is set; return the observations of the others."""
        both = (terminateds, truncateds)
        flagged = dict.fromkeys(a for flags in both for a in flags if flag_of(flags, a, self.where))
        for agent in flagged:
            flags = self._flags(agent, terminateds, truncateds)
            self._end(agent, flags, obs.get(agent), infos.get(agent, _NO_INFO), events)
        return {agent: value for agent, value in obs.items() if agent not in flagged}

    def _end(
        self,
        agent: AgentId,
        flags: tuple[bool, bool],
        obs: object,
        info: Mapping[str, Any],
        events: PollEvents,
    ) -> None:
        """End an agent's trajectory; if it has none, its pending reward becomes unclaimed."""
        paid, reward = agent in self.held, self.held.pop(agent, 0.0)
        self._check_info(agent, info)
        if agent in self._alive:
            self.leave(agent)
            events.ended.append(
                End(self.slots[agent], self.env_id, agent, reward, *flags, own_copy(obs), info)
            )
            if len(self.slots) > _KEPT_SLOTS and not (self._possible and agent in self._possible):
                self._release([agent])
        else:
            if obs is None:
                self._refuse_unknown(agent, "a done flag was set for")
            if paid:
                events.unclaimed.append(Unclaimed(self.env_id, agent, reward, self.env_index))
            self._dead.add(agent)

    def _finish(
        self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, infos: Any, events: PollEvents
    ) -> None:
        self._add_rewards(rewards, (), terminateds, truncateds, events)
        self._hold_zeros(rewards)
        of_all = self._flags(ALL, terminateds, truncateds)
        for agent in self.alive():
            own = self._flags(agent, terminateds, truncateds)
            flags = own if any(own) else of_all
            self._end(agent, flags, obs.get(agent), infos.get(agent, _NO_INFO), events)
        for agent, reward in self.held.items():
            self._refuse_unknown(agent, f"a reward of {reward} was paid to")
            events.unclaimed.append(Unclaimed(self.env_id, agent, reward, self.env_index))
        if COMMON in infos:
            self._check_info(COMMON, infos[COMMON])
        self._close_episode(of_all, events, infos.get(COMMON))

    def _close_episode(
        self, flags: tuple[bool, bool], events: PollEvents, info: Mapping[str, Any] | None = None
    ) -> None:
        if events.shared_infos:
            info = events.take_shared(self.env_id, info)
        place, unclaimed = (self.episode_steps, self.env_index), len(events.unclaimed)
        events.episodes.append(EpisodeEnd(self.env_id, *flags, *place, unclaimed, info=info))
        self.held.clear()
        # Agents that were not in the episode may never return.
        self._release([agent for agent in self.slots if agent not in self._dead])
        self._dead.clear()
        self.waiting = self._none_waiting
        self.obs, self.rewards, self.infos = [], [], []

    def _refuse_unknown(self, agent: AgentId, what: str) -> None:
        if self._possible is not None and agent not in self._possible and agent not in self._dead:
            raise self._wrong(
                "step",
                f"{what} {agent!r}, which never appeared in the episode",
                f"one of possible_agents {', '.join(sorted(map(repr, self._possible))[:8])}",
                "check the spelling of the agent id",
                "ME027",
            )

    def _set_waiting(self, obs: Any, infos: Any, events: PollEvents) -> None:
        layout = self.waiting
        if list(obs) != layout.agents:
            key = tuple(obs)
            layout = self._layouts.get(key) or self._new_layout(key)
        if layout.checked_at != self._num_ends:
            self._join_missing(layout, events)
        self.waiting = layout
        self.obs = list(obs.values())
        held = self.held
        self.rewards = [held.pop(agent, 0.0) for agent in layout.agents] if held else layout.no_rewards
        self.infos = self._infos_of(infos, layout) if infos else layout.no_infos

    def _join_missing(self, layout: WaitingAgents, events: PollEvents) -> None:
        for agent in layout.agents:
            if agent not in self._alive:
                self._alive.add(agent)
                self._dead.discard(agent)
                events.joined.append(Join(self.slots[agent], self.env_id, agent, self.env_index))
        layout.checked_at = self._num_ends

    def _new_layout(self, agents: tuple[AgentId, ...]) -> WaitingAgents:
        """Give each agent a slot and keep the layout."""
        if len(self._layouts) >= _KEPT_LAYOUTS:
            self._layouts.clear()
        for agent in agents:
            if agent not in self.slots:
                self.slots[agent] = self._allocator.allocate(self.env_id, agent)
        layout = WaitingAgents(list(agents), np.array([self.slots[agent] for agent in agents], np.int64))
        self._layouts[agents] = layout
        return layout

    def _release(self, agents: Iterable[AgentId]) -> None:
        for agent in agents:
            self._allocator.free.append(self.slots.pop(agent))
            self._layouts.clear()

    def release_all(self) -> None:
        """Free all slots: the sub-environment ended for good."""
        self._release(list(self.slots))

    def _infos_of(self, infos: Any, layout: WaitingAgents) -> list[Mapping[str, Any]]:
        if all_empty(infos):
            return layout.no_infos
        agents = layout.agents
        found = [*infos.values()] if [*infos] == agents else [infos.get(agent, _NO_INFO) for agent in agents]
        # One check of all types instead of one per info.
        if not {dict}.issuperset(map(type, found)):
            for agent, info in zip(agents, found, strict=True):
                self._check_info(agent, info)
        return found

    def _share(self, info: Any, events: PollEvents) -> None:
        self._check_info(COMMON, info)
        events.shared_infos.append(SharedInfo(self.env_id, info))

    def _check_info(self, agent: AgentId, info: object) -> None:
        if type(info) is not dict:
            check_info(info, f"{self.where('step')}, agent {agent!r}: info")

    def _number(self, agent: AgentId, reward: object) -> float:
        return as_reward(reward, self.reward_label(agent))

    def reward_label(self, agent: AgentId) -> str:
        """Return the beginning of an error about an agent's reward."""
        return f"{self.where('step')}: the reward of {agent!r}"

    def _wrong(
        self,
        where: str,
        got: str,
        expected: str,
        fix: str = "fix the environment's return value",
        finding: str = "",
    ) -> ContractError:
        return ContractError(f"{self.where(where)}: {got}, expected {expected}; {fix}", finding)

    def where(self, method: str) -> str:
        """Return the beginning of an error of a method."""
        return f"env {self.env_id} {method}, env step {self.episode_steps} of the episode"

    def _flags(self, agent: AgentId, terminateds: Any, truncateds: Any) -> tuple[bool, bool]:
        terminated, truncated = terminateds.get(agent, False), truncateds.get(agent, False)
        if (terminated is True or terminated is False) and (truncated is True or truncated is False):
            return terminated, truncated
        return flag_of(terminateds, agent, self.where), flag_of(truncateds, agent, self.where)
