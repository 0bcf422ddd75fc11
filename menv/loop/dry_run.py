"""The mapping, tried out on every possible agent before the first step.

An algorithm calls it when it is built: an agent that maps to no policy, and agents of one policy
with different spaces, are named then. It gives each policy its spaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym

from menv.base_env import SINGLE_AGENT, AgentId, BaseEnv
from menv.env_calls import OR_MANY_AGENTS, reset_env
from menv.episode import Episode
from menv.errors import ConfigError, ContractError, EnvCrashError, MenvError
from menv.loop.agent_spaces import AgentSpaces
from menv.multi_agent_env import MultiAgentEnv
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec

_EPISODES = 8


@dataclass(frozen=True, slots=True)
class Worker:
    """What a mapping function sees of the sampler before there is one.

    Attributes:
        worker_index: 0 in the driver's own process.
        num_workers: How many workers there are.
        base_env: The sub-environments.
        policy_map: The policies.
    """

    worker_index: int
    num_workers: int
    base_env: BaseEnv
    policy_map: PolicyMap

    @property
    def policies(self) -> dict[str, PolicySpec]:
        """The ids that may be returned; the specs stand in for policies that there are not yet."""
        return dict(self.policy_map.specs)


@dataclass(frozen=True, slots=True)
class GivenSpaces:
    """What the config says of spaces.

    Attributes:
        observation: Of every agent, or by agent id; None leaves it to the environment.
        action: Likewise.
        reshaped: Whether an `observation_fn` makes other observations of the environment's.
        seen: Once spaces were looked up: the agents of the first reset, none where it was not needed. An environment
            that is sampled is not reset again.
    """

    observation: Any = None
    action: Any = None
    reshaped: bool = False
    seen: list[list[AgentId]] = field(default_factory=list)


def resolve_specs(
    policy_map: PolicyMap, base_env: BaseEnv, env: Any, given: GivenSpaces, num_workers: int = 0
) -> dict[str, PolicySpec]:
    """Return the policies' specs with both spaces filled in.

    Args:
        policy_map: The policies and the mapping.
        base_env: The environment in table form.
        env: One sub-environment, or the user's own BaseEnv, which knows the agents' spaces.
        given: What the config says of spaces.
        num_workers: How many workers there will be.

    Raises:
        ContractError: An agent maps to an unknown policy.
        ConfigError: Agents of one policy differ in their spaces, or a policy's spaces cannot be inferred.
    """
    if base_env.lockstep:
        # The object that steps them all has the spaces of a batch; the table has those of one agent.
        env = base_env
    worker = Worker(0, num_workers, base_env, policy_map)
    observations = AgentSpaces(env, "observation", given.observation, reshaped=given.reshaped)
    actions = AgentSpaces(env, "action", given.action)
    agents = _agents(env, base_env) or _named_agents(env)
    if not given.seen:
        unknown = _unknown(policy_map, agents, observations, actions)
        given.seen.append(_first_agents(env, base_env) if unknown else [])
    agents = _agents(env, base_env) or _named_agents(env) or given.seen[0]
    users = _users(policy_map, agents, worker)
    return {
        policy_id: replace(
            spec,
            observation_space=observations.of_policy(policy_id, spec, users[policy_id]),
            action_space=actions.of_policy(policy_id, spec, users[policy_id]),
        )
        for policy_id, spec in policy_map.specs.items()
    }


def resolve_agents(
    policy_map: PolicyMap, base_env: BaseEnv, env: Any, num_workers: int = 0
) -> dict[AgentId, str]:
    """Return the agents that may ever appear, in the environment's order, each with a policy that answers for it.

    Args:
        policy_map: The policies and the mapping.
        base_env: The environment in table form.
        env: One sub-environment, or the user's own BaseEnv.
        num_workers: How many workers there will be.
    """
    agents = _agents(base_env if base_env.lockstep else env, base_env)
    users = _users(policy_map, agents, Worker(0, num_workers, base_env, policy_map))
    owners = {agent: policy_id for policy_id, found in users.items() for agent in found}
    return {agent: owners[agent] for agent in agents}


def _unknown(policy_map: PolicyMap, agents: list[AgentId], *kinds: AgentSpaces) -> bool:
    """Return whether a policy needs spaces of the environment that this does not declare before its first reset."""
    complete = (
        (spec.observation_space is not None and spec.action_space is not None)
        or (spec.inferred is not None and not agents)
        for spec in policy_map.specs.values()
    )
    if all(complete):
        return False
    if not agents:
        return any(spaces.unknown for spaces in kinds)
    return any(spaces.found(agent) is None for spaces in kinds for agent in agents)


def _first_agents(env: Any, base_env: BaseEnv) -> list[AgentId]:
    """Reset an environment that knows its spaces only then; return the agents that it shows.

    Raises:
        EnvCrashError: It raised.
    """
    if not isinstance(env, MultiAgentEnv | gym.Env):
        return []
    if any(env is one for one in base_env.get_sub_environments()):
        # The first episode, which is sampled later.
        return list(base_env.try_reset(0)[0].get(0, ()))
    try:
        obs = reset_env(env, 0)[0]
    except MenvError:
        raise
    except Exception as error:
        raise EnvCrashError(
            f"env 0 reset: raised {type(error).__name__}: {error}, expected the first observations, because "
            f"{type(env).__name__} declares no spaces before them; declare these in __init__, or fix reset"
        ) from error
    return list(obs) if isinstance(env, MultiAgentEnv) else []


def _agents(env: Any, base_env: BaseEnv) -> list[AgentId]:
    if isinstance(env, gym.Env) and not isinstance(env, MultiAgentEnv):
        return [SINGLE_AGENT]
    listed: Iterable[AgentId] = getattr(env, "possible_agents", None) or base_env.get_agent_ids()
    return list(listed)


def _named_agents(env: Any) -> list[AgentId]:
    """Return the agents that a classic environment names without `possible_agents`, always in the same order.

    There may be more of them; but those that it names have spaces by which their policies are built.
    """
    return sorted(env.get_agent_ids(), key=repr) if isinstance(env, MultiAgentEnv) else []


def _users(policy_map: PolicyMap, agents: list[AgentId], worker: Worker) -> dict[str, list[AgentId]]:
    users: dict[str, dict[AgentId, None]] = {policy_id: {} for policy_id in policy_map.specs}
    for number in range(_EPISODES):
        # Small ids and large ones: both parities, and numbers as they occur in a run.
        episode = Episode(number if number % 4 < 2 else number * 0x9E3779B97F4A7, number)
        for agent in agents:
            try:
                policy_id = policy_map.policy_for(agent, episode, worker)
            except (ContractError, ConfigError):
                raise
            except Exception as error:
                raise ConfigError(
                    f"policy_mapping_fn: raised {type(error).__name__}: {error} for agent {agent!r} (dry run over "
                    f"possible_agents), expected a policy id of {sorted(policy_map.specs)}; mend the "
                    f"function{OR_MANY_AGENTS if agent == SINGLE_AGENT else ''}"
                ) from error
            episode.bind(agent, policy_id)
            users[policy_id][agent] = None
    return {policy_id: list(found) for policy_id, found in users.items()}
