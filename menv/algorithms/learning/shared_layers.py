"""Policies that stand on the same hidden layers: which they are, what they share, what they must agree in.

A policy joins a group by `model={"shared_layers": name}`. Each has a learner and an optimizer of its own;
`menv.algorithms.learning.learners` hands the layers on after each one's steps. Nothing here holds weights.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock import StockSpec, Trunk
from menv.algorithms.recipe import Recipe, Weights
from menv.errors import ConfigError
from menv.policy_map import PolicyMap

_ALGORITHMS = ("DQN", "PPO")
_ALONE = 'give it config={"model": {"shared_layers": None}}'


class SharingLearner(Protocol):
    """A learner of a policy that shares layers."""

    def take(self, weights: Weights) -> None:
        """Copy in what another policy has learned about layers that both share."""


class SharedLayers:
    """The groups of policies that share layers, by policy."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Trunk]] = {}
        self._group_of: dict[str, str] = {}

    def names(self, policy_id: str) -> list[str]:
        """Return the names of the weights that a policy shares; they are the same for its whole group."""
        group = self._group_of.get(policy_id)
        return [] if group is None else [name for name, _ in self._groups[group][policy_id].shapes]

    def peers(self, policy_id: str) -> list[str]:
        """Return the other policies of a policy's group, in order."""
        group = self._groups.get(self._group_of.get(policy_id, ""), {})
        return [other for other in group if other != policy_id]

    def join(
        self,
        policy_id: str,
        config: AlgorithmConfig,
        recipe: Recipe,
        network: NetworkSpec,
        policy_map: PolicyMap,
    ) -> None:
        """Put a policy into the group that its settings name, if they name one.

        Raises:
            ConfigError: Its network has no layers to share, or not those of the group; or it learns and
                others of the group do not, or the other way round.
        """
        group = config.model.shared_layers
        if group is None:
            return
        where = f"policies[{policy_id!r}]: model.shared_layers={group!r}"
        trunk = _trunk_of(network, recipe, where)
        for other, theirs in self._groups.get(group, {}).items():
            if theirs != trunk:
                mine, wanted = _difference(trunk, theirs)
                raise ConfigError(
                    f"{where}: its hidden layers have {mine}, expected {wanted} as those of policy {other!r}; "
                    f"{_remedy(trunk, theirs)}, or groups of their own"
                )
            _check_pair(policy_id, other, group, policy_map)
        self._groups.setdefault(group, {})[policy_id] = trunk
        self._group_of[policy_id] = group

    def leave(self, policy_id: str) -> None:
        """Take a policy out of its group, for it is removed."""
        group = self._group_of.pop(policy_id, None)
        if group is not None:
            del self._groups[group][policy_id]
            if not self._groups[group]:
                del self._groups[group]

    def check_frozen(self, policy_map: PolicyMap) -> None:
        """Refuse groups of which some learn and others never do.

        A frozen policy keeps its weights to the last bit, which layers that others train cannot.

        Args:
            policy_map: Who learns; policies that it does not have are left out.

        Raises:
            ConfigError: There is such a group.
        """
        for policy_id, group in self._group_of.items():
            for other in self.peers(policy_id):
                if policy_id in policy_map.specs and other in policy_map.specs:
                    _check_pair(policy_id, other, group, policy_map)

    def check_asked(self, trained: Collection[str], asked: Collection[str]) -> None:
        """Refuse that some of a group learn from a batch while others, who have rows in it, shall not.

        Args:
            trained: The policies that learn from it.
            asked: Those that have rows in it.

        Raises:
            ConfigError: There is such a group.
        """
        for policy_id in trained:
            for other in self.peers(policy_id):
                if other in asked and other not in trained:
                    raise _one_is_frozen(policy_id, other, self._group_of[other])


def _trunk_of(network: NetworkSpec, recipe: Recipe, where: str) -> Trunk:
    if not isinstance(network, StockSpec) or recipe.name not in _ALGORITHMS:
        raise ConfigError(
            f"{where} for {recipe.name} on {type(network).__name__}, expected {' or '.join(_ALGORITHMS)} on the stock "
            f"network; {_ALONE}"
        )
    trunk = network.trunk()
    if not trunk.shapes:
        raise ConfigError(f"{where} without hidden layers, expected at least one; set model.fcnet_hiddens")
    return trunk


def _check_pair(one: str, other: str, group: str, policy_map: PolicyMap) -> None:
    if policy_map.is_frozen(one) != policy_map.is_frozen(other):
        learning, frozen = (other, one) if policy_map.is_frozen(one) else (one, other)
        raise _one_is_frozen(learning, frozen, group)


def _one_is_frozen(learning: str, frozen: str, group: str) -> ConfigError:
    return ConfigError(
        f"policies_to_train: {learning!r} and not {frozen!r}, which shares layers {group!r} with it, expected both or "
        f"none, for a frozen policy keeps its weights; {_ALONE}"
    )


def _remedy(mine: Trunk, theirs: Trunk) -> str:
    heads, others = ({name.partition(".")[0] for name, _ in trunk.shapes} for trunk in (mine, theirs))
    if heads == others:
        return "give both the same model and observation size"
    return "let their heads stand on one trunk, PPO by model.vf_share_layers=True and DQN by dueling=True"


def _difference(mine: Trunk, theirs: Trunk) -> tuple[Any, Any]:
    if mine.activation != theirs.activation:
        return f"activation {mine.activation!r}", repr(theirs.activation)
    pairs = [(dict(mine.shapes).get(name), name, shape) for name, shape in theirs.shapes]
    for own, name, shape in pairs:
        if own != shape:
            return (f"no {name}" if own is None else f"{name} {list(own)}"), (
                name if own is None else list(shape)
            )
    extra = next((name for name, _ in mine.shapes if name not in dict(theirs.shapes)), None)
    if extra is None:
        return f"convolutions {mine.conv}", theirs.conv
    return extra, f"no {extra}"
