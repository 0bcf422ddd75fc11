"""Two environments whose numbers are known from the classic system's own tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.base_env import ALL
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from tests.worlds import Several


class Together(Several):
    """N agents that all act at every step, see 0, earn 1 and end together after `length` env steps."""

    observation_space: Any = gym.spaces.Discrete(2)

    def __init__(self, count: int = 5, length: int = 25) -> None:
        super().__init__()
        self.possible_agents, self.length = list(range(count)), length

    def see(self, agent: Any) -> Any:
        return 0

    def dead(self, actions: Any) -> Any:
        assert list(actions) == self.possible_agents
        return self.possible_agents if self.at == self.length else []


class RoundRobin(MultiAgentEnv):
    """N agents that act in turn, five times each; an agent learns at its next turn what it earned.

    The observation counts an agent's actions, each action but the fifth earns 100, and the episode ends
    when all agents but the last have seen their end.
    """

    def __init__(self, count: int = 5) -> None:
        super().__init__()
        self.possible_agents = list(range(count))
        self.observation_space = gym.spaces.Discrete(6)
        self.action_space = gym.spaces.Discrete(2)
        self.acted = [0] * count
        self.turn = 0

    def reset(self, **kwargs: Any) -> tuple[AgentDict, AgentDict]:
        self.acted = [0] * len(self.possible_agents)
        self.turn = 0
        return {0: 0}, {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        for agent in action_dict:
            self.acted[agent] += 1
        self.turn = (self.turn + 1) % len(self.possible_agents)
        agent, acted = self.turn, self.acted[self.turn]
        done = acted == 5
        gone = sum(self.acted[other] == 5 for other in range(agent)) + done
        reward = 100.0 if 0 < acted < 5 else 0.0
        over = done and gone == len(self.possible_agents) - 1
        return {agent: acted}, {agent: reward}, {agent: done, ALL: over}, {ALL: False}, {}
