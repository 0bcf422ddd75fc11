"""The policies of a run as those who play in its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from menv.algorithms.rollouts.completion import Completion
from menv.algorithms.rollouts.rollouts import Crew
from menv.loop.cohort import Cohort
from menv.policy import Policy
from menv.policy_map import PolicyMap


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

    def as_built(self) -> PolicyMap:
        """Return a map whose specs have the spaces that the policies were built with."""
        now, policies = self.policy_map, self.policies
        specs = {
            name: replace(
                spec,
                observation_space=policies[name].observation_space,
                action_space=policies[name].action_space,
            )
            for name, spec in now.specs.items()
        }
        return PolicyMap(specs, now.settings[0], [])

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
