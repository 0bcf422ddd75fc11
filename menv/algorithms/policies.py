"""The policies of a run as its users meet them: asked for actions, exported, given weights, added and removed.

A base class of `menv.algorithms.algorithm.Algorithm`. `menv.algorithms.population` keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from menv.errors import ConfigError, ContractError
from menv.migration_hints import old_arguments
from menv.policy import Policy, one_row, weights_of
from menv.policy_map import DEFAULT_POLICY
from menv.policy_spec import ids_given, spec_by_parts, spec_like

if TYPE_CHECKING:
    from menv.algorithms.config.algorithm_config import AlgorithmConfig
    from menv.algorithms.outside import Outside
    from menv.algorithms.population import Population
    from menv.algorithms.rollouts.gathering import Gathering
    from menv.algorithms.rollouts.rollouts import Rollouts
    from menv.algorithms.rollouts.workforce import Workforce
    from menv.algorithms.underway import Underway


class Policies:
    """What an `Algorithm` can do with its policies."""

    config: AlgorithmConfig
    iteration: int
    _population: Population
    _rollouts: Rollouts
    _workforce: Workforce
    _gathering: Gathering
    _outside: Outside
    _underway: Underway

    @property
    def inference(self) -> dict[str, str]:
        """What runs each policy's network, "onnx" or "torch", by policy id."""
        return self._population.inference

    def get_policy(self, policy_id: str = DEFAULT_POLICY) -> Policy:
        """Return a policy.

        Raises:
            ConfigError: There is no such policy.
        """
        return self._population.get(policy_id)

    @old_arguments(observation="obs")
    def compute_single_action(
        self,
        obs: Any,
        policy_id: str = DEFAULT_POLICY,
        explore: bool | None = None,
        state: Sequence[Any] | None = None,
        *,
        full_fetch: bool = False,
    ) -> Any:
        """Return one policy's env-ready action for one observation.

        Args:
            obs: An element of the policy's observation space.
            policy_id: Who answers.
            explore: False takes the most likely action; None does as `config.explore` says.
            state: Of a recurrent policy: at first `get_policy(policy_id).get_initial_state()`, then what was
                returned for the observation before. With a state, `(action, state, fetches)` is returned.
            full_fetch: Whether these three are returned without a state too.

        Raises:
            CallOrderError: Another thread trains, samples or evaluates.
            ConfigError: There is no such policy.
            ContractError: The observation is outside the space, or a recurrent policy is given no state.
        """
        explore = self.config.explore if explore is None else explore
        if not isinstance(explore, int | np.bool_):
            raise ConfigError(
                f"compute_single_action: explore is {explore!r:.60}, expected True, False or None; "
                "leave it out to do as config.explore says"
            )
        self._underway.refuse_others(
            "compute_single_action", "ask copy.deepcopy(algo.get_policy(policy_id)), made before"
        )
        policy = self.get_policy(policy_id)
        batches = [] if state is None else one_row("compute_single_action", state)
        if not batches and policy.get_initial_state():
            raise ContractError(
                f"compute_single_action: no state for the recurrent policy {policy_id!r}, expected one; pass "
                "state=policy.get_initial_state() at first and the returned state from then on"
            )
        if state is None and not full_fetch:
            return policy.env_action(policy.compute_actions([obs], explore=explore)[0][0])
        actions, states, fetches = policy.compute_actions([obs], batches, explore=explore)
        action = policy.env_action(actions[0])
        return action, [part[0] for part in states], {name: value[0] for name, value in fetches.items()}

    @old_arguments(export_dir="folder")
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
        return self.get_policy(policy_id).export_checkpoint(folder, trained=self._trained(policy_id))

    def _trained(self, policy_id: str) -> dict[str, Any]:
        """Return how a policy was trained, for whom finds it on a disk."""
        recipe = self._population.learners.recipes.get(policy_id)
        return {
            "algorithm": None if recipe is None else recipe.name,
            "env_steps": int(self._rollouts.env_steps),
            "iterations": self.iteration,
        }

    def get_weights(self, policy_ids: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return copies of the weights of some policies, or of all."""
        known = self._population.policies
        ids = list(known) if policy_ids is None else ids_given("get_weights", policy_ids)
        return {policy_id: dict(weights_of(self.get_policy(policy_id))) for policy_id in ids}

    def set_weights(self, weights: Mapping[str, Mapping[str, Any]]) -> None:
        """Copy weights in, by policy id; learners go on from them. If those of one are refused, none change.

        Layers that a policy shares (`model={"shared_layers": ...}`) change for its whole group; if several of a group
        are given, the last one's hold.
        """
        self._population.set_weights(self._population.read_weights(weights))
        self._outside.publish()

    @spec_by_parts
    def add_policy(
        self,
        policy_id: str,
        spec: Any = None,
        *,
        policy: Policy | None = None,
        policy_mapping_fn: Callable[..., Any] | None = None,
        policies_to_train: Iterable[str] | Callable[..., bool] | None = None,
    ) -> Policy:
        """Add a policy; it answers in episodes that begin from now on.

        Args:
            policy_id: A new id.
            spec: As in `policies`; None infers everything. You can also give its parts by name: `policy_class` or
                `policy_cls`, `observation_space`, `action_space`, `config` and `algorithm`.
            policy: A trained policy to copy: one of this or another algorithm (`get_policy`), or one of a checkpoint,
                as in `add_policy("expert", policy=Policy.from_checkpoint(folder))`. The new policy starts with its
                weights and its connectors, statistics of filters included, and with its spaces unless `spec` gives
                some. Its network must be the one that `spec` and the settings of this algorithm describe.
            policy_mapping_fn: Replaces the mapping; None keeps it.
            policies_to_train: Replaces who is trained; None keeps it.

        Returns:
            The policy.

        Raises:
            ConfigError: The id exists, a setting is wrong, or the network of `policy` is another one.
            ContractError: The mapping returns an unknown id for a possible agent.
        """
        with self._rollouts.alone:
            self._look_who_left()
            before = self._population.policy_map
            if policy is not None:
                spec = spec_like(policy_id, spec, policy)
            added = self._population.add(policy_id, spec, policy_mapping_fn, policies_to_train)
            try:
                if policy is not None:
                    self._population.copy(policy, policy_id)
                self._rollouts.follow(added)
            except ConfigError:
                # Its network is another one, or something in it cannot go to the workers.
                self._population.take_back(policy_id, added, before)
                raise
        self._outside.publish()
        return self._population.get(policy_id)

    def remove_policy(
        self,
        policy_id: str,
        *,
        policy_mapping_fn: Callable[..., Any] | None = None,
        policies_to_train: Iterable[str] | Callable[..., bool] | None = None,
    ) -> None:
        """Remove a policy; episodes that run keep it to their end, but nobody learns from its rows any more.

        Args:
            policy_id: Its id.
            policy_mapping_fn: Replaces the mapping; None keeps it.
            policies_to_train: Replaces who is trained; None keeps it.

        Raises:
            ConfigError: There is no such policy, or it is the last one.
            ContractError: The mapping still returns it for a known agent.
        """
        self._workforce.check_travels(policy_mapping_fn, policies_to_train)
        with self._rollouts.alone:
            self._population.remove(policy_id, policy_mapping_fn, policies_to_train)
            self._rollouts.retire(policy_id)
            self._rollouts.follow()
            self._gathering.drop(policy_id)
            self._look_who_left()
        self._outside.publish()

    def _look_who_left(self) -> None:
        """Note which episodes may go on with policies that were removed, where that can be known."""
        vacated = self._population.vacated
        running = self._rollouts.running_ids() if vacated and self._underway.between else None
        if running is not None:
            vacated.look(running)
