"""Two PettingZoo games, one for each interface, in which agents end as a plan says and rewards tell who earned what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv

Plan: TypeAlias = Mapping[str, tuple[int, str]]
"""For each agent the step in which it ends, and how: "terminated", "truncated", "both", or "dropped" without a flag."""

OBS = gym.spaces.Box(0.0, 1000.0, (2,), np.float32)
ACTIONS = gym.spaces.Discrete(3)


def seen(number: int, step: int) -> Any:
    return np.array([number, step], np.float32)


class Turns(AECEnv[str, Any, Any]):  # type: ignore[misc] # PettingZoo's types are not read
    """Agents act in turn; in step n the i-th agent alive earns n times 10 to the power i.

    Args:
        plan: Who ends when.
        at_once: Whether a dead agent gets its dead turn before anybody else acts, or when its turn comes.
        stays: Whether dead agents stay among the agents for good.
        masks: Whether infos hold masks: never, "always", or "late".
    """

    metadata = {"name": "turns", "render_modes": []}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, plan: Plan, at_once: bool = True, stays: bool = False, masks: str = "") -> None:
        self.plan, self.at_once, self.stays, self.masks = plan, at_once, stays, masks
        self.possible_agents = list(plan)
        self.steps = 0
        self.dead_steps = 0
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> Any:
        return OBS

    def action_space(self, agent: str) -> Any:
        return ACTIONS

    def observe(self, agent: str) -> Any:
        return seen(self.possible_agents.index(agent), self.steps)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.seeds.append(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {"step": 0} for agent in self.agents}
        self.steps = 0
        self.agent_selection = self.agents[0]
        self._skip_agent_selection = None
        self._mask()

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._dead_step(agent)
            return
        assert action in (0, 1, 2)
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0.0
        self.steps += 1
        for number, earner in enumerate(self.living()):
            self.rewards[earner] = float(self.steps * 10**number)
        self._accumulate_rewards()
        for ending, (step, how) in self.plan.items():
            if step == self.steps:
                self._let_end(ending, how)
        for one in self.agents:
            self.infos[one]["step"] = self.steps
        self._mask()
        self._select_after(agent)
        if self.at_once:
            self._deads_step_first()

    def living(self) -> list[str]:
        return [one for one in self.agents if not (self.terminations[one] or self.truncations[one])]

    def _let_end(self, agent: str, how: str) -> None:
        if how == "dropped":
            self.agents.remove(agent)
        self.terminations[agent] = how in ("terminated", "both")
        self.truncations[agent] = how in ("truncated", "both")

    def _dead_step(self, agent: str) -> None:
        self.dead_steps += 1
        if self.stays:
            self._select_after(agent)
        elif self.at_once:
            self._was_dead_step(None)
        else:
            self._select_after(agent)
            after, skip = self.agent_selection, agent
            self.agent_selection = skip
            self._was_dead_step(None)
            self.agent_selection = after

    def _select_after(self, agent: str) -> None:
        # PettingZoo's bookkeeping of turns put off loses its way if the next one is dead too.
        choice = (self.living() if self.at_once else []) or self.agents
        order = self.possible_agents
        start = order.index(agent) + 1
        for one in order[start:] + order[:start]:
            if one in choice and (one != agent or len(choice) == 1):
                self.agent_selection = one
                return

    def _mask(self) -> None:
        if self.masks == "always" or (self.masks == "late" and self.steps > 0):
            self.infos[self.agents[0]]["action_mask"] = np.array([1, 0, 1], np.int8)


class Together(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """All agents act at once; otherwise the same game."""

    metadata = {"name": "together", "render_modes": []}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, plan: Plan, stays: bool = False, masks: str = "") -> None:
        self.plan, self.stays, self.masks = plan, stays, masks
        self.possible_agents = list(plan)
        self.steps = 0
        self.asked: list[list[str]] = []
        self.given: tuple[Any, ...] = ()

    def observation_space(self, agent: str) -> Any:
        return OBS

    def action_space(self, agent: str) -> Any:
        return ACTIONS

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents = list(self.possible_agents)
        self.steps = 0
        return self._obs(self.agents), self._infos(self.agents)

    def step(self, actions: dict[str, Any]) -> Any:
        self.asked.append(list(actions))
        self.steps += 1
        rewards = {agent: float(self.steps * 10**number) for number, agent in enumerate(actions)}
        hows = {agent: how for agent, (step, how) in self.plan.items() if step <= self.steps}
        there = [agent for agent in self.agents if hows.get(agent) != "dropped"]
        terminations = {agent: hows.get(agent) in ("terminated", "both") for agent in there}
        truncations = {agent: hows.get(agent) in ("truncated", "both") for agent in there}
        self.agents = there if self.stays else [agent for agent in there if agent not in hows]
        self.given = (self._obs(there), rewards, terminations, truncations, self._infos(there))
        return self.given

    def _obs(self, agents: list[str]) -> dict[str, Any]:
        return {agent: seen(self.possible_agents.index(agent), self.steps) for agent in agents}

    def _infos(self, agents: list[str]) -> dict[str, Any]:
        mask = {"action_mask": np.array([1, 0, 1], np.int8)}
        told = self.masks == "always" or (self.masks == "late" and self.steps > 0)
        return {
            agent: {"step": self.steps, **(mask if told and agent == agents[0] else {})} for agent in agents
        }
