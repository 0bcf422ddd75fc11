"""The policies of one algorithm: building them, finding one, adding and removing some while it trains.

`menv.algorithms.algorithm` owns it. It knows networks, recipes and learners, no environments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from menv.algorithms.cohorts import Built, add_to_cohorts, build_cohorts, check_policy_class
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.classic_keys import adopt, override
from menv.algorithms.config.off_policy_config import OffPolicyConfig
from menv.algorithms.config.ppo_config import PPOConfig
from menv.algorithms.learning.learners import Learners
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.recipe import Recipe, recipe_named
from menv.algorithms.rollouts.completion import Completion
from menv.algorithms.rollouts.joint_obs import JointObs
from menv.algorithms.rollouts.rollouts import freeze
from menv.algorithms.vacated import Vacated
from menv.base_env import AgentId
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError
from menv.loop.cohort import Cohort
from menv.loop.net_cohort import NetCohort
from menv.loop.net_policy import NetPolicy
from menv.loop.networks import Departed
from menv.loop.own_cohort import OwnCohort
from menv.policy import Policy, weights_of
from menv.policy_map import PolicyMap
from menv.policy_spec import PolicySpec, check_policy_id
from menv.spec_config import SpecConfig

Resolve = Callable[[PolicyMap], Mapping[str, PolicySpec]]
Agents = Callable[[PolicyMap], Mapping[AgentId, str]]


class Population:
    """All policies and whatever trains them.

    Args:
        policy_map: Who answers for whom.
        resolve: Tries a mapping out and fills in the spaces of its policies.
        agents: Returns the possible agents, each with a policy that answers for it.
        config: The main settings.
        recipe: What trains policies that name no algorithm.
        seed: Decides the first weights and the order of rows.
        callbacks: Told about policies that are created and that learn.

    Attributes:
        policy_map: Who answers for whom.
        policies: The policy objects by id.
        learners: Who learns.
        completion: Makes fragments ready to be learned from.
        cohorts: Who answers together.
        vacated: Places among them that removed policies have left.
    """

    def __init__(
        self,
        policy_map: PolicyMap,
        resolve: Resolve,
        agents: Agents,
        config: AlgorithmConfig,
        recipe: Recipe,
        seed: int,
        callbacks: DefaultCallbacks,
    ) -> None:
        self.policy_map = policy_map
        self._resolve = resolve
        self._agents = agents
        self._joint: JointObs | None = None
        self._config = config
        self._recipe = recipe
        self._seed = seed
        self._callbacks = callbacks
        self.vacated = Vacated()
        specs = self._resolved(policy_map)
        recipes = {
            name: self._recipe_of(name, spec) for name, spec in specs.items() if not spec.answers_itself
        }
        configs = {name: self._config_of(name, specs[name], own, specs) for name, own in recipes.items()}
        self.cohorts, nets = build_cohorts(specs, configs, recipes, seed, config)
        found = {name: cohort for cohort in self.cohorts for name in cohort.policy_ids}
        self.policies = {
            name: _policy_of(found[name], name, spec, seed, nets, configs) for name, spec in specs.items()
        }
        self.learners = Learners(nets, recipes, configs, policy_map, seed, self.policies, callbacks)
        self.completion = Completion(self.cohorts, self.policies, recipes, configs, self._joint_obs)
        freeze(self)
        for name, policy in self.policies.items():
            callbacks.on_create_policy(policy_id=name, policy=policy)

    @property
    def inference(self) -> dict[str, str]:
        """What runs each policy's network, "onnx" or "torch", by policy id."""
        nets = self.learners.nets
        return {
            name: one.inference for one in nets for name in one.cohort.policy_ids if name in self.policies
        }

    def settle(self) -> bool:
        """Check what runs the networks, the first time; return whether something else runs some of them now."""
        settled = [built.settle() for built in self.learners.nets]
        return any(settled)

    def get(self, policy_id: str) -> Policy:
        """Return a policy.

        Raises:
            ConfigError: There is no such policy.
        """
        if isinstance(policy_id, tuple) or not isinstance(policy_id, Hashable):
            # The second argument of classic `compute_single_action` is the state.
            raise ConfigError(
                f"policy_id: {type(policy_id).__name__}, expected one of {sorted(self.policies)}; pass a memory's "
                "state by name, state=..."
            )
        if policy_id not in self.policies:
            raise ConfigError(
                f"policy {policy_id!r} does not exist, expected one of {sorted(self.policies)}; "
                "pass policy_id=... of one of these"
            )
        return self.policies[policy_id]

    def add(self, policy_id: str, spec: Any, mapping_fn: Any, to_train: Any) -> list[Cohort]:
        """Add a policy; arguments and errors as for `Algorithm.add_policy`. Return new cohorts, if any."""
        check_policy_id(policy_id)
        spec = PolicySpec.of(policy_id, spec)
        changed = self.policy_map.changed(
            add={policy_id: spec}, policy_mapping_fn=mapping_fn, policies_to_train=to_train
        )
        learners, recipe, config = self.learners, None, None
        specs = self._resolved(changed)
        resolved = specs[policy_id]
        if not spec.answers_itself:
            recipe = self._recipe_of(policy_id, spec)
            config = self._config_of(policy_id, resolved, recipe, specs)
        learners.shared.check_frozen(changed)

        def admit(network: NetworkSpec) -> None:
            assert recipe is not None
            assert config is not None
            learners.shared.join(policy_id, config, recipe, network, changed)

        added = add_to_cohorts(
            learners.nets, policy_id, resolved, config, recipe, self._seed, admit, self.vacated, self._config
        )
        if recipe is not None and config is not None:
            learners.recipes[policy_id], learners.configs[policy_id] = recipe, config
            learners.take_over(policy_id)
        home = _home(policy_id, (*self.cohorts, *added))
        for built in learners.nets:
            if built.cohort is home:
                built.settle()
        try:
            policy = _policy_of(home, policy_id, resolved, self._seed, learners.nets, learners.configs)
        except Exception:
            self._withdraw(policy_id, home)
            raise
        self.cohorts.extend(added)
        self.policies[policy_id] = policy
        self._take(changed)
        self._callbacks.on_create_policy(policy_id=policy_id, policy=self.policies[policy_id])
        return added

    def take_back(self, policy_id: str, added: Iterable[Cohort], before: PolicyMap) -> None:
        """Undo `add`, which returned these cohorts and found this policy map."""
        cohort = _home(policy_id, self.cohorts)
        for one in added:
            self.cohorts.remove(one)
        self._withdraw(policy_id, cohort)
        del self.policies[policy_id]
        self._take(before)

    def remove(self, policy_id: str, mapping_fn: Any, to_train: Any) -> None:
        """Remove a policy; arguments and errors as for `Algorithm.remove_policy`."""
        changed = self.policy_map.changed(
            remove=[policy_id], policy_mapping_fn=mapping_fn, policies_to_train=to_train
        )
        self._resolved(changed)
        self.learners.shared.check_frozen(changed)
        self.learners.forget(policy_id)
        self.completion.postprocessing.forget(policy_id)
        policy, cohort = self.policies.pop(policy_id), _home(policy_id, self.cohorts)
        self.vacated.leave(cohort, cohort.policy_ids.index(policy_id))
        if isinstance(policy, NetPolicy):
            assert isinstance(policy.networks, NetCohort)
            # Whoever holds the object may go on with it.
            policy.networks, policy.index = Departed.of(policy.networks, policy.index), 0
        self._take(changed)

    def read_weights(self, weights: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return weights that a user gives, once they are of policies that there are.

        Raises:
            ConfigError: They are not by policy id and name, or there is no such policy.
        """
        given = weights.values() if isinstance(weights, Mapping) else [weights]
        wrong = next((one for one in given if not isinstance(one, Mapping)), None)
        if not isinstance(weights, Mapping) or not all(isinstance(one, Mapping) for one in given):
            raise ConfigError(
                f"set_weights: {type(wrong).__name__} where weights by name belong, expected a dict of these by policy "
                "id; give what get_weights returned"
            )
        for policy_id in weights:
            self.get(policy_id)
        return weights

    def set_weights(self, weights: Mapping[str, Mapping[str, Any]]) -> None:
        """Give policies weights, and their learners; where one policy refuses its own, all keep those of before.

        Args:
            weights: By policy id and name.
        """
        several = weights if len(weights) > 1 else ()
        before = {policy_id: weights_of(self.policies[policy_id]) for policy_id in several}
        changed: list[str] = []
        try:
            for policy_id, by_name in weights.items():
                self.policies[policy_id].set_weights(by_name)
                changed.append(policy_id)
        except BaseException:
            for policy_id in changed:
                self.policies[policy_id].set_weights(before[policy_id])
            raise
        for policy_id, by_name in weights.items():
            if self.learners.shared.peers(policy_id):
                # Another one of the group has handed its layers on.
                self.policies[policy_id].set_weights(by_name)
            self.learners.set_weights(policy_id, by_name)

    def copy(self, policy: Policy, policy_id: str) -> None:
        """Give a policy the weights and the connectors of another one, whoever that belongs to.

        Raises:
            ConfigError: Their networks differ, or a connector is not registered here.
        """
        own = self.get(policy_id)
        if not isinstance(own, NetPolicy) or not isinstance(policy, NetPolicy):
            raise ConfigError(
                f"policy {policy_id!r}: {type(own).__name__} cannot copy a {type(policy).__name__}, expected two "
                "policies with networks; leave out policy_class"
            )
        self.set_weights({policy_id: policy.get_weights()})
        own.set_connectors_state(
            [policy.agent_connectors.to_state()[1], policy.action_connectors.to_state()[1]]
        )

    def state(self) -> dict[str, Any]:
        """Return what answers depend on besides weights, as a plain tree; who learns is asked by itself."""
        nets = {name: one for name, one in self.policies.items() if isinstance(one, NetPolicy)}
        return {
            "connectors": {name: one.connectors_state() for name, one in nets.items()},
            "draws": {name: one.draws_state() for name, one in nets.items()},
        }

    def set_state(self, tree: Mapping[str, Any], weights: Mapping[str, Mapping[str, Any]], seed: int) -> None:
        """Let the policies answer as those did of which `state` told.

        Args:
            tree: May hold more, and lack some of the policies.
            weights: By policy; those that are missing stay.
            seed: Decides the first weights of policies that come later.
        """
        self._seed = seed
        for policy_id, policy in self.policies.items():
            if policy_id in weights:
                policy.set_weights(weights[policy_id])
            if isinstance(policy, NetPolicy):
                policy.set_connectors_state(tree["connectors"].get(policy_id))
                policy.set_draws_state(tree["draws"].get(policy_id))

    def sample_size(self, num_envs: int) -> int:
        """Return the steps that are sampled before the learners get them: as many as any who may learn needs."""
        learning = (
            config for name, config in self.learners.configs.items() if not self.policy_map.is_frozen(name)
        )
        configs: Iterable[AlgorithmConfig] = (self._config, *learning)
        return max(config.sample_size(num_envs) for config in configs)

    def _withdraw(self, policy_id: str, cohort: Cohort) -> None:
        learners = self.learners
        learners.forget(policy_id)
        self.completion.postprocessing.forget(policy_id)
        if cohort in self.cohorts:
            self.vacated.leave(cohort, cohort.policy_ids.index(policy_id))
        cohort.retire(policy_id)
        # A cohort that was made for it is nobody's.
        learners.nets[:] = [built for built in learners.nets if built.cohort in self.cohorts]

    def _take(self, policy_map: PolicyMap) -> None:
        self.policy_map = self.learners.policy_map = policy_map
        freeze(self)

    def _resolved(self, policy_map: PolicyMap) -> Mapping[str, PolicySpec]:
        specs = self._resolve(policy_map)
        policy_map.keep_spaces(specs)
        return specs

    def _recipe_of(self, policy_id: str, spec: PolicySpec) -> Recipe:
        return self._recipe if spec.trained_by is None else recipe_named(spec.trained_by, policy_id)

    def _config_of(
        self, policy_id: str, spec: PolicySpec, recipe: Recipe, specs: Mapping[str, PolicySpec]
    ) -> AlgorithmConfig:
        """Return one policy's settings; `spec` and `specs`, those of all policies, have their spaces."""
        if recipe.name == self._recipe.name:
            config = override(self._config, spec.config, policy_id)
        else:
            config = adopt(recipe.config_class, self._config, spec.config, policy_id)
        if isinstance(config, OffPolicyConfig):
            config.check_reach(self._config, f"policies[{policy_id!r}].config: ")
        if config.num_gpus:
            from menv.algorithms.torch_device import learning_device

            # Now, not after the first fragment.
            learning_device(config.num_gpus)
        if isinstance(config, PPOConfig) and config.critic_obs == "all_agents":
            if self._joint is None:
                owners = self._agents(self.policy_map)
                self._joint = JointObs({agent: specs[owner] for agent, owner in owners.items()})
            size = self._joint.size(spec.observation_space, spec.action_space)
            return replace(config, critic_obs_size=size)
        return config

    def _joint_obs(self) -> JointObs:
        assert self._joint is not None
        return self._joint


def _home(policy_id: str, cohorts: Iterable[Cohort]) -> Cohort:
    return next(cohort for cohort in cohorts if policy_id in cohort.policy_ids)


def _policy_of(
    cohort: Cohort,
    policy_id: str,
    spec: PolicySpec,
    seed: int,
    nets: Iterable[Built],
    configs: Mapping[str, AlgorithmConfig],
) -> Policy:
    index = cohort.policy_ids.index(policy_id)
    if isinstance(cohort, OwnCohort):
        return cohort.policies[index]
    assert isinstance(cohort, NetCohort)
    if spec.policy_class is not None:
        (network,) = (built.network for built in nets if built.cohort is cohort)
        settings = configs[policy_id]
        check_policy_class(policy_id, spec.policy_class)
        policy: NetPolicy = spec.policy_class(
            cohort, index, spec.config, seed, network=network, settings=settings
        )
    else:
        policy = NetPolicy(cohort, index, spec.config, seed)
        policy.config = SpecConfig(spec.config or {}, configs[policy_id])
    policy.explore = configs[policy_id].explore
    return policy
