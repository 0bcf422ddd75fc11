"""Which space a policy has: its own, that of its agents, or the one that the config gives.

`menv.loop.dry_run` asks, once the mapping has been tried out. It reads spaces and calls no environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym

from menv.base_env import AgentId
from menv.errors import ConfigError
from menv.multi_agent_env import MultiAgentEnv
from menv.policy_spec import PolicySpec
from menv.spaces import holds

Space = gym.Space[Any]


class AgentSpaces:
    """The observation or the action spaces of one environment's agents.

    Args:
        env: A sub-environment, or whoever else knows the agents' spaces.
        kind: Which of the two.
        given: The config's space of every agent, or spaces by agent id, for an environment that
            declares none before its first reset.
        reshaped: Whether the policies see something else than the environment declares.
    """

    def __init__(
        self, env: Any, kind: Literal["observation", "action"], given: Any = None, *, reshaped: bool = False
    ) -> None:
        self._env = env
        self._kind = kind
        self._given = given
        self._reshaped = reshaped

    def of_policy(self, policy_id: str, spec: PolicySpec, agents: Sequence[AgentId]) -> Space:
        """Return a policy's space.

        Args:
            policy_id: The policy, for messages.
            spec: What the user says of it; its space may be a Dict space by agent.
            agents: Who may use it.

        Raises:
            ConfigError: Its agents differ, it contradicts them, or it cannot be found.
            ContractError: The environment declares spaces, but not that of an agent.
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
        """Return one agent's space, None where it is not known."""
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
            raise ConfigError(
                f"agent {agent!r}: the environment declares no {self._kind} space, expected a gymnasium Space; set "
                f"{self._kind}_space in its __init__, or give it in the config or with PolicySpec"
            )
        return declared

    def _compare(self, where: str, chosen: Space, agent: AgentId) -> None:
        """Refuse a space that contradicts what the environment declares.

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
        """Return what the environment says of an agent's space, None if it says nothing of any."""
        env, kind = self._env, self._kind
        shared, by_agent = getattr(env, f"{kind}_space", None), getattr(env, f"{kind}_spaces", None)
        methods = (getattr(env, f"get_{kind}_space", None), by_agent, shared)
        lookup: Any = next(filter(callable, methods), None)
        # Somebody's own way of answering needs no spaces beside it.
        inherited = getattr(MultiAgentEnv, f"get_{kind}_space")
        own = lookup is not None and getattr(type(env), f"get_{kind}_space", None) is not inherited
        # A Dict space is true also where it is empty.
        if shared is None and not (by_agent if callable(by_agent) else len(by_agent or ())) and not own:
            return None
        if lookup is not None:
            found: Any = lookup(agent)
        else:
            inner: Any = shared.spaces if isinstance(shared, gym.spaces.Dict) else {}
            found = (by_agent or inner).get(agent, shared)
        if isinstance(found, gym.Space) or (lookup is not None and found is None):
            return found
        raise self._no_space(f"agent {agent!r}", found)

    def _no_space(self, whose: str, found: Any) -> ConfigError:
        kind = self._kind
        return ConfigError(
            f"{whose}: the environment's {kind} space is {type(found).__name__}, expected a gymnasium Space; set "
            f"{kind}_space in its __init__, or {kind}_spaces to a dict of them by agent id"
        )

    @property
    def shared(self) -> Space | None:
        """The only space of the environment, None if there are several or none."""
        if isinstance(self._given, gym.Space):
            return self._given
        found = self._all()
        return found[0] if found and all(space == found[0] for space in found[1:]) else None

    @property
    def unknown(self) -> bool:
        """Whether the environment declares nothing, right or wrong, that needs no agent's id to be read."""
        shared = getattr(self._env, f"{self._kind}_space", None)
        return self.shared is None and (shared is None or callable(shared) or isinstance(shared, gym.Space))

    def _all(self) -> list[Space]:
        shared, by_agent = (getattr(self._env, f"{self._kind}_{name}", None) for name in ("space", "spaces"))
        listed = list(by_agent.values()) if isinstance(by_agent, Mapping) else []
        return listed or ([shared] if isinstance(shared, gym.Space) else [])

    def _shared(self, policy_id: str) -> Space:
        """Return the only space of an environment, for a policy that no listed agent maps to."""
        kind, found, only = self._kind, self._all(), self.shared
        shared = getattr(self._env, f"{kind}_space", None)
        if only is not None:
            return only
        if shared is not None and not found and not callable(shared):
            raise self._no_space(f"policy {policy_id!r}", shared)
        raise ConfigError(
            f"policy {policy_id!r}: no possible agent maps to it and the environment has {len(found)} {kind} spaces, "
            f"so its own is unknown; give it with PolicySpec({kind}_space=...) or map an agent to it"
        )


def _of_one(given: Space, agent: AgentId) -> Space:
    """Return what a space means for one agent: a Dict that names it holds its own."""
    by_agent: Any = given.spaces if isinstance(given, gym.spaces.Dict) else {}
    space: Space = by_agent.get(agent, given)
    return space
