"""`LastActions`: each agent also sees what it did last."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import AgentId
from menv.errors import ConfigError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.registry import wrapped_if_foreign
from menv.wrappers.multi_agent_wrapper import MultiAgentWrapper

LAST = "last_action"


class LastActions(MultiAgentWrapper):
    """Adds the agent's last action to its observation, for recurrent policies, and for groups that QMIX trains.

        register_env("spread", lambda context: LastActions(simple_spread_v3.parallel_env()))

    Observations become a Dict with the entry `"last_action"`: the action as `gymnasium.spaces.flatten` makes numbers of
    it, one-hot for choices, and zeros before the first action. Other entries do not change; an observation
    that is not a Dict becomes the entry `"observation"`. Group the agents after this, not before.

    Args:
        env: A `MultiAgentEnv` with `possible_agents`, or an environment of PettingZoo or OpenSpiel.

    Raises:
        ConfigError: `env` is of another kind, or does not say which agents there are.

    Attributes:
        env: The `MultiAgentEnv` inside.
    """

    observation_space: Any = None
    observation_spaces: Any = None

    def __init__(self, env: Any) -> None:
        wrapped = wrapped_if_foreign(env)
        if not isinstance(wrapped, MultiAgentEnv) or not wrapped.possible_agents:
            raise ConfigError(
                f"LastActions: env is a {type(env).__name__}, expected a MultiAgentEnv with possible_agents, or a game "
                "of PettingZoo; wrap each environment before it is vectorized"
            )
        super().__init__(wrapped)
        self.observation_spaces = {agent: self._wider(agent) for agent in wrapped.possible_agents}
        self._last: dict[AgentId, Any] = {}

    def get_observation_space(self, agent_id: AgentId) -> gym.Space[Any]:
        space: gym.Space[Any] = self.observation_spaces[agent_id]
        return space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        self._last = {}
        obs, infos = super().reset(seed=seed, options=options)
        return self._seen(obs), infos

    def step(self, action_dict: AgentDict) -> StepDicts:
        for agent, action in action_dict.items():
            flat = gym.spaces.flatten(self.get_action_space(agent), action)
            self._last[agent] = np.asarray(flat, np.float32)
        obs, rewards, terminateds, truncateds, infos = self.env.step(action_dict)
        seen = self._seen(obs)
        for agent in [*self._last]:
            if terminateds.get(agent) or truncateds.get(agent):
                # It may return in this episode.
                del self._last[agent]
        return seen, rewards, terminateds, truncateds, infos

    def _wider(self, agent: AgentId) -> gym.spaces.Dict:
        space = self.env.get_observation_space(agent)
        own = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"observation": space}
        width = gym.spaces.flatdim(self.env.get_action_space(agent))
        return gym.spaces.Dict({**own, LAST: gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)})

    def _seen(self, obs: AgentDict) -> AgentDict:
        found = {}
        for agent, own in obs.items():
            first = np.zeros(self.observation_spaces[agent][LAST].shape, np.float32)
            parts = own if isinstance(own, dict) else {"observation": own}
            found[agent] = {**parts, LAST: self._last.get(agent, first)}
        return found
