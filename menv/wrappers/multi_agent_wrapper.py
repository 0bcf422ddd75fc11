"""`MultiAgentWrapper`: the base of wrappers that keep the agents and spaces of a `MultiAgentEnv` and change its steps.

`RecordEpisodes` and `TimeLimit` derive from it.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.base_env import AgentId
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts


def _of_env(name: str) -> Any:
    return property(lambda self: getattr(self.env, name), doc=f"`{name}` of the environment inside.")


class MultiAgentWrapper(MultiAgentEnv):
    """A `MultiAgentEnv` that passes every call and attribute on to another one, `env`.

    Attributes:
        env: The environment inside.
    """

    possible_agents = _of_env("possible_agents")
    agents = _of_env("agents")
    observation_space = _of_env("observation_space")
    action_space = _of_env("action_space")
    observation_spaces = _of_env("observation_spaces")
    action_spaces = _of_env("action_spaces")
    metadata = _of_env("metadata")
    render_mode = _of_env("render_mode")
    num_agents = _of_env("num_agents")
    np_random = _of_env("np_random")
    # The agent ids of classic environments.
    _agent_ids = _of_env("_agent_ids")

    def __init__(self, env: MultiAgentEnv) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        plain = seed is None and options is None
        return self.env.reset() if plain else self.env.reset(seed=seed, options=options)

    def step(self, action_dict: AgentDict) -> StepDicts:
        return self.env.step(action_dict)

    def state(self) -> Any:
        return self.env.state()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def get_observation_space(self, agent_id: AgentId) -> gym.Space[Any]:
        return self.env.get_observation_space(agent_id)

    def get_action_space(self, agent_id: AgentId) -> gym.Space[Any]:
        return self.env.get_action_space(agent_id)
