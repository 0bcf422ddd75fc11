"""The agents of one sub-environment: who lives, who waits, who is owed how much.

The dict adapters (`multi_agent`, `custom`) hold one `AgentTracker` for each sub-environment and hand it the dicts that
the environment returned; it turns them into rows, joins and ends. It never calls one and knows no policies.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from menv.adapters.poll_events import PollEvents, all_empty, check_info
from menv.adapters.validation import any_set, flag_of, lasting, refuse_none, validate_step
from menv.base_env import (
    ALL,
    COMMON,
    SINGLE_AGENT,
    AgentId,
    End,
    EnvId,
    EpisodeEnd,
    IntArray,
    Join,
    SharedInfo,
    Unclaimed,
)
from menv.errors import ContractError
from menv.spaces import as_reward, own_copy

# SEAM menv.adapters.slot_pool
# Slots: the small integers that stand for a trajectory while it lives.
#
# Shared by all sub-environments of one adapter. It knows nothing about who sits on a slot beyond the
# pair `(env_id, agent_id)` that error messages and dict views print.


class SlotPool:
    """Gives out freed slots before new ones, so that arrays indexed by slot stay short.

    Attributes:
        seats: `seats[slot]` is the `(env_id, agent_id)` that has, or had last, the slot.
    """

    def __init__(self) -> None:
        self.seats: list[tuple[EnvId, AgentId]] = []
        # The slots that were given back, in the order in which they were.
        self.free: list[int] = []

    def take(self, env_id: EnvId, agent_id: AgentId) -> int:
        """Return a slot for an agent."""
        if self.free:
            slot = self.free.pop()
            self.seats[slot] = (env_id, agent_id)
            return slot
        self.seats.append((env_id, agent_id))
        return len(self.seats) - 1

    def put(self, state: tuple[Sequence[tuple[EnvId, AgentId]], Sequence[int]]) -> None:
        """Take over the seats and the free slots of another pool."""
        self.seats[:], self.free[:] = state

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Undo afterwards whatever was taken and given back."""
        before = list(self.seats), list(self.free)
        try:
            yield
        finally:
            self.put(before)


# SEAM menv.adapters.layout
# The agents that wait together in one sub-environment, and their slots.
#
# `roster` makes layouts, and keeps those that come again; adapters join them into the rows of a poll.


_NO_INFO: Mapping[str, Any] = {}


class WaitingAgents:
    """The agents that wait together, in the environment's order, and their slots.

    Attributes:
        agents: Who waits.
        slots: [R] theirs; `slot_list` and `slot_bytes` are the same.
        no_rewards: R zeros.
        no_infos: R empty infos.
        checked_at: When a roster last looked whether they all live.
        no_terminateds: What a step that ended nobody's life said of ends when these agents had acted, None before one.
        no_truncateds: Likewise.
        empty_infos: The infos, likewise, where they said nothing.
        no_pay: The rewards, likewise, where nobody was paid.
    """

    __slots__ = (
        "agents", "checked_at", "empty_infos", "no_infos", "no_pay", "no_rewards", "no_terminateds", "no_truncateds",
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
        self.no_pay: Mapping[AgentId, Any] | None = None


def join_slots(layouts: list[WaitingAgents]) -> IntArray:
    """Return the slots of all layouts, one after the other."""
    # A third of what it takes to join lists, or a concatenation of arrays.
    return np.frombuffer(b"".join([layout.slot_bytes for layout in layouts]), np.int64)


# SEAM menv.adapters.seating
# The slots of the agents of one sub-environment, and the layouts in which they have waited.
#
# A `Roster` keeps one. Slots of agents that are gone are kept for their return, so that layouts stay the same
# objects. It
# knows neither lives nor rewards.


_KEPT_SLOTS = 256
_KEPT_LAYOUTS = 256


class SlotAllocator:
    """Who has which slot.

    Args:
        env_id: Of the sub-environment.
        pool: Where slots come from.

    Attributes:
        slots: The slot of each agent that has one, in the order of first use.
        layouts: By the agents that wait, in the environment's order; it stays the same dict.
    """

    def __init__(self, env_id: EnvId, pool: SlotPool) -> None:
        self.slots: dict[AgentId, int] = {}
        self.layouts: dict[tuple[AgentId, ...], WaitingAgents] = {}
        self._env_id = env_id
        self._pool = pool

    @property
    def crowded(self) -> bool:
        """Whether so many agents have a slot that those who are gone had better give theirs back."""
        return len(self.slots) > _KEPT_SLOTS

    def new_layout(self, agents: tuple[AgentId, ...]) -> WaitingAgents:
        """Give each agent a slot and remember the layout.

        Raises:
            ContractError: One has the name under which infos of everybody are given.
        """
        if COMMON in agents:
            raise ContractError(
                f"env {self._env_id}: an agent is called {COMMON!r}, expected another name: infos under it are of the "
                "whole environment; rename the agent"
            )
        if len(self.layouts) >= _KEPT_LAYOUTS:
            self.layouts.clear()
        for agent in agents:
            if agent not in self.slots:
                self.slots[agent] = self._pool.take(self._env_id, agent)
        layout = WaitingAgents(list(agents), np.array([self.slots[agent] for agent in agents], np.int64))
        self.layouts[agents] = layout
        return layout

    def release(self, agents: Iterable[AgentId]) -> None:
        """Free the slots of agents."""
        for agent in agents:
            self._pool.free.append(self.slots.pop(agent))
            self.layouts.clear()

    def release_all_but(self, agents: Collection[AgentId]) -> None:
        """Free the slots of all who are not among some agents."""
        self.release([agent for agent in self.slots if agent not in agents])

    def move(self, env_id: EnvId) -> None:
        """Stand for another sub-environment from now on; agents keep their slots."""
        self._env_id = env_id
        for agent, slot in self.slots.items():
            self._pool.seats[slot] = env_id, agent


_NO_FLAGS: Mapping[AgentId, bool] = {}


class AgentTracker:
    """Bookkeeping of one sub-environment.

    Attributes:
        waiting: The agents that wait for an action.
        obs: Their observations, as the environment gave them.
        rewards: What each of them earned since its previous row.
        infos: Their info dicts.
        episode_steps: Env steps of the running episode.
        answered: Whether anybody has been answered since the last reset; set by the adapter.
        seating: Whose the slots are.
    """

    def __init__(
        self, env_id: EnvId, env_index: int, pool: SlotPool, possible_agents: frozenset[AgentId] | None
    ) -> None:
        self.env_id = env_id
        self.env_index = env_index
        self.obs: list[Any] = []
        self.rewards: list[float] = []
        self.infos: list[Mapping[str, Any]] = []
        self.episode_steps = 0
        self.answered = False
        self.seating = SlotAllocator(env_id, pool)
        self._possible = possible_agents
        self._nobody = WaitingAgents([], np.zeros(0, np.int64))
        self.waiting = self._nobody
        self._layouts, self.slots = self.seating.layouts, self.seating.slots
        self._alive: set[AgentId] = set()
        self._dead: set[AgentId] = set()
        # Rewards that wait for their agent's next row.
        self.held: dict[AgentId, float] = {}
        # Counts ends: a layout whose agents were all alive at this count needs no second look.
        self._lives = 0

    @property
    def known(self) -> set[AgentId]:
        """Agents that have a slot: those of this episode and some of earlier ones."""
        return set(self.slots)

    def begin(self, obs: Any, infos: Any, report: PollEvents) -> None:
        """Take in what `reset` returned."""
        if not isinstance(obs, dict):
            raise self._wrong("reset", f"observations are {type(obs).__name__}", "a dict keyed by agent id")
        if ALL in obs:
            raise self._wrong("reset", f"{ALL!r} is among the observations", "agent ids only")
        self.episode_steps = 0
        self.answered = False
        if not isinstance(infos, dict):
            raise self._wrong("reset", f"infos are {type(infos).__name__}", "a dict keyed by agent id")
        if COMMON in infos:
            self._share(infos[COMMON], report)
        self._await(obs, infos, report)

    def step(self, result: Any, report: PollEvents) -> bool:
        """Take in what `step` returned; True if the episode is over and a reset is due.

        Raises:
            ContractError: The five dicts break the contract of `MultiAgentEnv`.
        """
        layout = self.waiting
        try:
            obs, rewards, terminateds, truncateds, infos = result
            # As a rule flags and infos are what they were the last time: to compare dicts is cheaper than to look into
            # them.
            quiet = (
                type(obs) is type(rewards) is type(infos) is dict
                and terminateds == layout.no_terminateds
                and truncateds == layout.no_truncateds
                and infos == layout.empty_infos
            )
        except (TypeError, ValueError, RuntimeError):
            quiet = False
        if not quiet or ALL in rewards or ALL in obs:
            return self._step_with_news(result, report)
        self.episode_steps += 1
        self._show(obs, rewards, _NO_INFO, report)
        return False

    def _step_with_news(self, result: Any, report: PollEvents) -> bool:
        self.episode_steps += 1
        obs, rewards, terminateds, truncateds, infos = validate_step(result, self._wrong)
        over = any(self._flags(ALL, terminateds, truncateds))
        flagged = any_set(terminateds, self._where) or any_set(truncateds, self._where)
        if over:
            self._finish(obs, rewards, terminateds, truncateds, infos, report)
            return True
        layout = self.waiting
        if COMMON in infos:
            self._share(infos[COMMON], report)
        elif all_empty(infos):
            layout.empty_infos = {agent: {} for agent in infos}
            infos = _NO_INFO
        if flagged:
            self._pay(rewards, obs, terminateds, truncateds, report)
            self._await(self._end_flagged(obs, terminateds, truncateds, infos, report), infos, report)
        else:
            layout.no_terminateds, layout.no_truncateds = lasting(terminateds), lasting(truncateds)
            for seen, flags in ((layout.no_terminateds, terminateds), (layout.no_truncateds, truncateds)):
                if seen is None:
                    refuse_none(flags, self._where)
            self._show(obs, rewards, infos, report)
        return False

    def _show(self, obs: Any, rewards: Any, infos: Any, report: PollEvents) -> None:
        layout = self.waiting
        if not self.held and [*obs] == layout.agents == [*rewards] and layout.checked_at == self._lives:
            # The same agents as last time, each paid for its own action: nothing to look up.
            self.obs, self.rewards = [*obs.values()], [*rewards.values()]
            self.infos = self._infos_of(infos, layout) if infos else layout.no_infos
            return
        if self.held or (rewards and self._some_paid(rewards)):
            self._pay(rewards, obs, _NO_FLAGS, _NO_FLAGS, report)
        self._await(obs, infos, report)

    def go_on(self, obs: Mapping[AgentId, Any]) -> bool:
        """Take in a step that shows those who wait something new and nothing else; False where it does more than that.

        It is `step` with nothing to look up; if it returns False, nothing has been done.
        """
        layout = self.waiting
        if type(obs) is not dict or [*obs] != layout.agents:
            return False
        if self.held or layout.checked_at != self._lives:
            return False
        self.episode_steps += 1
        self.obs = [*obs.values()]
        self.rewards, self.infos = layout.no_rewards, layout.no_infos
        return True

    def credit(self, rewards: Mapping[AgentId, Any], report: PollEvents) -> None:
        """Take in rewards that were paid before the episode's first observation, or while agents wait."""
        self._pay(rewards, (), _NO_FLAGS, _NO_FLAGS, report)

    def abandon(self, report: PollEvents) -> None:
        """End the running episode as truncated, for a reset from outside."""
        self._forget_untold(report)
        self._finish({}, {}, {ALL: False}, {ALL: True}, {}, report)

    def _forget_untold(self, report: PollEvents) -> None:
        for join in report.joined:
            if join.env_index == self.env_index and join.agent_id in self._alive:
                self._alive.remove(join.agent_id)
                self._lives += 1
                self._dead.add(join.agent_id)
        report.joined = [join for join in report.joined if join.env_index != self.env_index]

    def by_agent(self) -> tuple[dict[AgentId, Any], dict[AgentId, Any]]:
        """Return the observations and the infos that agents wait with, by agent."""
        agents = self.waiting.agents
        return dict(zip(agents, self.obs, strict=True)), dict(zip(agents, self.infos, strict=True))

    def living(self) -> list[AgentId]:
        """Return the agents whose trajectories go on, in the order of their slots' first use."""
        return [agent for agent in self.slots if agent in self._alive]

    def _nobody_waits(self) -> None:
        self.waiting = self._nobody
        self.obs, self.rewards, self.infos = [], [], []

    def _some_paid(self, rewards: Any) -> bool:
        layout = self.waiting
        try:
            if rewards == layout.no_pay:
                return False
            # Counted in one go; a reward that is no number is none of the zeros.
            if [*rewards.values()].count(0) < len(rewards):
                return True
            layout.no_pay = lasting(rewards)
            return False
        except ValueError:
            # An array instead of a number; this names whose.
            return bool([self.number(agent, reward) for agent, reward in rewards.items()])

    def _pay(self, rewards: Any, obs: Any, terminateds: Any, truncateds: Any, report: PollEvents) -> None:
        held = self.held
        for agent, reward in rewards.items():
            if not reward and reward == 0:
                continue
            if agent in self._dead and (agent not in obs or terminateds.get(agent) or truncateds.get(agent)):
                report.unclaimed.append(
                    Unclaimed(self.env_id, agent, self.number(agent, reward), self.env_index)
                )
            else:
                if type(reward) is not float or not math.isfinite(reward):
                    reward = self.number(agent, reward)
                held[agent] = held.get(agent, 0.0) + reward

    def _end_flagged(
        self, obs: Any, terminateds: Any, truncateds: Any, infos: Any, report: PollEvents
    ) -> dict[AgentId, Any]:
        """End the agents whose own flag is set; return the observations of the others."""
        flagged = [agent for agent, flag in terminateds.items() if flag]
        flagged += [agent for agent, flag in truncateds.items() if flag and agent not in flagged]
        for agent in flagged:
            terminated, truncated = self._flags(agent, terminateds, truncateds)
            self._end(agent, terminated, truncated, obs.get(agent), infos.get(agent, _NO_INFO), report)
        return {agent: value for agent, value in obs.items() if agent not in flagged}

    def _end(
        self,
        agent: AgentId,
        terminated: bool,
        truncated: bool,
        obs: Any,
        info: Mapping[str, Any],
        report: PollEvents,
    ) -> None:
        """Close an agent's trajectory; without one, what it is owed becomes unclaimed."""
        reward = self.held.pop(agent, 0.0)
        if type(info) is not dict:
            self._check_info(agent, info)
        if agent in self._alive:
            self._alive.remove(agent)
            self._lives += 1
            report.ended.append(
                End(self.slots[agent], self.env_id, agent, reward, terminated, truncated, own_copy(obs), info)
            )
            if self.seating.crowded and not (self._possible and agent in self._possible):
                self.seating.release([agent])
        else:
            if obs is None:
                self._refuse_stranger(agent, "a done flag was set for")
            if reward:
                report.unclaimed.append(Unclaimed(self.env_id, agent, reward, self.env_index))
        self._dead.add(agent)

    def _finish(
        self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, infos: Any, report: PollEvents
    ) -> None:
        self._pay(rewards, (), terminateds, truncateds, report)
        everyone = self._flags(ALL, terminateds, truncateds)
        for agent in self.living():
            own = self._flags(agent, terminateds, truncateds)
            terminated, truncated = own if any(own) else everyone
            self._end(agent, terminated, truncated, obs.get(agent), infos.get(agent, _NO_INFO), report)
        for agent, reward in self.held.items():
            self._refuse_stranger(agent, f"a reward of {reward} was paid to")
            report.unclaimed.append(Unclaimed(self.env_id, agent, reward, self.env_index))
        if COMMON in infos:
            self._check_info(COMMON, infos[COMMON])
        self._close_episode(everyone, report, infos.get(COMMON))

    def _close_episode(
        self, flags: tuple[bool, bool], report: PollEvents, info: Mapping[str, Any] | None = None
    ) -> None:
        terminated, truncated = flags
        if report.shared_infos:
            info = report.take_shared(self.env_id, info)
        place, unclaimed = (self.episode_steps, self.env_index), len(report.unclaimed)
        report.episodes.append(EpisodeEnd(self.env_id, terminated, truncated, *place, unclaimed, info=info))
        self.held.clear()
        # Those who did not take part in the episode may never come again.
        self.seating.release_all_but(self._dead)
        self._dead.clear()
        self._nobody_waits()

    def _refuse_stranger(self, agent: AgentId, what: str) -> None:
        if self._possible is not None and agent not in self._possible and agent not in self._dead:
            raise self._wrong(
                "step",
                f"{what} {agent!r}, which never appeared in the episode",
                f"one of possible_agents {', '.join(sorted(map(repr, self._possible))[:8])}",
                "check the spelling of the agent id",
            )

    def _await(self, obs: Any, infos: Any, report: PollEvents) -> None:
        layout = self.waiting
        if list(obs) != layout.agents:
            key = tuple(obs)
            layout = self._layouts.get(key) or self.seating.new_layout(key)
        if layout.checked_at != self._lives:
            self._join_missing(layout, report)
        self.waiting = layout
        self.obs = list(obs.values())
        held = self.held
        self.rewards = [held.pop(agent, 0.0) for agent in layout.agents] if held else layout.no_rewards
        self.infos = self._infos_of(infos, layout) if infos else layout.no_infos

    def _infos_of(self, infos: Any, layout: WaitingAgents) -> list[Mapping[str, Any]]:
        if all_empty(infos):
            return layout.no_infos
        agents = layout.agents
        found = [*infos.values()] if [*infos] == agents else [infos.get(agent, _NO_INFO) for agent in agents]
        # One look at all types instead of one at each info.
        if not {dict}.issuperset(map(type, found)):
            for agent, info in zip(agents, found, strict=True):
                self._check_info(agent, info)
        return found

    def _share(self, info: Any, report: PollEvents) -> None:
        self._check_info(COMMON, info)
        report.shared_infos.append(SharedInfo(self.env_id, info))

    def _check_info(self, agent: AgentId, info: Any) -> None:
        if type(info) is not dict:
            check_info(
                info, f"env {self.env_id} step, env step {self.episode_steps} of the episode, agent {agent!r}"
            )

    def _join_missing(self, layout: WaitingAgents, report: PollEvents) -> None:
        for agent in layout.agents:
            if agent not in self._alive:
                self._alive.add(agent)
                self._dead.discard(agent)
                report.joined.append(Join(self.slots[agent], self.env_id, agent, self.env_index))
        layout.checked_at = self._lives

    def number(self, agent: AgentId, reward: Any) -> float:
        """Return a reward as a float; raise if it is no finite number, with the env step."""
        if type(reward) is float and math.isfinite(reward):
            return reward
        return as_reward(reward, self.whose(agent))

    def whose(self, agent: AgentId) -> str:
        """Return what begins a message about an agent's reward."""
        return (
            f"env {self.env_id} step, env step {self.episode_steps} of the episode: the reward of {agent!r}"
        )

    def _wrong(
        self, where: str, got: str, expected: str, fix: str = "mend the environment's return value"
    ) -> ContractError:
        return ContractError(f"{self._where(where)}: {got}, expected {expected}; {fix}")

    def _where(self, method: str) -> str:
        return f"env {self.env_id} {method}, env step {self.episode_steps} of the episode"

    def _flags(self, agent: AgentId, terminateds: Any, truncateds: Any) -> tuple[bool, bool]:
        ended, cut = terminateds.get(agent, False), truncateds.get(agent, False)
        if (ended is True or ended is False) and (cut is True or cut is False):
            return ended, cut
        return flag_of(terminateds, agent, self._where), flag_of(truncateds, agent, self._where)


# SEAM menv.adapters.breakable_roster
# The agents of an episode that may be broken off where nobody knows what the last actions led to.
#
# `multi_agent` keeps one for each sub-environment, because a sub-environment may raise; the roster of
# external episodes
# builds on it, because a caller may be lost. Like a `AgentTracker` it never calls an environment.


class InterruptibleAgentTracker(AgentTracker):
    """A `AgentTracker` whose episode may be lost."""

    def lose(self, rewards: Mapping[AgentId, Any], report: PollEvents, *, faulty: bool = False) -> None:
        """Break the episode off; the last row of each agent that lives is withdrawn.

        Args:
            rewards: What was paid since; no action can own it.
            report: Told of the ends.
            faulty: Whether a fault of the environment is what broke it off.
        """
        self._forget_untold(report)
        owed = dict(self.held)
        for agent, reward in rewards.items():
            owed[agent] = owed.get(agent, 0.0) + self.number(agent, reward)
        report.unclaimed += [
            Unclaimed(self.env_id, agent, reward, self.env_index) for agent, reward in owed.items() if reward
        ]
        report.ended += [
            End(self.slots[agent], self.env_id, agent, 0.0, False, True, None, {}, withdrawn=True)
            for agent in self.living()
        ]
        self._dead |= self._alive
        self._alive.clear()
        self._lives += 1
        self._close_episode((False, True), report)
        if faulty:
            report.episodes[-1] = report.episodes[-1]._replace(faulty=True)


# SEAM menv.adapters.external_roster
# The agents of an external episode, which may be lost, or played elsewhere.
#
# `menv.adapters.external` keeps one for each open episode, and uses it again for the next one.


_ALONE: list[AgentId] = [SINGLE_AGENT]


class ExternalAgentTracker(InterruptibleAgentTracker):
    """A `Roster` that can stand for one episode after the other."""

    def reopen(self, env_id: EnvId) -> None:
        """Stand for another sub-environment from now on, between two episodes; agents keep their slots."""
        self.env_id = env_id
        self.episode_steps = 0
        self.seating.move(env_id)

    @property
    def alone(self) -> bool:
        """Whether the one agent of an episode without agent ids waits, and nothing is owed to it."""
        waiting = self.waiting
        return waiting.agents == _ALONE and not self.held and waiting.checked_at == self._lives

    def enter(self, agent: AgentId) -> tuple[int, Join | None]:
        """Return an agent's slot, and its join if a life begins, for those whose rows come from elsewhere."""
        if agent not in self.slots:
            self.seating.new_layout((agent,))
        slot = self.slots[agent]
        if agent in self._alive:
            return slot, None
        self._alive.add(agent)
        self._dead.discard(agent)
        return slot, Join(slot, self.env_id, agent, self.env_index)

    def leave(self, agent: AgentId) -> None:
        """Note that the life of an agent that entered is over."""
        self._alive.discard(agent)
        self._dead.add(agent)
        self._lives += 1

    def close(self, terminated: bool, truncated: bool) -> EpisodeEnd:
        """End the episode of agents that entered and left."""
        report = PollEvents()
        self._close_episode((terminated, truncated), report)
        return report.episodes[0]
