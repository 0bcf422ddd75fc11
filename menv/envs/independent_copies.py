"""`make_multi_agent`: copies of a single-agent environment as one environment of many agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym

from menv import rng
from menv.base_env import ALL, AgentId, BaseEnv
from menv.env_calls import close_all, reset_env, returned
from menv.env_context import EnvContext
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.registry import resolve_env


class IndependentCopies(MultiAgentEnv):
    """Several copies of a single-agent environment, one per agent, that share nothing but the env step.

    `make_multi_agent` makes the subclasses that know what to copy. Agents are called 0, 1, ...; each
    is observed until its own copy ends. The copy of an agent that is left out of `action_dict` does not step, and
    the agent is not observed. The episode ends with its last agent: truncated if anyone who ended on that step
    was, terminated otherwise. `render` shows the copy of agent 0.

    Args:
        config: `"num_agents"` (default 1) and the settings of the copies. It is not changed; each copy
            gets its own `EnvContext` with everything but `"num_agents"`.

    Raises:
        ConfigError: `"num_agents"` is not a positive integer.
        ContractError: The copies are no single-agent environments.
    """

    original: ClassVar[Any] = None

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        settings = dict(config or {})
        num_agents = settings.pop("num_agents", 1)
        if not isinstance(num_agents, int) or num_agents < 1:
            raise ConfigError(
                f'make_multi_agent: config["num_agents"] is {num_agents!r}, expected an integer of 1 or more; '
                "set the number of copies"
            )
        place = config if isinstance(config, EnvContext) else EnvContext()
        make_copy = resolve_env(type(self).original)
        self.envs: list[gym.Env[Any, Any]] = [
            make_copy(place.copy_with_overrides(env_config=settings)) for _ in range(num_agents)
        ]
        for env in self.envs:
            if isinstance(env, MultiAgentEnv | BaseEnv) or not hasattr(env, "action_space"):
                raise ContractError(
                    f"make_multi_agent: the creator made a {type(env).__name__}, expected a gymnasium.Env with one "
                    "agent; use an environment of many agents directly"
                )
        self.possible_agents = list(range(len(self.envs)))
        self.observation_spaces = {agent_id: env.observation_space for agent_id, env in enumerate(self.envs)}
        self.action_spaces = {agent_id: env.action_space for agent_id, env in enumerate(self.envs)}
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self._steps: dict[AgentId, Callable[[Any], Any]] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Reset all copies, each with its own seed; agent 0 gets `seed` itself."""
        obs: AgentDict = {}
        infos: AgentDict = {}
        for agent_id, env in enumerate(self.envs):
            # Neighbouring seeds, as sub-environments have, end far apart; many simulators take 31 bits only.
            copy_seed = seed if seed is None or agent_id == 0 else rng.key(seed, agent_id) >> 33
            obs[agent_id], infos[agent_id] = reset_env(env, f"of agent {agent_id}", copy_seed, options)
        self._steps = {agent_id: env.step for agent_id, env in enumerate(self.envs)}
        self.agents = list(self._steps)
        return obs, infos

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Step the copies of the agents in `action_dict`.

        Raises:
            CallOrderError: The episode has ended, or never began.
            ContractError: An agent is unknown, or has ended; a copy has the old 4-tuple `step`.
        """
        steps, name = self._steps, type(self).__name__
        if not steps:
            raise CallOrderError(
                f"{name}.step: no agent is alive, expected a running episode; call reset first"
            )
        out: StepDicts = ({}, {}, {}, {}, {})
        last_truncated = False
        for agent_id, action in action_dict.items():
            if agent_id not in steps:
                raise ContractError(
                    f"{name}.step: agent {agent_id!r} has ended or is unknown, expected actions for "
                    f"{', '.join(map(repr, steps))} only; answer the agents that the last obs named"
                )
            outcome = returned(steps[agent_id](action), 5, f"{name}.step, agent {agent_id!r}")
            for part, value in zip(out, outcome, strict=True):
                part[agent_id] = value
            if outcome[2] or outcome[3]:
                del steps[agent_id]
                self.agents = list(steps)
                last_truncated = last_truncated or bool(outcome[3])
        out[2][ALL] = not steps and not last_truncated
        out[3][ALL] = not steps and last_truncated
        return out

    def render(self) -> Any:
        """Return the picture of agent 0's copy."""
        return self.envs[0].render()

    def close(self) -> None:
        """Close all copies."""
        close_all(self.envs)


def make_multi_agent(name_or_creator: Any) -> type[IndependentCopies]:
    """Return a class of multi-agent environments that hold copies of a single-agent one.

    Args:
        name_or_creator: What `register_env` knows, a gymnasium id, a class, or a callable that takes an
            `EnvContext`; it is looked up when an instance is made.

    Returns:
        A subclass of `MultiAgentEnv` to be made with a config dict, e.g. `{"num_agents": 4}`.

    Raises:
        ConfigError: It can be none of these.
    """
    if not isinstance(name_or_creator, str) and not callable(name_or_creator):
        raise ConfigError(
            f"make_multi_agent: {name_or_creator!r:.100}, a {type(name_or_creator).__name__}, expected the name of an "
            'environment, a class, or a function of the context; write make_multi_agent("CartPole-v1"), for instance'
        )
    label = getattr(name_or_creator, "__name__", str(name_or_creator))
    # A plain function put on a class would turn into a method.
    original = staticmethod(name_or_creator) if callable(name_or_creator) else name_or_creator
    return type(f"Copies[{label}]", (IndependentCopies,), {"original": original})
