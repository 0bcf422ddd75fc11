"""What a fragment lacks before anybody can learn from it, added where it was sampled, or where it is learned from.

`menv.algorithms.rollouts.rollouts` calls it with each fragment, in this process and in workers. It knows the networks
that act, hooks and critics, no learners; a pickled one has what a worker needs of it, and no environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.multi_agent_config import MultiAgentConfig
from menv.algorithms.recipe import Recipe
from menv.algorithms.rollouts.joint_obs import JointObs
from menv.algorithms.rollouts.postprocessing import Postprocessing, add_critic_values
from menv.connectors.action_steps import CustomSteps
from menv.connectors.clip_reward import clip_rewards_of
from menv.episode import Episode
from menv.loop.cohort import Cohort
from menv.loop.net_cohort import NetCohort
from menv.multi_agent_batch import MultiAgentBatch
from menv.policy import Policy
from menv.sample_batch import SampleBatch


class Completion:
    """Adds to each policy's rows what its algorithm learns from.

    Args:
        cohorts: Who answers together.
        policies: The policy objects by id.
        recipes: What trains each policy that has a network.
        configs: The settings of each of them.
        joint: Returns the possible agents, for critics that see all of them.

    Attributes:
        postprocessing: What is done to trajectories before.
        left_out: Rows that could not be learned from: nobody knows how probable their actions were.
    """

    def __init__(
        self,
        cohorts: Sequence[Cohort],
        policies: Mapping[str, Policy],
        recipes: Mapping[str, Recipe],
        configs: Mapping[str, AlgorithmConfig],
        joint: Callable[[], JointObs],
    ) -> None:
        self._cohorts = cohorts
        self._policies = policies
        self._recipes = recipes
        self._configs = configs
        self._joint = joint
        self.postprocessing = Postprocessing(policies, configs, joint)
        self.left_out = 0

    def __reduce__(self) -> Any:
        configs = {name: _bare(config) for name, config in self._configs.items()}
        seen = any(getattr(config, "critic_obs", None) == "all_agents" for config in configs.values())
        joint = partial(_given, self._joint() if seen else None)
        return Completion, (list(self._cohorts), dict(self._policies), dict(self._recipes), configs, joint)

    def over(self, cohorts: Sequence[Cohort], policies: Mapping[str, Policy], left_out: int) -> Completion:
        """Return one that does the same over other copies of the cohorts and policies."""
        other = Completion(cohorts, policies, self._recipes, self._configs, self._joint)
        other.left_out = left_out
        return other

    def complete(
        self,
        batch: MultiAgentBatch,
        episodes: Mapping[int, Episode],
        beside: Sequence[tuple[str, SampleBatch]] = (),
        *,
        later: bool = False,
    ) -> None:
        """Add to each policy's rows what its algorithm learns from.

        Args:
            batch: One fragment.
            episodes: Its episodes by id; only those of policies that look at trajectories are needed.
            beside: Rows that nobody learns from, by policy; hooks and critics see who acted in them.
            later: Whether `catch_up` follows, elsewhere.
        """
        self._leave_out(batch)
        self.postprocessing.run_hooks(batch, episodes, beside)
        critics = self.postprocessing.critic_rows(batch, episodes, beside)
        for policy_id, rows in batch.policy_batches.items():
            steps = self._policies[policy_id].given_steps
            if isinstance(steps, CustomSteps):
                clip_rewards_of(rows, steps.clip_rewards)
        for cohort, index, policy_id in self._of(batch):
            if policy_id in critics:
                add_critic_values(batch[policy_id], critics[policy_id], cohort.backend, index)
            self._recipes[policy_id].complete(
                batch[policy_id], cohort.backend, index, self._configs[policy_id], later=later
            )

    def catch_up(self, batch: MultiAgentBatch) -> None:
        """Add what was left for later, with the networks of now."""
        for cohort, index, policy_id in self._of(batch):
            self._recipes[policy_id].complete(
                batch[policy_id], cohort.backend, index, self._configs[policy_id]
            )

    def _of(self, batch: MultiAgentBatch) -> Iterator[tuple[NetCohort, int, str]]:
        for cohort in self._cohorts:
            if isinstance(cohort, NetCohort):
                for index, policy_id in enumerate(cohort.policy_ids):
                    if policy_id in batch.policy_batches:
                        yield cohort, index, policy_id

    def _leave_out(self, batch: MultiAgentBatch) -> None:
        """Drop rows that their policy cannot learn from: nobody knows how probable the actions were.

        What comes before such a row is bootstrapped from it, so that no return holds what the action led to.
        """
        for policy_id, recipe in self._recipes.items():
            rows = batch.policy_batches.get(policy_id)
            if recipe.off_policy or rows is None or SampleBatch.OFF_POLICY not in rows.stored():
                continue
            foreign = rows[SampleBatch.OFF_POLICY]
            self.left_out += int(foreign.sum())
            kept = np.flatnonzero(~foreign)
            if not len(kept):
                del batch.policy_batches[policy_id]
            elif len(kept) < len(foreign):
                batch.policy_batches[policy_id] = rows.take(kept)


def _bare(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return settings without what only an algorithm needs, most of which is code of the user's."""
    return replace(
        config, env=None, env_config={}, input=None, callbacks=None, evaluation_config=None,
        multiagent=MultiAgentConfig(),
    )  # fmt: skip


def _given(joint: JointObs | None) -> JointObs:
    assert joint is not None
    return joint
