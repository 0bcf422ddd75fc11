"""The agents of one sub-environment: who lives, who waits, who is owed how much.

The dict adapters (`multi_agent`, `custom`) hold one `Roster` for each sub-environment and hand it the dicts that
the environment returned; it turns them into rows, joins and ends. It never calls one and knows no policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from menv.adapters.five_dicts import any_set, five_dicts, flag_of, lasting, refuse_none
from menv.adapters.layout import Layout
from menv.adapters.report import Report, all_empty, check_info
from menv.adapters.seating import Seating
from menv.adapters.slot_pool import SlotPool
from menv.base_env import ALL, COMMON, AgentId, End, EnvId, EpisodeEnd, Join, SharedInfo, Unclaimed
from menv.env_calls import as_reward
from menv.errors import ContractError
from menv.nested import own_copy

_NO_INFO: Mapping[str, Any] = {}
_NO_FLAGS: Mapping[AgentId, bool] = {}


class Roster:
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
        self.seating = Seating(env_id, pool)
        self._possible = possible_agents
        self._nobody = Layout([], np.zeros(0, np.int64))
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

    def begin(self, obs: Any, infos: Any, report: Report) -> None:
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

    def step(self, result: Any, report: Report) -> bool:
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

    def _step_with_news(self, result: Any, report: Report) -> bool:
        self.episode_steps += 1
        obs, rewards, terminateds, truncateds, infos = five_dicts(result, self._wrong)
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

    def _show(self, obs: Any, rewards: Any, infos: Any, report: Report) -> None:
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

    def credit(self, rewards: Mapping[AgentId, Any], report: Report) -> None:
        """Take in rewards that were paid before the episode's first observation, or while agents wait."""
        self._pay(rewards, (), _NO_FLAGS, _NO_FLAGS, report)

    def abandon(self, report: Report) -> None:
        """End the running episode as truncated, for a reset from outside."""
        self._forget_untold(report)
        self._finish({}, {}, {ALL: False}, {ALL: True}, {}, report)

    def _forget_untold(self, report: Report) -> None:
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

    def _pay(self, rewards: Any, obs: Any, terminateds: Any, truncateds: Any, report: Report) -> None:
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
        self, obs: Any, terminateds: Any, truncateds: Any, infos: Any, report: Report
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
        report: Report,
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
        self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, infos: Any, report: Report
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
        self, flags: tuple[bool, bool], report: Report, info: Mapping[str, Any] | None = None
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

    def _await(self, obs: Any, infos: Any, report: Report) -> None:
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

    def _infos_of(self, infos: Any, layout: Layout) -> list[Mapping[str, Any]]:
        if all_empty(infos):
            return layout.no_infos
        agents = layout.agents
        found = [*infos.values()] if [*infos] == agents else [infos.get(agent, _NO_INFO) for agent in agents]
        # One look at all types instead of one at each info.
        if not {dict}.issuperset(map(type, found)):
            for agent, info in zip(agents, found, strict=True):
                self._check_info(agent, info)
        return found

    def _share(self, info: Any, report: Report) -> None:
        self._check_info(COMMON, info)
        report.shared_infos.append(SharedInfo(self.env_id, info))

    def _check_info(self, agent: AgentId, info: Any) -> None:
        if type(info) is not dict:
            check_info(
                info, f"env {self.env_id} step, env step {self.episode_steps} of the episode, agent {agent!r}"
            )

    def _join_missing(self, layout: Layout, report: Report) -> None:
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
