"""What an algorithm writes of its policies for others to use, without the algorithm.

A base class of `menv.algorithms.algorithm.Algorithm`. What a policy on disk looks like is in `menv.loop.bundle`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from menv.classic_names import classic_keywords
from menv.policy import Policy
from menv.policy_map import DEFAULT_POLICY

if TYPE_CHECKING:
    from menv.algorithms.population import Population
    from menv.algorithms.rollouts.rollouts import Rollouts


class Exports:
    """Exports policies one by one."""

    iteration: int
    _population: Population
    _rollouts: Rollouts

    @classic_keywords(export_dir="=folder")
    def export_policy_checkpoint(self, folder: str | Path, policy_id: str = DEFAULT_POLICY) -> Path:
        """Write one policy into a new folder, from which `Policy.from_checkpoint` makes it again.

        Args:
            folder: Must not exist; all of it is written, or nothing.
            policy_id: Which.

        Returns:
            The folder.

        Raises:
            ConfigError: There is no such policy, the folder exists, or the policy has no form on disk.
        """
        policy: Policy = self._population.get(policy_id)
        return policy.export_checkpoint(folder, trained=self._trained(policy_id))

    def _trained(self, policy_id: str) -> dict[str, Any]:
        recipe = self._population.learners.recipes.get(policy_id)
        return {
            "algorithm": None if recipe is None else recipe.name,
            "env_steps": int(self._rollouts.env_steps),
            "iterations": self.iteration,
        }
