"""The policies of one algorithm: building them, finding one, adding and removing some during training.

`PolicySet` holds them with their groups and learners; it knows no environments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.config.read_config import adopt, override
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.off_policy.config import ReplayConfig
from menv.algorithms.recipe import Recipe, recipe_named
from menv.algorithms.rollouts.centralized_critic import JointObs
from menv.algorithms.rollouts.local_rollouts import freeze
from menv.algorithms.rollouts.postprocessing import BatchPostprocessor
from menv.algorithms.rollouts.worker_messages import PolicyView, network_policies
from menv.algorithms.training.learners import Learners
from menv.algorithms.training.network_group_builder import (
    BuiltPolicies,
    FreePolicySlots,
    add_to_groups,
    build_groups,
    member_policy,
)
from menv.algorithms.training.torch_threads import learning_device
from menv.base_env import AgentId
from menv.callbacks import DefaultCallbacks
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.errors import ConfigError
from menv.inference.network_policy import NetworkPolicy
from menv.migration_hints import warn_of_uncalled
from menv.policy import Policy, weights_of
from menv.policy_map import MappingSetting, PolicyMap
from menv.policy_spec import PolicySpec, SpecConfig, check_policy_id
from menv.sampling.policy_group import PolicyGroup

Resolve = Callable[[PolicyMap], Mapping[str, PolicySpec]]
Agents = Callable[[PolicyMap], Mapping[AgentId, str]]
TrainSetting = Iterable[str] | Callable[..., bool] | None


class PolicySet(PolicyView):
    """All policies of a run, and what trains them.

    `resolve` runs a mapping and fills in the spaces of its policies, `agents` returns the possible agents with the
    policy of each, and `recipe` trains policies that name no algorithm. `groups` holds policies that act together,
    `free_slots` the slots in them that removed policies have left. `run_groups` are the members of the groups of agents
    that the run itself has formed in `env`.
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
        env: Any,
    ) -> None:
        self.policy_map = policy_map
        self._resolve = resolve
        self._agents = agents
        self._joint: JointObs | None = None
        self._config = config
        self._recipe = recipe
        self._seed = seed
        self._callbacks = callbacks
        self.run_groups: Mapping[AgentId, Sequence[AgentId]] = getattr(env, "run_groups", {})
        self._state_size: int = getattr(env, "run_state_size", 0)
        self.free_slots = FreePolicySlots()
        specs = self._resolved(policy_map)
        recipes = {
            name: self._recipe_of(name, spec) for name, spec in specs.items() if not spec.answers_itself
        }
        configs = {name: self._config_of(name, specs[name], own, specs) for name, own in recipes.items()}
        self.groups, nets = build_groups(specs, configs, recipes, seed)
        found = {name: group for group in self.groups for name in group.policy_ids}
        self.policies = {
            name: _policy_of(found[name], name, spec, seed, nets, configs) for name, spec in specs.items()
        }
        self.learners = Learners(nets, recipes, configs, policy_map, seed, self.policies, callbacks)
        self.postprocessor = BatchPostprocessor(self.groups, self.policies, recipes, configs, self._joint_obs)
        freeze(self)

    @property
    def network_policies(self) -> dict[str, NetworkPolicy]:
        """The policies with a network, by id."""
        return network_policies(self.policies)

    @property
    def inference(self) -> dict[str, str]:
        """The backend of each policy's network, "onnx" or "torch", by policy id."""
        nets = self.learners.nets
        return {name: one.inference for one in nets for name in one.group.policy_ids if name in self.policies}

    def check_backends(self) -> bool:
        """Check the ONNX backends, once; return whether a torch backend replaces one of them."""
        settled = [built.check_backend() for built in self.learners.nets]
        return any(settled)

    def get(self, policy_id: str) -> Policy:
        """Return a policy; raise `ConfigError` if there is none."""
        if not isinstance(policy_id, Hashable) or policy_id not in self.policies:
            raise ConfigError(
                f"policy {policy_id!r:.60} does not exist, expected one of {sorted(self.policies)}; "
                "pass policy_id=... of one of these"
            )
        return self.policies[policy_id]

    @property
    def learns_from(self) -> str:
        """What centralized critics and mixing networks see, as a sentence; "" if there are none."""
        configs = self.learners.configs.values()
        seen = {getattr(config, "critic_obs", None) for config in configs}
        if self._state_size:
            return f"global state: state() of the environment, {self._state_size} numbers"
        mixes = any(getattr(config, "mixer", None) == "qmix" for config in configs)
        return "global state: the observations of all agents" if mixes or "all_agents" in seen else ""

    def on_disk(self, policy_id: str) -> Policy:
        """Return a policy as others load it: for a group that the run has formed, the policy of one member."""
        policy, owners = self.get(policy_id), self._agents(self.policy_map) if self.run_groups else {}
        group = next((one for one in self.run_groups if owners.get(one) == policy_id), None)
        built = next((one for one in self.learners.nets if policy_id in one.group.policy_ids), None)
        if group is None or built is None or not isinstance(policy, NetworkPolicy):
            return policy
        return member_policy(policy, built, self.learners.configs[policy_id], self.run_groups[group])

    def add(
        self, policy_id: str, spec: Any, mapping_fn: MappingSetting, to_train: TrainSetting
    ) -> list[PolicyGroup]:
        """Add a policy as `Algorithm.add_policy` does; return the new groups, if any."""
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

        added = add_to_groups(
            learners.nets,
            policy_id,
            resolved,
            config,
            recipe,
            self._seed,
            admit,
            self.free_slots,
        )
        if recipe is not None and config is not None:
            learners.recipes[policy_id], learners.configs[policy_id] = recipe, config
            learners.copy_shared_layers(policy_id)
        home = _group_of(policy_id, (*self.groups, *added))
        for built in learners.nets:
            if built.group is home:
                built.check_backend()
        try:
            policy = _policy_of(home, policy_id, resolved, self._seed, learners.nets, learners.configs)
        except Exception:
            self._withdraw(policy_id, home)
            raise
        self.groups.extend(added)
        self.policies[policy_id] = policy
        self._take(changed)
        return added

    def undo_add(self, policy_id: str, added: Iterable[PolicyGroup], before: PolicyMap) -> None:
        """Undo `add`, which returned these groups; `before` is the policy map before it."""
        group = _group_of(policy_id, self.groups)
        for one in added:
            self.groups.remove(one)
        self._withdraw(policy_id, group)
        del self.policies[policy_id]
        self._take(before)

    def remove(self, policy_id: str, mapping_fn: MappingSetting, to_train: TrainSetting) -> None:
        """Remove a policy as `Algorithm.remove_policy` does."""
        changed = self.policy_map.changed(
            remove=[policy_id], policy_mapping_fn=mapping_fn, policies_to_train=to_train
        )
        self._resolved(changed)
        self.learners.shared.check_frozen(changed)
        self.learners.forget(policy_id)
        self.postprocessor.forget(policy_id)
        network = self.network_policies.get(policy_id)
        del self.policies[policy_id]
        group = _group_of(policy_id, self.groups)
        self.free_slots.release(group, group.policy_ids.index(policy_id))
        if network is not None:
            # The object stays usable.
            network.networks, network.index = network.networks.single(network.index), 0
        self._take(changed)

    def read_weights(self, weights: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return the user's weights once they are checked to be by policy id and name."""
        for one in (weights, *(weights.values() if isinstance(weights, Mapping) else ())):
            if not isinstance(one, Mapping):
                raise ConfigError(
                    f"set_weights: {type(one).__name__}, expected {{policy_id: {{name: array}}}}; "
                    "pass what get_weights returned"
                )
        for policy_id in weights:
            self.get(policy_id)
        return dict(weights)

    def set_weights(self, weights: Mapping[str, Mapping[str, Any]]) -> None:
        """Set weights by policy id and name, in learners too; if one policy refuses its weights, no policy changes."""
        several = weights if len(weights) > 1 else ()
        before = {policy_id: weights_of(self.policies[policy_id]) for policy_id in several}
        changed: list[str] = []
        try:
            for policy_id, by_name in weights.items():
                self.policies[policy_id].set_weights(by_name)
                changed.append(policy_id)
        except BaseException:
            for done in changed:
                self.policies[done].set_weights(before[done])
            raise
        for policy_id, by_name in weights.items():
            if self.learners.shared.peers(policy_id):
                # Another policy of the group has changed the shared layers.
                self.policies[policy_id].set_weights(by_name)
            self.learners.set_weights(policy_id, by_name)

    def copy(self, policy: Policy, policy_id: str) -> None:
        """Give a policy the weights and connectors of another one, of this or another algorithm."""
        own = self.get(policy_id)
        if not isinstance(own, NetworkPolicy) or not isinstance(policy, NetworkPolicy):
            raise ConfigError(
                f"policy {policy_id!r}: {type(own).__name__} cannot copy a {type(policy).__name__}, expected two "
                "policies with networks; leave out policy_class"
            )
        self.set_weights({policy_id: policy.get_weights()})
        own.set_connectors_state(
            [policy.agent_connectors.to_state()[1], policy.action_connectors.to_state()[1]]
        )

    def state(self) -> dict[str, Any]:
        """Return the states of connectors and of random sampling of each network policy."""
        nets = self.network_policies
        return {
            "connectors": {name: one.connectors_state() for name, one in nets.items()},
            "draws": {name: one.draws_state() for name, one in nets.items()},
        }

    def set_state(
        self,
        connectors: Mapping[str, Any],
        draws: Mapping[str, Sequence[int]],
        weights: Mapping[str, Mapping[str, Any]],
        seed: int,
    ) -> None:
        """Restore `state` and weights; policies that `weights` lacks keep theirs.

        `seed` applies to policies that are added later.
        """
        self._seed = seed
        for policy_id, policy in self.policies.items():
            if policy_id in weights:
                policy.set_weights(weights[policy_id])
        for policy_id, net in self.network_policies.items():
            net.set_connectors_state(connectors.get(policy_id))
            net.set_draws_state(draws.get(policy_id))

    def sample_size(self, num_envs: int) -> int:
        """Return the steps to sample before learning: the largest number that any learning policy needs."""
        learning = (
            config for name, config in self.learners.configs.items() if not self.policy_map.is_frozen(name)
        )
        configs: Iterable[AlgorithmConfig] = (self._config, *learning)
        return max(config.sample_size(num_envs) for config in configs)

    def _withdraw(self, policy_id: str, group: PolicyGroup) -> None:
        learners = self.learners
        learners.forget(policy_id)
        self.postprocessor.forget(policy_id)
        if group in self.groups:
            self.free_slots.release(group, group.policy_ids.index(policy_id))
        group.retire(policy_id)
        # Drop a group that was built for it.
        learners.nets[:] = [built for built in learners.nets if built.group in self.groups]

    def _take(self, policy_map: PolicyMap) -> None:
        self.policy_map = self.learners.policy_map = policy_map
        freeze(self)

    def _resolved(self, policy_map: PolicyMap) -> Mapping[str, PolicySpec]:
        specs = self._resolve(policy_map)
        policy_map.keep_spaces(specs)
        return specs

    def _recipe_of(self, policy_id: str, spec: PolicySpec) -> Recipe:
        return (
            self._recipe
            if spec.trained_by is None
            else recipe_named(spec.trained_by, f"policies[{policy_id!r}]: algorithm")
        )

    def _config_of(
        self, policy_id: str, spec: PolicySpec, recipe: Recipe, specs: Mapping[str, PolicySpec]
    ) -> AlgorithmConfig:
        """Return one policy's settings; `specs` are all policies with their spaces."""
        if recipe.name == self._recipe.name:
            config = override(self._config, spec.config, policy_id)
        else:
            config = adopt(recipe.config_class, self._config, spec.config, policy_id)
        if isinstance(config, ReplayConfig):
            config.check_reach(self._config, f"policies[{policy_id!r}].config: ")
        if config.num_gpus:
            # Now, not after the first fragment.
            learning_device(config.num_gpus)
        if config.agent_ids:
            config = with_agent_ids(config, self._agents(self.policy_map))
        critic: Any = getattr(config, "critic_obs", None)
        if critic == "state":
            codes = len(config.agent_connectors[-1][1]["agents"]) if config.agent_ids else 0
            size = ObsPreprocessor(spec.observation_space).size + codes + self._state_size
            # Without a state all observations are shown; clients and recordings have none.
            critic = critic if self._state_size and config.input is None else "all_agents"
            known: Any = {"critic_obs": critic, "critic_obs_size": size}
            config = replace(config, **known)
        if critic == "all_agents":
            if self._joint is None:
                owners = self._agents(self.policy_map)
                self._joint = JointObs({agent: specs[owner] for agent, owner in owners.items()})
            size = self._joint.size(spec.observation_space) + config.agent_ids * len(self._joint.places)
            known = {"critic_obs_size": size}
            return replace(config, **known)
        return config

    def _joint_obs(self) -> JointObs:
        assert self._joint is not None
        return self._joint


def with_agent_ids(config: AlgorithmConfig, agents: Iterable[AgentId]) -> AlgorithmConfig:
    """Return settings with the connector of `agent_ids` behind the others."""
    names = [str(agent) for agent in agents]
    if not names:
        raise ConfigError(
            "agent_ids: the environment has no possible_agents; set it in the environment, or leave agent_ids out"
        )
    last = ("AgentIdAgentConnector", {"agents": names})
    return replace(config, agent_connectors=(*config.agent_connectors, last))


def _group_of(policy_id: str, groups: Iterable[PolicyGroup]) -> PolicyGroup:
    return next(group for group in groups if policy_id in group.policy_ids)


def _policy_of(
    group: PolicyGroup,
    policy_id: str,
    spec: PolicySpec,
    seed: int,
    nets: Iterable[BuiltPolicies],
    configs: Mapping[str, AlgorithmConfig],
) -> Policy:
    index = group.policy_ids.index(policy_id)
    networks = group.strategy.networks
    if networks is None:
        return group.strategy.policies[index]
    if spec.policy_class is not None:
        (network,) = (built.network for built in nets if built.group is group)
        settings = configs[policy_id]
        where = f"policies[{policy_id!r}]: {spec.policy_class.__name__}"
        warn_of_uncalled(where, "PPOPolicy", spec.policy_class)
        policy: NetworkPolicy = spec.policy_class(
            networks, index, spec.config, seed, network=network, settings=settings
        )
    else:
        policy = NetworkPolicy(networks, index, spec.config, seed)
        policy.config = SpecConfig(spec.config or {}, configs[policy_id])
    policy.explore = configs[policy_id].explore
    return policy
