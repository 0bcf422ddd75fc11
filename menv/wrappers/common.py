"""`MultiAgentWrapper`, the base of wrappers that keep the agents of an environment; `TimeLimit`, `LastActions`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, AgentId
from menv.errors import ConfigError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.registry import wrapped_if_foreign


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


class TimeLimit(MultiAgentWrapper):
    """Truncates the episodes of an environment with many agents after `max_episode_steps` env steps.

        register_env("short", lambda context: TimeLimit(simple_tag_v3.parallel_env(), max_episode_steps=100))

    The last step returns what the environment returned, with `truncateds["__all__"]` set as well, unless the
    environment terminated the episode in that step. An agent without an observation in it, such as a player whose turn
    it is not, ends with its newest one. A step in which no agent acts counts, too.

    Args:
        env: A `MultiAgentEnv`, or an environment of PettingZoo or OpenSpiel, which is put into its wrapper. For a
            `gymnasium.Env` the result is gymnasium's own `TimeLimit`.
        max_episode_steps: The length of the longest episode, at least 1.

    Raises:
        ConfigError: `env` is of another kind, or the limit is no such number.

    Attributes:
        env: The `MultiAgentEnv` inside.
    """

    def __new__(cls, env: Any, max_episode_steps: int) -> Any:
        if isinstance(env, gym.Env) and wrapped_if_foreign(env) is env:
            return gym.wrappers.TimeLimit(env, max_episode_steps)
        return super().__new__(cls)

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        wrapped = wrapped_if_foreign(env)
        if not isinstance(wrapped, MultiAgentEnv):
            raise ConfigError(
                f"TimeLimit: env is a {type(env).__name__}, expected a MultiAgentEnv, a gymnasium.Env or a game of "
                "PettingZoo; wrap each environment before it is vectorized"
            )
        if (
            isinstance(max_episode_steps, bool)
            or not isinstance(max_episode_steps, int)
            or max_episode_steps < 1
        ):
            raise ConfigError(
                f"TimeLimit: max_episode_steps={max_episode_steps!r:.60}, expected at least 1; pass a whole number"
            )
        super().__init__(wrapped)
        self._max_episode_steps = max_episode_steps
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        self._steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action_dict: AgentDict) -> StepDicts:
        result = self.env.step(action_dict)
        self._steps += 1
        if self._steps < self._max_episode_steps or not _is_running(result):
            return result
        obs, rewards, terminateds, truncateds, infos = result
        return obs, rewards, terminateds, {**truncateds, ALL: True}, infos


def _is_running(result: object) -> bool:
    """Return whether a step is valid and did not terminate the episode; the adapter names what is not valid."""
    parts = result if isinstance(result, tuple | list) and len(result) == 5 else (None, None, None, None)
    terminateds, truncateds = parts[2:4]
    return isinstance(terminateds, dict) and isinstance(truncateds, dict) and terminateds.get(ALL) is not True


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
