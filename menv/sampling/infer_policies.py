"""Infers the policies' spaces and agents by a dry run of the mapping function, before the first step.

`Algorithm` calls it when it is built. An agent that maps to no policy, or agents of one policy with different spaces,
are reported then.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import gymnasium as gym

from menv.base_env import SINGLE_AGENT, AgentId, BaseEnv
from menv.env_calls import OR_MANY_AGENTS, reset_env
from menv.episode import Episode
from menv.errors import ConfigError, ContractError, EnvCrashError, MenvError, in_words
from menv.multi_agent_env import MultiAgentEnv
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec
from menv.registry import env_kind
from menv.spaces import holds

Space = gym.Space[Any]


class AgentSpaces:
    """The observation or action spaces of one environment's agents.

    Args:
        env: A sub-environment, or another object that knows the agents' spaces.
        kind: Which of the two.
        given: The config's space of every agent, or spaces by agent id, for an environment that
            declares none before its first reset.
        reshaped: Whether an `observation_fn` changes the observations.

    Attributes:
        first_agents: The agents of the environment's only reset before sampling, [] if it needs none; None until
            `resolve_specs` has looked.
    """

    def __init__(
        self, env: Any, kind: Literal["observation", "action"], given: Any = None, *, reshaped: bool = False
    ) -> None:
        self.first_agents: list[AgentId] | None = None
        self._env = env
        self._kind = kind
        self._given = given
        self._reshaped = reshaped

    def of_policy(self, policy_id: str, spec: PolicySpec, agents: Sequence[AgentId]) -> Space:
        """Return the space of a policy that these agents may use.

        Raises:
            ConfigError: The agents' spaces differ, contradict the policy's, or are unknown.
            ContractError: The environment declares spaces, but none for one of the agents.
        """
        own: Space | None = getattr(spec, f"{self._kind}_space")
        if not agents and own is None and spec.inferred is not None:
            own = spec.inferred[self._kind == "action"]
        if not agents:
            return self._shared(policy_id) if own is None else own
        spaces = [(agent, self._of_agent(agent, policy_id, own)) for agent in agents]
        first, space = spaces[0]
        for agent, other in spaces[1:]:
            if other != space:
                raise ConfigError(
                    f"policy {policy_id!r}: agents {first!r} and {agent!r} differ in their {self._kind} space "
                    f"({space} and {other}), expected one for all its agents; map them to different policies"
                )
        return space

    def found(self, agent: AgentId) -> Space | None:
        """Return one agent's space, None if it is unknown."""
        given = self._given_to(agent)
        return self._declared(agent) if given is None else given

    def _of_agent(self, agent: AgentId, policy_id: str, own: Space | None) -> Space:
        if own is not None:
            whole = self._reshaped or own == self._declared(agent)
            chosen = own if whole else _of_one(own, agent)
            self._compare(f"policies[{policy_id!r}].{self._kind}_space", chosen, agent)
            return chosen
        given = self._given_to(agent)
        if given is not None:
            self._compare(f"{self._kind}_space", given, agent)
            return given
        declared = self._declared(agent)
        if declared is None:
            cause = self._raised()
            raised = f" ({in_words(cause)})" if cause else ""
            raise ConfigError(
                f"agent {agent!r}: the environment declares no {self._kind} space{raised}, expected a gymnasium Space; "
                f"set {self._kind}_space in its __init__, or give it in the config or with PolicySpec"
            ) from cause
        return declared

    def _raised(self) -> AttributeError | None:
        """Return what a property of the environment raised, which `getattr` with a default takes for no attribute."""
        for name in (f"{self._kind}_space", f"{self._kind}_spaces"):
            try:
                getattr(self._env, name)
            except AttributeError as error:
                if inspect.getattr_static(self._env, name, None) is not None:
                    return error
        return None

    def _compare(self, where: str, chosen: Space, agent: AgentId) -> None:
        """Refuse a space that contradicts the declared one.

        Every observation of the agent must be in the policy's space, and every action of the policy in the agent's.
        """
        declared = None if self._reshaped else self._declared(agent)
        if declared is None or declared == chosen:
            return
        if self._kind == "observation" and not holds(chosen, declared):
            rule = "or one that holds it"
        elif self._kind == "action" and not (chosen.dtype == declared.dtype and holds(declared, chosen)):
            rule = "or one within it, because the environment takes no other actions"
        else:
            return
        raise ConfigError(
            f"{where}: {chosen}, expected that of its agent {agent!r}, {declared}, {rule}; leave it out to take the "
            "agent's"
        )

    def _given_to(self, agent: AgentId) -> Space | None:
        given: Any = self._given
        if isinstance(given, Mapping) and not isinstance(given, gym.Space):
            given = given.get(agent)
        if given is None:
            return None
        if isinstance(given, gym.Space):
            return _of_one(given, agent)
        raise ConfigError(
            f"{self._kind}_space: {type(given).__name__}, expected a gymnasium Space, or a dict of them by agent id; "
            "give the space of one agent"
        )

    def _declared(self, agent: AgentId) -> Space | None:
        """Return the space that the environment declares for an agent, None if it declares none."""
        env, kind = self._env, self._kind
        shared, by_agent = getattr(env, f"{kind}_space", None), getattr(env, f"{kind}_spaces", None)
        methods = (getattr(env, f"get_{kind}_space", None), by_agent, shared)
        lookup: Any = next(filter(callable, methods), None)
        # A user's own `get_..._space` needs no other declaration.
        inherited = getattr(MultiAgentEnv, f"get_{kind}_space")
        own = lookup is not None and getattr(type(env), f"get_{kind}_space", None) is not inherited
        # An empty Dict space is true, too.
        if shared is None and not (by_agent if callable(by_agent) else len(by_agent or ())) and not own:
            return None
        if lookup is not None:
            found: Any = lookup(agent)
        else:
            inner: Any = shared.spaces if isinstance(shared, gym.spaces.Dict) else {}
            found = (by_agent or inner).get(agent, shared)
        if isinstance(found, gym.Space) or (lookup is not None and found is None):
            return found
        raise ConfigError(
            f"agent {agent!r}: the environment's {kind} space is {type(found).__name__}, expected a gymnasium Space; "
            f"set {kind}_space in its __init__, or {kind}_spaces to a dict of them by agent id"
        )

    @property
    def shared(self) -> Space | None:
        """The only space of the environment, None if there are several or none."""
        if isinstance(self._given, gym.Space):
            return self._given
        shared, by_agent = (getattr(self._env, f"{self._kind}_{name}", None) for name in ("space", "spaces"))
        found = list(by_agent.values()) if isinstance(by_agent, Mapping) else []
        found = found or ([shared] if isinstance(shared, gym.Space) else [])
        return found[0] if found and all(space == found[0] for space in found[1:]) else None

    @property
    def unknown(self) -> bool:
        """Whether the environment declares no space that can be read without an agent id."""
        shared = getattr(self._env, f"{self._kind}_space", None)
        return self.shared is None and (shared is None or callable(shared) or isinstance(shared, gym.Space))

    def _shared(self, policy_id: str) -> Space:
        """Return the only space of an environment, for a policy that no listed agent maps to."""
        if self.shared is not None:
            return self.shared
        raise ConfigError(
            f"policy {policy_id!r}: no possible agent maps to it, and the environment has no single {self._kind} "
            f"space, expected a space of the policy; pass PolicySpec({self._kind}_space=...) or map an agent to it"
        )


def _of_one(given: Space, agent: AgentId) -> Space:
    """Return one agent's space: its entry in a Dict space that names it, else the whole space."""
    by_agent: Any = given.spaces if isinstance(given, gym.spaces.Dict) else {}
    space: Space = by_agent.get(agent, given)
    return space


_EPISODES = 8


def resolve_specs(
    policy_map: PolicyMap,
    base_env: BaseEnv,
    env: object,
    observations: AgentSpaces,
    actions: AgentSpaces,
    num_workers: int = 0,
) -> dict[str, PolicySpec]:
    """Return the policies' specs with both spaces filled in.

    Raises:
        ContractError: An agent maps to an unknown policy.
        ConfigError: Agents of one policy differ in their spaces, or a policy's spaces cannot be inferred.
    """
    if base_env.lockstep:
        env = base_env
    agents = _agents(env, base_env) or _named_agents(env)
    if observations.first_agents is None:
        unknown = _unknown(policy_map, agents, observations, actions)
        observations.first_agents = _first_agents(env, base_env) if unknown else []
    agents = _agents(env, base_env) or _named_agents(env) or observations.first_agents
    users = _users(policy_map, agents, base_env, num_workers)
    return {
        policy_id: replace(
            spec,
            observation_space=observations.of_policy(policy_id, spec, users[policy_id]),
            action_space=actions.of_policy(policy_id, spec, users[policy_id]),
        )
        for policy_id, spec in policy_map.specs.items()
    }


def resolve_agents(
    policy_map: PolicyMap, base_env: BaseEnv, env: object, num_workers: int = 0
) -> dict[AgentId, str]:
    """Return the possible agents in the environment's order, each with one of its policies."""
    agents = _agents(base_env if base_env.lockstep else env, base_env)
    users = _users(policy_map, agents, base_env, num_workers)
    owners = {agent: policy_id for policy_id, found in users.items() for agent in found}
    return {agent: owners[agent] for agent in agents}


def _unknown(policy_map: PolicyMap, agents: list[AgentId], *kinds: AgentSpaces) -> bool:
    """Return whether a policy needs a space that the environment does not declare before its first reset."""
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


def _first_agents(env: object, base_env: BaseEnv) -> list[AgentId]:
    """Reset an environment that knows its spaces only afterwards; return its agents."""
    kind = env_kind(env)
    if kind not in ("multi_agent", "single_agent"):
        return []
    if any(env is one for one in base_env.get_sub_environments()):
        # This starts the first episode, which is sampled later.
        return list(base_env.try_reset(0)[0].get(0, ()))
    try:
        obs = reset_env(env, 0)[0]
    except MenvError:
        raise
    except Exception as error:
        raise EnvCrashError(
            f"env 0 reset: raised {in_words(error)}, expected the first observations, because {type(env).__name__} "
            "declares no spaces before reset; declare them in __init__, or fix reset"
        ) from error
    return list(obs) if kind == "multi_agent" else []


def _agents(env: object, base_env: BaseEnv) -> list[AgentId]:
    if env_kind(env) == "single_agent":
        return [SINGLE_AGENT]
    listed: Iterable[AgentId] = getattr(env, "possible_agents", None) or base_env.get_agent_ids()
    return list(listed)


def _named_agents(env: Any) -> list[AgentId]:
    """Return the agents that a classic environment names without `possible_agents`, always in the same order.

    More may appear; the spaces of the named ones are enough to build the policies.
    """
    return sorted(env.get_agent_ids(), key=repr) if env_kind(env) == "multi_agent" else []


def _users(
    policy_map: PolicyMap, agents: list[AgentId], base_env: BaseEnv, num_workers: int
) -> dict[str, list[AgentId]]:
    """Return the agents of each policy, by a dry run of the mapping function before the sampler exists."""
    worker = SimpleNamespace(
        worker_index=0, num_workers=num_workers, base_env=base_env, policy_map=policy_map,
        policies=dict(policy_map.specs),
    )  # fmt: skip
    users: dict[str, dict[AgentId, None]] = {policy_id: {} for policy_id in policy_map.specs}
    for number in range(_EPISODES):
        # Small and large ids of both parities, as in a run.
        episode = Episode(number if number % 4 < 2 else number * 0x9E3779B97F4A7, number)
        for agent in agents:
            try:
                policy_id = policy_map.policy_for(agent, episode, worker)
            except (ContractError, ConfigError):
                raise
            except Exception as error:
                raise ConfigError(
                    f"policy_mapping_fn: raised {in_words(error)} for agent {agent!r} (dry run over "
                    f"possible_agents), expected a policy id of {sorted(policy_map.specs)}; fix the "
                    f"function{OR_MANY_AGENTS if agent == SINGLE_AGENT else ''}"
                ) from error
            episode.bind(agent, policy_id)
            users[policy_id][agent] = None
    return {policy_id: list(found) for policy_id, found in users.items()}
