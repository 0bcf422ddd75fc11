"""The learners of all policies: each learns from its policy's rows, and the policy gets the new weights.

`menv.algorithms.algorithm` calls `learn` with every train batch. Policies may share hidden layers
(`model={"shared_layers": name}`): each has its learner and optimizer, and the layers are copied after each one's steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import Trunk
from menv.algorithms.recipe import Learner, Recipe, Weights
from menv.algorithms.training.network_group_builder import BuiltPolicies, first_weights
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError
from menv.interrupts import updates
from menv.policy import Policy
from menv.policy_map import PolicyMap
from menv.sample_batch import MultiAgentBatch, SampleBatch

_ALONE = 'give it config={"model": {"shared_layers": None}}'


class SharedLayers:
    """The groups of policies that share layers; it holds no weights."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Trunk]] = {}
        self._group_of: dict[str, str] = {}

    def names(self, policy_id: str) -> list[str]:
        """Return the names of the weights that a policy shares."""
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
        """Add a policy to the group that its settings name; its layers must equal the group's."""
        group = config.model.shared_layers
        if group is None:
            return
        where = f"policies[{policy_id!r}]: model.shared_layers={group!r}"
        if hasattr(policy_map.settings[0], "base_map"):
            raise ConfigError(
                f"{where} with self_play, expected no shared layers, because snapshots do not learn; {_ALONE}"
            )
        trunk = _trunk_of(network, recipe, where)
        for other, theirs in self._groups.get(group, {}).items():
            if theirs != trunk:
                raise ConfigError(
                    f"{where}: its hidden layers are {trunk!s:.200}, expected {theirs!s:.200} as in policy {other!r}; "
                    "give both the same model and observation size, and heads on one trunk (PPO by "
                    "model.vf_share_layers=True, DQN by dueling=True), or separate groups"
                )
            _check_pair(policy_id, other, group, policy_map)
        self._groups.setdefault(group, {})[policy_id] = trunk
        self._group_of[policy_id] = group

    def leave(self, policy_id: str) -> None:
        """Remove a policy from its group."""
        group = self._group_of.pop(policy_id, None)
        if group is not None:
            del self._groups[group][policy_id]
            if not self._groups[group]:
                del self._groups[group]

    def check_frozen(self, policy_map: PolicyMap) -> None:
        """Refuse groups with both frozen and trained policies: a frozen policy keeps its weights exactly."""
        for policy_id, group in self._group_of.items():
            for other in self.peers(policy_id):
                if policy_id in policy_map.specs and other in policy_map.specs:
                    _check_pair(policy_id, other, group, policy_map)

    def check_asked(self, trained: Collection[str], asked: Collection[str]) -> None:
        """Refuse that some of a group learn from a batch while others with rows in it do not."""
        for policy_id in trained:
            for other in self.peers(policy_id):
                if other in asked and other not in trained:
                    raise _one_is_frozen(policy_id, other, self._group_of[other])


def _trunk_of(network: NetworkSpec, recipe: Recipe, where: str) -> Trunk:
    trunk = network.trunk()
    if trunk is None:
        raise ConfigError(
            f"{where} for {recipe.name} on {type(network).__name__}, expected a stock network of one agent; {_ALONE}"
        )
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
        f"none, because a frozen policy keeps its weights; {_ALONE}"
    )


_OWN = "weights."
"""Prefix of weights in which a learner differs from the acting policy."""
_LATEST = ("epsilon", "cur_lr", "replay_rows", "cur_kl_coeff", "entropy_coeff", "skipped_updates")


class Learners:
    """Trains the policies that have a network and are to be trained.

    `seed` decides the order of rows. A replayed row counts in the trained steps each time. `custom_metrics` holds, by
    policy, names that callbacks have put into its statistics since `take_custom_metrics`.
    """

    def __init__(
        self,
        nets: list[BuiltPolicies],
        recipes: dict[str, Recipe],
        configs: dict[str, AlgorithmConfig],
        policy_map: PolicyMap,
        seed: int,
        policies: Mapping[str, Policy],
        callbacks: DefaultCallbacks,
    ) -> None:
        self.nets = nets
        self.recipes = recipes
        self.configs = configs
        self.policy_map = policy_map
        self.shared = SharedLayers()
        self._seed = seed
        self._learners: dict[str, Learner] = {}
        # States of a checkpoint that nothing has needed yet: policies that do not learn may be without torch.
        self._unused: dict[str, Mapping[str, Any]] = {}
        self._seeds: dict[str, int] = {}
        self._warned: set[str] = set()
        self.custom_metrics: dict[str, set[str]] = {}
        self._policies = policies
        self._callbacks = callbacks
        self.env_steps_trained = 0
        self.agent_steps_trained = 0
        for policy_id, config in configs.items():
            network = self._network_of(policy_id)[0].network
            self.shared.join(policy_id, config, recipes[policy_id], network, policy_map)
            self.copy_shared_layers(policy_id)

    def learn(
        self, batch: MultiAgentBatch, env_steps: int, env_per_agent_step: float = 1.0
    ) -> dict[str, dict[str, float]]:
        """Let each trained policy learn from its rows; return statistics by policy.

        `env_per_agent_step` is the number of env steps for each agent step of the batch: 0.5 where two agents act
        together.
        """
        stats: dict[str, dict[str, float]] = {}
        on_policy: list[str] = []
        replayed = 0
        found = list(self._of(batch))
        chosen = [one for one in found if self.policy_map.trains(one[2], batch[one[2]])]
        self.shared.check_asked([one[2] for one in chosen], [one[2] for one in found])
        for built, index, policy_id in chosen:
            if policy_id not in self._policies:
                # A callback has removed it.
                continue
            own = batch[policy_id]
            learner = self._learners.get(policy_id) or self._first(built, index, policy_id)
            policy = self._policies[policy_id]
            told = self._tell(policy_id, policy, own)
            with updates:
                self._follow_policy(policy_id, learner)
                stats[policy_id] = {**learner.learn(own, env_steps), **_plain(told)}
                weights = learner.weights()
                policy.set_weights(weights)
                self._share_layers(policy_id, weights)
            self._warn_of_skipped(policy_id, stats[policy_id], own)
            if self.recipes[policy_id].off_policy:
                rows = int(stats[policy_id]["updates"]) * self.configs[policy_id].rows_of_a_step()
                replayed += rows
            else:
                rows = own.count
                on_policy.append(policy_id)
            self.agent_steps_trained += rows
        self.env_steps_trained += replayed + batch.env_steps_of(on_policy, env_per_agent_step)
        return stats

    def _tell(self, policy_id: str, policy: Policy, batch: SampleBatch) -> dict[str, Any]:
        """Call `on_learn_on_batch`; return what it puts into the statistics."""
        found: dict[str, Any] = {}
        self._callbacks.on_learn_on_batch(policy=policy, train_batch=batch, result=found)
        self.custom_metrics.setdefault(policy_id, set()).update(found)
        return found

    def _follow_policy(self, policy_id: str, learner: Learner) -> None:
        """Update a learner whose policy was given other weights."""
        given = self._policies[policy_id].get_weights()
        own = learner.weights()
        if not all(np.array_equal(given[name], own[name]) for name in given.keys() & own.keys()):
            self.set_weights(policy_id, given)

    def _warn_of_skipped(self, policy_id: str, stats: Mapping[str, Any], batch: SampleBatch) -> None:
        """Warn, once for each policy, of skipped gradients: it may be all of them."""
        if "skipped_updates" in stats and policy_id not in self._warned:
            self._warned.add(policy_id)
            stored = {name: column for name, column in batch.stored().items() if column.dtype.kind == "f"}
            broken = sorted(name for name, column in stored.items() if not np.isfinite(column).all())
            where = f" (its rows hold NaN or infinity in {', '.join(broken)})" if broken else ""
            warnings.warn(
                f"policy {policy_id!r}: a gradient was NaN or infinite and was skipped{where}, expected finite ones; "
                "look at the size of rewards, or lower lr (skipped_updates in the result counts them)",
                RuntimeWarning,
                stacklevel=2,
            )

    def take_custom_metrics(self) -> dict[str, set[str]]:
        """Return `custom_metrics` and reset it: a league adds and removes thousands of policies."""
        names, self.custom_metrics = self.custom_metrics, {}
        return names

    def forget(self, policy_id: str) -> None:
        """Drop the learner of a removed policy."""
        self._learners.pop(policy_id, None)
        self._unused.pop(policy_id, None)
        self._seeds.pop(policy_id, None)
        self._warned.discard(policy_id)
        self.recipes.pop(policy_id, None)
        self.configs.pop(policy_id, None)
        self.shared.leave(policy_id)

    def set_weights(self, policy_id: str, weights: Weights) -> None:
        """Set the weights of a policy's learner, and of policies that share layers with it."""
        if policy_id in self._learners:
            self._learners[policy_id].set_weights(weights)
        self._share_layers(policy_id, weights)

    def copy_shared_layers(self, policy_id: str) -> None:
        """Give a new policy the layers of its group."""
        first = next(iter(self.shared.peers(policy_id)), None)
        if first is not None:
            built, index = self._network_of(first)
            self._give(policy_id, built.networks.backend.get_weights(index))

    def _share_layers(self, policy_id: str, weights: Weights) -> None:
        """Copy a policy's shared layers to the others of its group; their optimizers keep their moments."""
        for other in self.shared.peers(policy_id):
            self._give(other, weights)

    def _give(self, policy_id: str, weights: Weights) -> None:
        built, index = self._network_of(policy_id)
        part = {name: weights[name] for name in self.shared.names(policy_id)}
        if policy_id in self._policies:
            # The policy may have built something from the old weights.
            policy = self._policies[policy_id]
            policy.set_weights({**policy.get_weights(), **part})
        else:
            built.networks.backend.set_weights(index, {**built.networks.backend.get_weights(index), **part})
        learner: Any = self._learners.get(policy_id)
        if hasattr(learner, "take"):
            learner.take(part)
        elif learner is not None:
            learner.set_weights({**learner.weights(), **part})

    def _network_of(self, policy_id: str) -> tuple[BuiltPolicies, int]:
        built = next(built for built in self.nets if policy_id in built.group.policy_ids)
        return built, built.group.policy_ids.index(policy_id)

    def _of(self, batch: MultiAgentBatch) -> Iterator[tuple[BuiltPolicies, int, str]]:
        """Yield the networks with rows in the batch, each with the policy's index and id, in order of ids.

        Seeds and shared layers depend on the order, which must be the same in a resumed run.
        """
        homes = {
            policy_id: (built, index)
            for built in self.nets
            for index, policy_id in enumerate(built.group.policy_ids)
        }
        for policy_id in sorted(homes.keys() & batch.policy_batches.keys()):
            yield *homes[policy_id], policy_id

    def state(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """Return by policy each learner's seed and its state beyond the acting weights."""
        found = {name: (self._seeds[name], dict(arrays)) for name, arrays in self._unused.items()}
        for policy_id, learner in self._learners.items():
            if not hasattr(learner, "state") or not hasattr(learner, "set_state"):
                raise ConfigError(
                    f"save: the learner of policy {policy_id!r}, {type(learner).__name__}, has no state and set_state, "
                    "expected both; define them: arrays by name"
                )
            acting, own = self._policies[policy_id].get_weights(), learner.weights()
            changed = {
                _OWN + name: own[name] for name in own if not np.array_equal(own[name], acting.get(name, ()))
            }
            found[policy_id] = self._seeds[policy_id], {**learner.state(), **changed}
        return found

    def check_state(self, state: Mapping[str, tuple[int, Mapping[str, Any]]]) -> None:
        """Refuse a state that `set_state` could not restore; nothing changes."""
        for policy_id, (seed, arrays) in state.items():
            if hasattr(self._policies[policy_id], "make_learner") or self.policy_map.is_frozen(policy_id):
                continue
            learner = self._learners.get(policy_id) or self._made(
                *self._network_of(policy_id), policy_id, seed
            )
            if hasattr(learner, "check_state"):
                try:
                    learner.check_state(arrays)
                except ConfigError as error:
                    raise ConfigError(f"checkpoint, policy {policy_id!r}: {error}") from error

    def set_state(self, state: Mapping[str, tuple[int, Mapping[str, Any]]], seed: int) -> None:
        """Restore `state`, once the policies have their weights."""
        self._seed = seed
        self._learners.clear()
        self._unused.clear()
        self._seeds.clear()
        for policy in self._policies.values():
            if hasattr(policy, "leave_learner"):
                policy.leave_learner()
        for policy_id, (own_seed, arrays) in state.items():
            self._seeds[policy_id], self._unused[policy_id] = own_seed, arrays
            if not self.policy_map.is_frozen(policy_id):
                self._first(*self._network_of(policy_id), policy_id)

    def _first(self, built: BuiltPolicies, index: int, policy_id: str) -> Learner:
        """Return a policy's learner, which has the state of the checkpoint if there is one."""
        arrays = self._unused.pop(policy_id, None)
        if arrays is None:
            return self._new(built, index, policy_id)
        learner = self._new(built, index, policy_id, self._seeds[policy_id])
        own = {name.removeprefix(_OWN): arrays[name] for name in arrays if name.startswith(_OWN)}
        learner.set_weights({**learner.weights(), **own})
        learner.set_state({name: arrays[name] for name in arrays if not name.startswith(_OWN)})
        return learner

    def _new(self, built: BuiltPolicies, index: int, policy_id: str, seed: int | None = None) -> Learner:
        is_new = seed is None
        if seed is None:
            taken, first = set(self._seeds.values()), self._seed % 2**31
            # With one candidate more than taken seeds, one is free.
            seed = next(one for one in range(first, first + len(taken) + 1) if one not in taken)
        learner = self._made(built, index, policy_id, seed)
        if is_new and hasattr(learner, "has_first_weights"):
            config, recipe = self.configs[policy_id], self.recipes[policy_id]
            first_ones = first_weights(built.network, policy_id, config, recipe, self._seed)
            own, scaled = learner.weights(), built.network.unit_weights().powers
            learner.has_first_weights = all(np.array_equal(own[name], first_ones[name]) for name in scaled)
        self._learners[policy_id], self._seeds[policy_id] = learner, seed
        return learner

    def _made(self, built: BuiltPolicies, index: int, policy_id: str, seed: int) -> Learner:
        policy = self._policies[policy_id]
        if hasattr(policy, "make_learner"):
            own: Learner = policy.make_learner(seed)
            return own
        weights: dict[str, Any] = built.networks.backend.get_weights(index)
        return self.recipes[policy_id].make_learner(built.network, weights, self.configs[policy_id], seed)


def merged(stats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the statistics of several batches of one policy as one.

    Means are weighted by `updates`, the number of gradient steps; other values are taken from the last batch.
    """
    if len(stats) == 1:
        return stats[0]
    out: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in stats for name in one):
        told = [(one[name], one.get("updates", 1)) for one in stats if name in one]
        weight = sum(updates for _, updates in told)
        if name == "updates":
            out[name] = weight
        elif name in _LATEST or not weight or not all(isinstance(value, int | float) for value, _ in told):
            out[name] = told[-1][0]
        else:
            out[name] = sum(value * updates for value, updates in told) / weight
    return out


def _plain(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return statistics with Python's numbers, so that results can be written as JSON."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in told.items()}


def learner_info(
    stats: Mapping[str, dict[str, float]], told: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    """Return each policy's statistics at the classic places of a result."""
    learner = {
        policy_id: {
            "learner_stats": dict(own),
            "custom_metrics": {name: own[name] for name in own if name in told[policy_id]},
        }
        for policy_id, own in stats.items()
    }
    # A policy may be called "learner" too; its statistics stay in the same dict.
    return {**stats, "learner": {**stats.get("learner", {}), **learner}}
