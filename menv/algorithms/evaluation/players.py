"""The policies of a run as those who play in its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.rollouts.completion import Completion
from menv.algorithms.rollouts.rollouts import Crew
from menv.base_env import BaseEnv
from menv.errors import ConfigError
from menv.loop.agent_spaces import AgentSpaces
from menv.loop.cohort import Cohort
from menv.loop.dry_run import resolve_agents
from menv.policy import Policy
from menv.policy_map import PolicyMap
from menv.spaces import alike

Kind: TypeAlias = Literal["observation", "action"]


class Players:
    """A crew that another mapping may choose from.

    Args:
        crew: All policies of the run.
        policy_mapping_fn: None maps agents as the run does.
    """

    def __init__(self, crew: Crew, policy_mapping_fn: Callable[..., Any] | None = None) -> None:
        self._crew = crew
        self._mapping_fn = policy_mapping_fn
        # What the run's own map was, and what came of it.
        self._maps: tuple[PolicyMap, PolicyMap] | None = None

    @property
    def policy_map(self) -> PolicyMap:
        """Who answers for whom; the same object as long as the run's own is."""
        now = self._crew.policy_map
        if self._mapping_fn is None:
            return now
        if self._maps is None or self._maps[0] is not now:
            self._maps = now, now.changed(policy_mapping_fn=self._mapping_fn)
        return self._maps[1]

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The policy objects by id."""
        return self._crew.policies

    @property
    def cohorts(self) -> Sequence[Cohort]:
        """Who answers together."""
        return self._crew.cohorts

    @property
    def completion(self) -> Completion:
        """Nobody learns from what is played."""
        return self._crew.completion

    def check_plays(self, base_env: BaseEnv, env: Any, settings: AlgorithmConfig) -> None:
        """Refuse an environment whose agents map to no policy, or to one that cannot play there.

        Args:
            base_env: The environment in table form.
            env: One sub-environment, or the user's own BaseEnv.
            settings: Those of evaluations.

        Raises:
            ContractError: An agent maps to an unknown policy.
            ConfigError: An agent's space is of another kind or shape than that of its policy.
        """
        agents = resolve_agents(self.policy_map, base_env, env)
        # What an `observation_fn` shows is not what the environment declares.
        reshaped = settings.multiagent.observation_fn is not None
        kinds: tuple[Kind, ...] = ("action",) if reshaped else ("observation", "action")
        for kind in kinds:
            given = getattr(settings, f"{kind}_space")
            spaces = AgentSpaces(base_env if base_env.lockstep else env, kind, given)
            for agent, policy_id in agents.items():
                found, built = spaces.found(agent), getattr(self.policies[policy_id], f"{kind}_space")
                if found is not None and not alike(found, built):
                    raise ConfigError(
                        f"the {kind} space of agent {agent!r} is {found}, expected one like that of its policy "
                        f"{policy_id!r}, {built}; let another policy play, or mend the environment"
                    )
