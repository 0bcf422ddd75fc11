"""`MultiAgentGym`: a `gymnasium.Env` in which several agents act, as a `MultiAgentEnv`.

Level-based foraging and the robotic warehouse are such environments.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.base_env import ALL, COMMON
from menv.env_calls import as_flag, close_env, reset_env, returned
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.spaces import has_order
from menv.wrappers.pettingzoo_base import check_answers


class MultiAgentGym(MultiAgentEnv):
    """A gymnasium-style environment with a Tuple of spaces, one for each agent.

        register_env("foraging", lambda context: MultiAgentGym(gym.make("Foraging-8x8-2p-3f-v3")))

    - The agents are `"agent_0"`, `"agent_1"`, ...; all of them act in every step, from the first to the last.
    - Observations are one for each agent. Rewards and flags may be, too: a single reward goes to each agent, and the
      episode ends when the flags of all are set. The info belongs to the whole environment, `infos["__common__"]`.

    Agents that end one by one, or that are keys of a dict, need your own `MultiAgentEnv`.

    Attributes:
        env: The environment.
    """

    def __init__(self, env: Any) -> None:
        """Wrap `env`.

        Raises:
            ConfigError: The spaces are not Tuples of as many spaces.
        """
        super().__init__()
        observed, acted = (_parts(env, name) for name in ("observation_space", "action_space"))
        if len(observed) != len(acted):
            raise ConfigError(
                f"MultiAgentGym: {len(observed)} observation spaces and {len(acted)} action spaces, expected one of "
                "each for each agent; fix the spaces"
            )
        self.env = env
        self.possible_agents = [f"agent_{place}" for place in range(len(acted))]
        self.observation_spaces = dict(zip(self.possible_agents, observed, strict=True))
        self.action_spaces = dict(zip(self.possible_agents, acted, strict=True))
        self.render_mode = getattr(env, "render_mode", None)
        # Set on the instance: the class attribute is shared by all environments.
        vars(self)["metadata"] = dict(getattr(env, "metadata", None) or self.metadata)

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the environment in a list, or as `{0: env}`."""
        return {0: self.env} if as_dict else [self.env]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new episode.

        Raises:
            ContractError: The environment returned something else than an observation for each agent and an info.
        """
        obs, info = reset_env(self.env, "in MultiAgentGym", seed, options)
        by_agent = self._by_agent(obs, "reset", "observations")
        self.agents = list(self.possible_agents)
        return by_agent, {COMMON: info} if info else {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Take one step with the actions of all agents.

        Raises:
            CallOrderError: No episode is running.
            ContractError: An action is missing, or the environment returned values of another form.
        """
        if not self.agents:
            raise CallOrderError(
                'MultiAgentGym.step: no episode is running, expected reset first and again after "__all__"; call reset'
            )
        check_answers("MultiAgentGym.step", self.agents, action_dict)
        actions = tuple(action_dict[agent] for agent in self.agents)
        obs, rewards, terminated, truncated, info = returned(self.env.step(actions), 5, self._where("step"))
        paid = (
            self._by_agent(rewards, "step", "rewards")
            if has_order(rewards)
            else dict.fromkeys(self.agents, rewards)
        )
        seen, over = self._by_agent(obs, "step", "observations"), self._over(terminated, truncated)
        if any(over):
            self.agents = []
        return seen, paid, {ALL: over[0]}, {ALL: over[1]}, {COMMON: info} if info else {}

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        close_env(self.env)

    def _by_agent(self, values: Any, method: str, what: str) -> AgentDict:
        if not has_order(values) or len(values) != len(self.possible_agents):
            size = f" of {len(values)}" if has_order(values) else ""
            raise ContractError(
                f"{self._where(method)} returned {what} that are a {type(values).__name__}{size}, expected a tuple of "
                f"one for each of {len(self.possible_agents)} agents; fix what it returns, or write a MultiAgentEnv"
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _over(self, *both: Any) -> tuple[bool, bool]:
        """Return whether the episode is terminated, and whether it is truncated."""
        where = self._where("step")
        flags = [
            [
                as_flag(one, f"{where}: the flag of {agent!r}")
                for agent, one in self._by_agent(own, "step", "flags").items()
            ]
            if has_order(own)
            else [as_flag(own, f"{where}: terminated or truncated")] * len(self.possible_agents)
            for own in both
        ]
        ended = [any(own) for own in zip(*flags, strict=True)]
        if any(ended) and not all(ended):
            raise ContractError(
                f"{where} ended some agents and not others, expected all of them to end together; write a MultiAgentEnv"
            )
        return all(flags[0]), any(flags[1])

    def _where(self, method: str) -> str:
        return f"MultiAgentGym.{method}: {type(getattr(self.env, 'unwrapped', self.env)).__name__}"


def _parts(env: object, name: str) -> list[gym.Space[Any]]:
    space = getattr(env, name, None)
    parts = list(space) if isinstance(space, gym.spaces.Tuple) else []
    if not parts:
        raise ConfigError(
            f"MultiAgentGym: {name} of {type(env).__name__} is {' '.join(str(space).split())[:120]}, expected a Tuple "
            "of one space for each agent; wrap games of PettingZoo in PettingZooEnv or ParallelPettingZooEnv, pass on "
            "an environment of one agent unchanged, and write a MultiAgentEnv for agents in a dict"
        )
    return parts
