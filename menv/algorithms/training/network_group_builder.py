"""Policy groups: policies with the same architecture act together.

The architecture is the same if spaces, model and the form of actions are equal; weights and learning settings may
differ. `menv.algorithms.training.policy_set` builds the groups and adds policies to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from menv import rng
from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.networks.network_spec import NetworkSpec, check_size, memory_for
from menv.algorithms.recipe import Recipe
from menv.algorithms.training.torch_threads import check_packages, learning_device
from menv.base_env import AgentId
from menv.connectors.action_output import ActionOutput
from menv.connectors.connector import ConnectorContext
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import PolicyConnectors, action_pipeline, action_plan, agent_pipeline
from menv.errors import ConfigError
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.backend import ActingBackend
from menv.inference.network_policy import NetworkGroup, NetworkPolicy
from menv.policy import Policy
from menv.policy_spec import PolicySpec
from menv.sampling.custom_policies import CustomPolicyStrategy
from menv.sampling.policy_group import NetworkStrategy, PolicyGroup
from menv.wrappers.group_agents import STATE_KEY


class FreePolicySlots:
    """Slots that removed policies have left in their groups.

    Agents whose episodes began before the removal keep the policy, by the number of its slot, to their last row, here
    and in workers; a new policy may claim the slot after that.
    """

    def __init__(self) -> None:
        # Group, index, and the ids of episodes that may still use it, None before `update_running` was called.
        self._places: list[tuple[PolicyGroup, int, set[int] | None]] = []

    def __bool__(self) -> bool:
        return bool(self._places)

    def release(self, group: PolicyGroup, index: int) -> None:
        """Add the slot of a removed policy."""
        self._places.append((group, index, None))

    def update_running(self, running: Iterable[int]) -> None:
        """Update the episodes that run between two fragments, while no other rows are held."""
        now = set(running)
        self._places = [
            (group, index, now if named_by is None else named_by & now)
            for group, index, named_by in self._places
        ]

    def claim(self, takes: Callable[[PolicyGroup, int], bool]) -> tuple[PolicyGroup, int] | None:
        """Return and remove an unused slot that `takes` accepts, None without one."""
        for number, (group, index, named_by) in enumerate(self._places):
            if named_by is not None and not named_by and takes(group, index):
                del self._places[number]
                return group, index
        return None


@dataclass(slots=True)
class BuiltPolicies:
    """A group of networks and how it was built.

    `form` must be equal for a policy to join; `check` returns another backend if the group's is wrong.
    """

    group: PolicyGroup
    networks: NetworkGroup
    network: NetworkSpec
    form: Any
    check: Callable[[], ActingBackend | None] | None

    @property
    def inference(self) -> str:
        """The backend, "onnx" or "torch"."""
        return self.networks.backend.name

    def check_backend(self) -> bool:
        """Check the backend, the first time; return whether it was replaced."""
        check, self.check = self.check, None
        other = check() if check else None
        if other is None:
            return False
        self.networks.backend = other
        return True


@dataclass(frozen=True)
class GraphsHere:
    """The acting graphs of a network for policies on disk; None in other processes, which need no code of models."""

    network: NetworkSpec | None

    def __call__(self) -> ActingGraphs | None:
        return None if self.network is None else self.network.stored_graphs()

    def __reduce__(self) -> Any:
        return GraphsHere, (None,)


def build_groups(
    specs: Mapping[str, PolicySpec],
    configs: Mapping[str, AlgorithmConfig],
    recipes: Mapping[str, Recipe],
    seed: int,
) -> tuple[list[PolicyGroup], list[BuiltPolicies]]:
    """Return all groups, and how groups of networks were built."""
    groups: list[PolicyGroup] = []
    nets: list[BuiltPolicies] = []
    networks = {name: _network(name, specs[name], configs[name], recipe) for name, recipe in recipes.items()}
    for members in _alike(specs, configs, networks):
        first = specs[members[0]]
        if first.answers_itself:
            policies = [_own_policy(name, specs[name]) for name in members]
            groups.append(_custom_group(members, policies, first))
        else:
            weights = [
                first_weights(networks[name], name, configs[name], recipes[name], seed) for name in members
            ]
            network = networks[members[0]]
            connectors = [_connectors(specs[name], configs[name], network) for name in members]
            nets.append(_new_group(members, first, configs[members[0]], network, weights, connectors, seed))
            groups.append(nets[-1].group)
    return groups, nets


def _network(name: str, spec: PolicySpec, config: AlgorithmConfig, recipe: Recipe) -> NetworkSpec:
    preprocessor = ObsPreprocessor(spec.observation_space)
    try:
        space, width = _connectors(spec, config).agent.space(spec.observation_space, 0)
        codes = len(config.agent_connectors[-1][1]["agents"]) if config.agent_ids else 0
        if width != preprocessor.size + codes and getattr(config, "critic_obs", None) is not None:
            raise ConfigError(
                "agent_connectors: observations are widened together with critic_obs, expected one or the other; "
                "leave one out"
            )
        network = recipe.network(width, spec.action_space, config, space)
        check_size(network)
    except ConfigError as error:
        raise ConfigError(f"policies[{name!r}], {error}") from error
    if preprocessor.mask_width not in (0, network.head.mask_width):
        raise ConfigError(
            f"policies[{name!r}]: action_mask of {preprocessor.mask_width} flags for the action space "
            f"{spec.action_space}, expected {network.head.mask_width}; give one flag for each choice"
        )
    return network


def _alike(
    specs: Mapping[str, PolicySpec],
    configs: Mapping[str, AlgorithmConfig],
    networks: Mapping[str, NetworkSpec],
) -> list[list[str]]:
    groups: list[tuple[Any, list[str]]] = []
    for name, spec in specs.items():
        key = _form(spec, configs.get(name), networks.get(name))
        members = next((members for other, members in groups if other == key), None)
        if members is None:
            groups.append((key, [name]))
        else:
            members.append(name)
    return [members for _, members in groups]


def _form(spec: PolicySpec, config: AlgorithmConfig | None, network: NetworkSpec | None) -> Any:
    """Return what policies must have in common to act together."""
    form = config and (
        config.normalize_actions,
        config.clip_actions,
        config.inference,
        config.num_gpus > 0,
        config.observation_filter,
        list(config.agent_connectors),
    )
    return spec.observation_space, spec.action_space, network, form


def add_to_groups(
    nets: list[BuiltPolicies],
    name: str,
    spec: PolicySpec,
    config: AlgorithmConfig | None,
    recipe: Recipe | None,
    seed: int,
    admit: Callable[[NetworkSpec], None],
    free_slots: FreePolicySlots,
) -> list[PolicyGroup]:
    """Add a policy to the group with its architecture, or return a new group of it.

    `admit` is called with its network before anything changes and may refuse it.
    """
    if recipe is None or config is None:
        return _add_own(name, spec, free_slots)
    network = _network(name, spec, config, recipe)
    admit(network)
    form = _form(spec, config, network)
    weights = first_weights(network, name, config, recipe, seed)
    alike = next((built for built in nets if built.form == form), None)
    if alike is not None:
        left = free_slots.claim(lambda group, _: group is alike.group)
        alike.networks.admit(name, weights, _connectors(spec, config, network), left and left[1])
        return []
    connectors = [_connectors(spec, config, network)]
    nets.append(_new_group([name], spec, config, network, [weights], connectors, seed))
    return [nets[-1].group]


def _add_own(name: str, spec: PolicySpec, free_slots: FreePolicySlots) -> list[PolicyGroup]:
    """Give a custom policy a free slot, or return a new group of it."""
    policy = _own_policy(name, spec)
    if free_slots.claim(lambda group, place: group.strategy.admit(name, policy, place, spec)):
        return []
    return [_custom_group([name], [policy], spec)]


def _custom_group(members: Sequence[str], policies: Sequence[Policy], spec: PolicySpec) -> PolicyGroup:
    return PolicyGroup(CustomPolicyStrategy(members, policies, spec.observation_space, spec.action_space))


def first_weights(network: NetworkSpec, name: str, config: AlgorithmConfig, recipe: Recipe, seed: int) -> Any:
    """Return a new policy's weights."""
    own_seed = rng.key(seed, rng.stable_hash(name), rng.WEIGHTS) >> 1
    with memory_for(name, network.weight_shapes()):
        return recipe.first_weights(network, config, own_seed)


def _own_policy(policy_id: str, spec: PolicySpec) -> Policy:
    assert spec.policy_class is not None
    if not issubclass(spec.policy_class, Policy):
        raise ConfigError(
            f"policies[{policy_id!r}]: policy_class {spec.policy_class.__name__}, expected a subclass of menv.Policy; "
            "derive it from menv.Policy and define compute_actions"
        )
    # Never None: policies written for the classic interface read it.
    policy: Policy = spec.policy_class(spec.observation_space, spec.action_space, spec.config or {})
    return policy


def _marked(spec: PolicySpec, config: AlgorithmConfig) -> int:
    """Return how many members of a group are marked as present or absent in the rows of a policy."""
    members = getattr(spec.action_space, "spaces", ())
    return len(members) if config.groups_agents else 0


def _connectors(
    spec: PolicySpec, config: AlgorithmConfig, network: NetworkSpec | None = None
) -> PolicyConnectors:
    """Return the pipelines of a new policy; without a network they only describe shapes."""
    states = [] if network is None else [np.zeros(size, np.float32) for size in network.state_sizes]
    ctx = ConnectorContext(
        dict(spec.config or {}),
        states,
        spec.observation_space,
        spec.action_space,
        is_policy_recurrent=bool(states),
        marked=_marked(spec, config),
    )
    agent = agent_pipeline(
        ctx,
        observation_filter=config.observation_filter,
        more=config.agent_connectors,
    )
    action = action_pipeline(ctx, normalize=config.normalize_actions, clip=config.clip_actions)
    return PolicyConnectors(agent, action)


def _new_group(
    members: Sequence[str],
    spec: PolicySpec,
    config: AlgorithmConfig,
    network: NetworkSpec,
    weights: Sequence[Any],
    connectors: list[PolicyConnectors],
    seed: int,
) -> BuiltPolicies:
    preprocessor = ObsPreprocessor(spec.observation_space, spec.action_space, _marked(spec, config))
    backend, check = _backend(network, weights, config, seed, preprocessor)
    output = ActionOutput(spec.action_space, normalize=config.normalize_actions, clip=config.clip_actions)
    networks = NetworkGroup(
        list(members), spec.observation_space, spec.action_space, preprocessor, backend, output, network.state_sizes,
        connectors, action_plan(connectors[0].action), *connectors[0].rows_of(spec.observation_space),
        GraphsHere(network),
    )  # fmt: skip
    group = PolicyGroup(NetworkStrategy(networks))
    return BuiltPolicies(group, networks, network, _form(spec, config, network), check)


def _backend(
    network: NetworkSpec,
    weights: Sequence[Mapping[str, Any]],
    config: AlgorithmConfig,
    seed: int,
    preprocessor: ObsPreprocessor,
) -> tuple[ActingBackend, Callable[[], ActingBackend | None] | None]:
    """Return the backend, and for "auto" its check; see `BuiltPolicies.check`."""
    from menv.inference.onnx_backend import OnnxBackend

    inference, state_size = config.inference, sum(network.state_sizes)
    graphs = None if inference == "torch" else network.graphs(weights[0])
    if graphs is not None:
        onnx = OnnxBackend(graphs, network.head, weights, state_size)
        return onnx, None if inference == "onnx" else partial(_checked, onnx, network, seed, preprocessor)
    if inference == "onnx":
        raise ConfigError(
            'inference: "onnx" for a network that has no acting graph, expected "auto" or "torch"; choose one'
        )
    check_packages("inference", "torch")
    device = learning_device(config.num_gpus)
    torch_backend = _torch_backend().TorchBackend(
        network.torch_network, network.head, weights, state_size, device
    )
    return torch_backend, None


def _torch_backend() -> Any:
    """Return the module that imports torch, which acting by ONNX Runtime does not need."""
    from menv.algorithms.networks import torch_backend

    return torch_backend


def _checked(
    onnx: ActingBackend, network: NetworkSpec, seed: int, preprocessor: ObsPreprocessor
) -> ActingBackend | None:
    """Return a torch backend with the same weights if ONNX Runtime disagrees with it."""
    torch_backend = _torch_backend()
    weights = [onnx.get_weights(policy) for policy in range(onnx.policies)]
    reference: ActingBackend = torch_backend.TorchBackend(
        network.torch_network, network.head, weights, sum(network.state_sizes)
    )
    try:
        rng, masked = np.random.default_rng(seed), preprocessor.mask_width > 0
        torch_backend.check_against(
            onnx,
            reference,
            rng,
            masked=masked,
            critic_size=network.critic_size,
            dtype=preprocessor.dtype,
            brightest=255 if network.scales_bytes else 3,
        )
    except ConfigError:
        return reference
    return None


def member_policy(
    policy: NetworkPolicy, built: BuiltPolicies, config: AlgorithmConfig, members: Sequence[AgentId]
) -> NetworkPolicy:
    """Return the policy of each member of a group that QMIX trains: it sees the member's own observation and its code.

    Raises:
        ConfigError: Observations go through connectors, or hold the global state.
    """
    networks, network = policy.networks, built.network.member
    assert network is not None
    observations: Any = networks.observation_space
    actions: Any = networks.action_space
    spec = PolicySpec(observation_space=observations.spaces[0], action_space=actions.spaces[0])
    if (
        config.observation_filter != "NoFilter"
        or config.agent_connectors
        or STATE_KEY in (getattr(spec.observation_space, "spaces", None) or ())
    ):
        raise ConfigError(
            f"policy {policy.policy_id!r}: members of its group have no separate policies, because their "
            "observations go through observation_filter or agent_connectors, or have an entry 'state', expected none "
            "of these; write state() in the environment"
        )
    codes = ("AgentIdAgentConnector", {"agents": [str(member) for member in members]})
    own = AlgorithmConfig(
        normalize_actions=config.normalize_actions, clip_actions=config.clip_actions, agent_connectors=[codes],
        inference="onnx",
    )  # fmt: skip
    trained = policy.get_weights()
    weights = {name: trained[name] for name in network.weight_shapes()}
    connectors = [_connectors(spec, own, network)]
    alone = _new_group([policy.policy_id], spec, own, network, [weights], connectors, policy.seed)
    found = NetworkPolicy(alone.networks, 0, {}, policy.seed)
    found.explore = policy.explore
    return found
