"""An environment with nothing to learn: random agents in place of an external game."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts

_SETTINGS: dict[str, Any] = {
    "num_agents": 2,
    "observation_space": gym.spaces.Box(-1.0, 1.0, (10,), np.float32),
    "action_space": gym.spaces.Discrete(2),
    "end_prob": 0.05,
    "appear_prob": 0.05,
    "reward_range": (-1.0, 1.0),
    "episode_length": 100,
}


class RandomMultiAgentEnv(MultiAgentEnv):
    """Agents with random observations, rewards and ends; their actions are checked and have no effect.

    An episode begins with all agents. After each step every agent terminates with probability `"end_prob"`, and every
    absent agent (re)appears with `"appear_prob"`. The episode terminates when no agent is left, and is truncated after
    `"episode_length"` steps.

    Args:
        config: `"num_agents"`, a number (default 2, called "agent_0" and so on) or a list of ids; `"observation_space"`
            and `"action_space"` of each agent, or dicts of spaces by agent; `"end_prob"` and `"appear_prob"` (both
            0.05); `"reward_range"`, the least and greatest reward (-1 and 1); `"episode_length"` (100).

    Raises:
        ConfigError: A setting is unknown or out of range.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        settings = {**_SETTINGS, **(config or {})}
        _check(settings)
        agents = settings["num_agents"]
        self.possible_agents = (
            [f"agent_{number}" for number in range(agents)] if isinstance(agents, int) else list(agents)
        )
        self.observation_spaces: dict[Any, gym.Space[Any]] = self._by_agent(settings["observation_space"])
        self.action_spaces: dict[Any, gym.Space[Any]] = self._by_agent(settings["action_space"])
        self._end_prob, self._appear_prob = settings["end_prob"], settings["appear_prob"]
        self._low, self._high = settings["reward_range"]
        self._episode_length = settings["episode_length"]
        self._steps = 0
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Begin with all agents; without a seed the random numbers continue."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            for space in self.observation_spaces.values():
                space.seed(int(self._rng.integers(2**31)))
        self._steps = 0
        self.agents = list(self.possible_agents)
        return self._observe(self.agents), {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Sample ends, appearances and rewards.

        Raises:
            CallOrderError: The episode is over, or never began.
            ContractError: An action is missing, of an absent agent, or outside its space.
        """
        if not self.agents:
            raise CallOrderError(
                "RandomMultiAgentEnv.step: no episode is running, expected reset first; call reset"
            )
        self._check_actions(action_dict)
        self._steps += 1
        acted, end = list(self.agents), self._steps >= self._episode_length
        left = [agent for agent in acted if self._rng.random() < self._end_prob]
        away = [agent for agent in self.possible_agents if agent not in acted]
        came = [agent for agent in away if self._rng.random() < self._appear_prob]
        rewards: AgentDict = {agent: float(self._rng.uniform(self._low, self._high)) for agent in acted}
        stay = [agent for agent in acted if agent not in left] + came
        over = not stay
        obs = self._observe(acted + ([] if end else came))
        terminateds: AgentDict = {agent: agent in left for agent in acted}
        truncateds: AgentDict = {agent: end and agent not in left for agent in acted}
        self.agents = [] if end else stay
        return obs, rewards, {**terminateds, ALL: over}, {**truncateds, ALL: end and not over}, {}

    def _by_agent(self, spaces: Any) -> dict[Any, gym.Space[Any]]:
        given = spaces if isinstance(spaces, dict) else dict.fromkeys(self.possible_agents, spaces)
        return {agent: copy.deepcopy(given[agent]) for agent in self.possible_agents}

    def _observe(self, agents: list[Any]) -> AgentDict:
        return {agent: self.observation_spaces[agent].sample() for agent in agents}

    def _check_actions(self, action_dict: AgentDict) -> None:
        for agent in {**action_dict, **dict.fromkeys(self.agents)}:
            is_asked = agent in self.agents and agent in action_dict
            if not is_asked or action_dict[agent] not in self.action_spaces[agent]:
                raise ContractError(
                    f"RandomMultiAgentEnv.step: the action of {agent!r} is {action_dict.get(agent)!s:.60}, expected "
                    f"elements of the spaces of exactly {self.agents!s:.60}; answer the agents that are there"
                )


def _check(settings: Mapping[str, Any]) -> None:
    unknown = sorted(settings.keys() - _SETTINGS.keys())
    if unknown:
        raise ConfigError(
            f"RandomMultiAgentEnv: unknown settings {unknown}, expected some of {sorted(_SETTINGS)}; fix the config"
        )
    agents = settings["num_agents"]
    count = agents if isinstance(agents, int) else len(agents)
    for name, holds, rule in (
        ("end_prob", 0.0 <= settings["end_prob"] <= 1.0, "0 to 1"),
        ("appear_prob", 0.0 <= settings["appear_prob"] <= 1.0, "0 to 1"),
        ("num_agents", count >= 1, "1 or more"),
        ("episode_length", settings["episode_length"] >= 1, "1 or more"),
    ):
        if not holds:
            raise ConfigError(
                f"RandomMultiAgentEnv: {name} is {settings[name]!r:.40}, expected {rule}; change the config"
            )
