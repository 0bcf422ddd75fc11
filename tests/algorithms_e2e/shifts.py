"""An environment whose agents come, pause, die and come back, for tests that look at several of them at once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

# Who is shown an observation at each env step; after the last one the episode is over.
PRESENT = ("ab", "abc", "ac", "abc", "abc", "abc")
NUMBERS = {"a": 1.0, "b": 2.0, "c": 3.0}


class Shifts(MultiAgentEnv):
    """Three agents, one step each row of `PRESENT`; "b" pauses in step 2, "a" dies in step 3 and is back in step 4.

    - Observation: the agent's number and the env step of the episode.
    - Reward: the env step, to everybody who acted.
    - End: terminated, or truncated if the config says `{"truncate": True}`, after five env steps; all see step 5.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.possible_agents = ["a", "b", "c"]
        self.observation_space = gym.spaces.Box(0.0, 10.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self._truncate = bool((config or {}).get("truncate"))

    def observe(self) -> AgentDict:
        return {agent: np.array([NUMBERS[agent], self.at], np.float32) for agent in PRESENT[self.at]}

    def reset(self, **kwargs: Any) -> tuple[AgentDict, AgentDict]:
        self.at = 0
        return self.observe(), {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        self.at += 1
        rewards = dict.fromkeys(action_dict, float(self.at))
        over = self.at == len(PRESENT) - 1
        dies = {"a": True} if self.at == 3 else {}
        ends, goes_on = {ALL: over, **dies}, {ALL: False}
        if self._truncate and over:
            return self.observe(), rewards, goes_on, {ALL: True}, {}
        return self.observe(), rewards, ends, goes_on, {}


def mapped_to_themselves(agent_id: Any, **kwargs: Any) -> str:
    return str(agent_id)
