"""The mapping, tried out on every possible agent before the first step.

An algorithm calls it when it is built: an agent that maps to no policy, and agents of one policy
with different spaces, are named then. It gives each policy its spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import gymnasium as gym

from menv.base_env import SINGLE_AGENT, AgentId, BaseEnv
from menv.episode import Episode
from menv.errors import ConfigError, ContractError
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


def resolve_specs(
    policy_map: PolicyMap, base_env: BaseEnv, env: Any, num_workers: int = 0
) -> dict[str, PolicySpec]:
    """Return the policies' specs with both spaces filled in.

    Args:
        policy_map: The policies and the mapping.
        base_env: The environment in table form.
        env: One sub-environment, or the user's own BaseEnv, which knows the agents' spaces.
        num_workers: How many workers there will be.

    Raises:
        ContractError: An agent maps to an unknown policy.
        ConfigError: Agents of one policy differ in their spaces, or a policy's spaces cannot be inferred.
    """
    if base_env.lockstep:
        # The object that steps them all has the spaces of a batch; the table has those of one agent.
        env = base_env
    worker = Worker(0, num_workers, base_env, policy_map)
    agents = _agents(env, base_env)
    users = _users(policy_map, agents, worker)
    return {
        policy_id: replace(
            spec,
            observation_space=_space(policy_id, spec.observation_space, users[policy_id], env, "observation"),
            action_space=_space(policy_id, spec.action_space, users[policy_id], env, "action"),
        )
        for policy_id, spec in policy_map.specs.items()
    }


def _agents(env: Any, base_env: BaseEnv) -> list[AgentId]:
    """Return the agents that may ever appear, as far as the environment says so."""
    if isinstance(env, gym.Env) and not isinstance(env, MultiAgentEnv):
        return [SINGLE_AGENT]
    listed: Iterable[AgentId] = getattr(env, "possible_agents", None) or base_env.get_agent_ids()
    return list(listed)


def _users(policy_map: PolicyMap, agents: list[AgentId], worker: Worker) -> dict[str, list[AgentId]]:
    """Map every agent in several episodes and return who may use each policy."""
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
                    f"possible_agents), expected a policy id of {sorted(policy_map.specs)}; mend the function"
                ) from error
            episode.bind(agent, policy_id)
            users[policy_id][agent] = None
    return {policy_id: list(found) for policy_id, found in users.items()}


def _space(policy_id: str, given: Any, agents: list[AgentId], env: Any, kind: str) -> gym.Space[Any]:
    """Return a policy's space: the one that its spec gives, if any, or that of its agents."""
    if given is None:
        return _common_space(policy_id, agents, env, kind)
    for agent in agents:
        own = _space_of(env, agent, kind)
        if own != given:
            raise ConfigError(
                f"policies[{policy_id!r}].{kind}_space: {given}, expected that of its agent {agent!r}, {own}; "
                "leave it out to take the agent's"
            )
    return cast("gym.Space[Any]", given)


def _common_space(policy_id: str, agents: list[AgentId], env: Any, kind: str) -> gym.Space[Any]:
    """Return the space that all agents of a policy share."""
    if not agents:
        return _shared_space(policy_id, env, kind)
    spaces = [(agent, _space_of(env, agent, kind)) for agent in agents]
    first, space = spaces[0]
    for agent, other in spaces[1:]:
        if other != space:
            raise ConfigError(
                f"policy {policy_id!r}: agents {first!r} and {agent!r} differ in their {kind} space ({space} and "
                f"{other}), expected one for all its agents; map them to different policies"
            )
    return space


def _space_of(env: Any, agent: AgentId, kind: str) -> gym.Space[Any]:
    """Return one agent's space."""
    lookup: Callable[[AgentId], gym.Space[Any]] | None = getattr(env, f"get_{kind}_space", None)
    if lookup is not None:
        return lookup(agent)
    space = getattr(env, f"{kind}_space", None)
    by_agent: Mapping[Any, Any] = getattr(env, f"{kind}_spaces", None) or (
        space.spaces if isinstance(space, gym.spaces.Dict) else {}
    )
    space = by_agent.get(agent, space)
    if not isinstance(space, gym.Space):
        raise ConfigError(
            f"agent {agent!r}: the environment declares no {kind} space ({type(space).__name__}), expected a "
            f"gymnasium Space; set {kind}_space or {kind}_spaces in its __init__"
        )
    return space


def _shared_space(policy_id: str, env: Any, kind: str) -> gym.Space[Any]:
    """Return the only space of an environment, for a policy that no listed agent maps to."""
    shared = getattr(env, f"{kind}_space", None)
    by_agent = getattr(env, f"{kind}_spaces", None) or {}
    found = list(by_agent.values()) or ([shared] if isinstance(shared, gym.Space) else [])
    if found and all(space == found[0] for space in found[1:]):
        only: gym.Space[Any] = found[0]
        return only
    raise ConfigError(
        f"policy {policy_id!r}: no possible agent maps to it and the environment has {len(found)} {kind} spaces, so "
        f"its own is unknown; give it with PolicySpec({kind}_space=...) or map an agent to it"
    )
