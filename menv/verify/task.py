"""The task that every back-end plays: an environment, fixed policies, a number of env steps and a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym

from menv.adapters.adapter import Adapter
from menv.adapters.convert import to_local_base_env
from menv.algorithms.config.read_config import override, read_config
from menv.algorithms.network_group_builder import build_groups
from menv.algorithms.ppo.config import PPOConfig
from menv.algorithms.ppo.ppo import PPORecipe
from menv.base_env import AgentId
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.multi_agent_env import MultiAgentEnv
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec
from menv.registry import describe_env, make_env
from menv.sampling.fragment_limit import FragmentLimit
from menv.sampling.infer_policies import AgentSpaces, resolve_agents, resolve_specs
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.sampler import Sampler

SINGLE, MULTI, WHOLE = "single-agent", "multi-agent", "whole"
"""Kinds of environments: single-agent copies, multi-agent copies, and vectorised ones."""


class Task:
    """An environment and fixed policies that any number of samplers can share.

    Attributes:
        env: What the registry creates environments from.
        settings: The config as the caller passed it.
        env_steps: Env steps of each sub-environment.
        kind: `SINGLE`, `MULTI` or `WHOLE`.
        modules: Modules that a process imports before it knows `env` by name.
    """

    def __init__(
        self,
        env: Any,
        settings: Mapping[str, Any] | None,
        num_envs: int,
        env_steps: int,
        seed: int,
        modules: Sequence[str] = (),
    ) -> None:
        """Create one environment and, from its spaces, the policies."""
        self.env = env
        self.settings = dict(settings or {})
        self.seed = seed
        self.modules = tuple(modules)
        config = read_config(PPOConfig, self.settings, env)
        self._config = _acting_by_onnx(replace(config, seed=seed))
        first = self.make_env(0)
        base_env = to_local_base_env(first)
        try:
            if base_env.external:
                raise ConfigError(
                    f"verify_backends: {type(first).__name__} is an external environment, expected one "
                    "that is stepped; compare digests of results instead"
                )
            self.kind = _kind_of(first)
            self.num_envs = num_envs if self.kind != WHOLE else base_env.num_envs or 1
            self.env_steps = max(1, env_steps // self.num_envs)
            self._policy_map, self._groups = self._policies(first, base_env)
        finally:
            base_env.stop()

    @property
    def name(self) -> str:
        """The environment's name for reports."""
        return describe_env(self.env)

    def make_env(self, index: int, worker_index: int = 0, num_workers: int = 0) -> Any:
        """Create sub-environment number `index` of a worker, 0 for the driver."""
        return make_env(self.env, self.context(index, worker_index, num_workers))

    def context(self, index: int, worker_index: int = 0, num_workers: int = 0) -> EnvContext:
        """Return the context that sub-environment number `index` of a worker is created with."""
        return EnvContext(
            dict(self._config.env_config),
            worker_index=worker_index,
            vector_index=index,
            num_workers=num_workers,
        )

    def sampler(self, base_env: Adapter, first_index: int) -> Sampler:
        """Return a sampler for some of the sub-environments, with the same policies."""
        limit = FragmentLimit(self.env_steps, lockstep=base_env.lockstep)
        sampler = Sampler(
            base_env, self._policy_map, [group.clone() for group in self._groups], limit, seed=self.seed,
            first_index=first_index, observation_fn=self._config.multiagent.observation_fn,
        )  # fmt: skip
        sampler.explore = self._config.explore
        return sampler

    def _policies(self, first: Any, base_env: Adapter) -> tuple[PolicyMap, list[PolicyGroup]]:
        config, multi = self._config, self._config.multiagent
        declares, reshaped = base_env if base_env.lockstep else first, multi.observation_fn is not None
        observations = AgentSpaces(declares, "observation", config.observation_space, reshaped=reshaped)
        actions = AgentSpaces(declares, "action", config.action_space)
        policy_map = PolicyMap(multi.policies, multi.policy_mapping_fn)
        if multi.policies is None and self.kind == MULTI:
            agents = resolve_agents(policy_map, base_env, first)
            policy_map = _by_spaces(agents, observations, actions) or policy_map
        specs = resolve_specs(policy_map, base_env, first, observations, actions)
        configs = {
            name: override(config, spec.config, name)
            for name, spec in specs.items()
            if not spec.answers_itself
        }
        recipes = {name: PPORecipe() for name in configs}
        groups, _ = build_groups(specs, configs, recipes, self.seed, config)
        return policy_map, groups


def _acting_by_onnx(config: PPOConfig) -> PPOConfig:
    """Return settings that skip the comparison with torch, whose import takes longer than the task."""
    stock = config.model.custom_model is None and config.inference == "auto"
    return replace(config, inference="onnx") if stock else config


def _kind_of(env: Any) -> str:
    if isinstance(env, MultiAgentEnv):
        return MULTI
    return SINGLE if isinstance(env, gym.Env) else WHOLE


def _by_spaces(agents: Mapping[AgentId, str], *spaces: AgentSpaces) -> PolicyMap | None:
    """Return one policy for each group of agents with equal spaces; None if all have the same spaces."""
    kinds: list[tuple[Any, ...]] = []
    owners: dict[AgentId, str] = {}
    for agent in agents:
        found = tuple(kind.of_policy("any", PolicySpec(), [agent]) for kind in spaces)
        if found not in kinds:
            kinds.append(found)
        owners[agent] = f"policy_{kinds.index(found)}"
    if len(kinds) < 2:
        return None
    return PolicyMap(sorted(set(owners.values())), partial(_owner, owners))


def _owner(owners: Mapping[AgentId, str], agent_id: AgentId) -> str:
    return owners[agent_id]
