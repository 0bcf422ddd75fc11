"""Recipes: what distinguishes the algorithms for one policy: its network, its batch columns, its learner.

`menv.algorithms.algorithm` keeps one for each policy, so that policies of several algorithms train on one sampler.
`PPORecipe`, `DQNRecipe` and `QMIXRecipe` implement it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.errors import ConfigError
from menv.inference.backend import ActingBackend
from menv.sample_batch import SampleBatch

Weights = Mapping[str, npt.NDArray[np.float32]]

_HOMES = {
    "DQN": "menv.algorithms.dqn.dqn:DQNRecipe",
    "PPO": "menv.algorithms.ppo.ppo:PPORecipe",
    "QMIX": "menv.algorithms.qmix.qmix:QMIXRecipe",
}


class Learner(Protocol):
    """Improves one policy's weights.

    Only checkpoints need `state` and `set_state`. A learner may also have these, as menv's have:

    - `check_state(state)` raises `ConfigError` where `set_state` would, and changes nothing.
    - `take(weights)` copies layers that another policy has trained, for `model={"shared_layers": ...}`.
    - `has_first_weights`, if it scales weights with the size of the rewards, is set to True for random weights, whose
      outputs have no unit.

    A policy class that has `make_learner(seed)`, as `menv.algorithms.PPOPolicy`, makes its own learner, and its
    `leave_learner()` is called when that is dropped.
    """

    def learn(self, batch: SampleBatch, env_steps: int) -> dict[str, float]:
        """Learn from one completed batch and return statistics; `env_steps` of the whole run drive schedules."""

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the weights by name."""

    def set_weights(self, weights: Weights) -> None:
        """Copy weights in."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that the next step depends on, except the weights."""

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore `state`; called after `set_weights`."""


class Recipe(Protocol):
    """How one policy is trained.

    `off_policy` recipes learn from actions of unknown probability.
    """

    off_policy: bool

    @property
    def name(self) -> str:
        """As in `PolicySpec(algorithm=...)`."""

    @property
    def config_class(self) -> type[AlgorithmConfig]:
        """The settings of such a policy."""

    def network(
        self, obs_size: int, action_space: Any, config: Any, observation_space: Any = None
    ) -> NetworkSpec:
        """Return the description of the network; `obs_size` is F, the numbers in a flat observation."""

    def first_weights(
        self, network: NetworkSpec, config: Any, seed: int
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Return a new policy's weights."""

    def complete(
        self, batch: SampleBatch, backend: ActingBackend, index: int, config: Any, *, later: bool = False
    ) -> None:
        """Add the columns that the learner needs, such as advantages, unless they are there.

        Rewards are clipped before. Where a hook changes rewards afterwards, `vf_preds`, `advantages` and
        `value_targets` that this added are dropped, and it is called again.
        With `later`, this is called again with newer networks: values may be left to that call, but nothing about
        actions.
        """

    def make_learner(self, network: NetworkSpec, weights: Weights, config: Any, seed: int) -> Learner:
        """Return the learner of one policy; `seed` decides its sampling, such as the order of rows."""


def recipe_named(name: str, policy_id: str) -> Recipe:
    """Return an algorithm's recipe."""
    if not isinstance(name, str) or name not in _HOMES:
        near = difflib.get_close_matches(name.upper(), _HOMES, 1, 0.4) if isinstance(name, str) else []
        hint = f"did you mean {near[0]!r}?" if near else "choose one of these"
        raise ConfigError(
            f"policies[{policy_id!r}]: algorithm={name!r:.60}, expected one of {', '.join(sorted(_HOMES))}; {hint}"
        )
    module, _, attribute = _HOMES[name].partition(":")
    recipe: Recipe = getattr(import_module(module), attribute)()
    return recipe
