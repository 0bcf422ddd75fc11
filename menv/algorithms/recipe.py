"""Recipes: what distinguishes the algorithms for one policy: its network, its batch columns, its learner.

`menv.algorithms.algorithm` keeps one for each policy, so that policies of several algorithms train on one sampler.
`PPORecipe`, `DQNRecipe`, `QMIXRecipe` and `SACRecipe` implement it, and `register_algorithm` adds yours.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import reduce
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.errors import ConfigError, UnknownNameError
from menv.inference.backend import ActingBackend
from menv.registry import import_named, names_module
from menv.sample_batch import SampleBatch

Weights = Mapping[str, npt.NDArray[np.float32]]

BUILT_IN = {
    "DQN": "menv.algorithms.dqn.dqn:DQN",
    "PPO": "menv.algorithms.ppo.ppo:PPO",
    "QMIX": "menv.algorithms.qmix.qmix:QMIX",
    "SAC": "menv.algorithms.sac.sac:SAC",
}
_ENTRY_POINTS = "menv.algorithms"


class Learner(Protocol):
    """Improves one policy's weights.

    Only checkpoints need `state` and `set_state`. A learner may also have these, as menv's have:

    - `check_state(state)` raises `ConfigError` where `set_state` would, and changes nothing.
    - `take(weights)` copies layers that another policy has trained, for `model={"shared_layers": ...}`; without it
      `set_weights` does.
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


_registered: dict[str, Recipe] = {}


def register_algorithm(name: str, recipe: Recipe) -> None:
    """Make an algorithm known by a name, for `PolicySpec(algorithm=name)`, checkpoints and the option `--run`.

    A package makes its algorithms known to all who install it by an entry point of the group `"menv.algorithms"`.

    Example:
        >>> register_algorithm("A2C", A2CRecipe())
        >>> PPO(env=..., config={"multiagent": {"policies": {"a": PolicySpec(algorithm="A2C"), "b": None}, ...}})

    Args:
        name: The recipe's `name`; checkpoints hold it. A second call replaces the recipe.
        recipe: How one policy is trained.

    Raises:
        ConfigError: The name is one of menv's, or is not the recipe's.
    """
    own = getattr(recipe, "name", None)
    if name != own or name in BUILT_IN or names_module(name):
        raise ConfigError(
            f"register_algorithm: name={name!r:.60} for a recipe whose name is {own!r:.60}, expected the recipe's, "
            f"other than {', '.join(BUILT_IN)} and without a colon; change the recipe's name"
        )
    _registered[name] = recipe


def recipe_named(name: str, where: str) -> Recipe:
    """Return the recipe of an algorithm; see `find_algorithm`."""
    return recipe_of(find_algorithm(name, where), where)


def find_algorithm(name: str, where: str, *, imports: bool = True) -> Any:
    """Return a recipe or a class: menv's, a registered one, an entry point's or that of `"module:Class"`.

    Args:
        name: The name.
        where: Begins errors.
        imports: False for names from files: nothing that is not known yet is imported.

    Raises:
        UnknownNameError: There is none.
    """
    found: Any = None
    if isinstance(name, str):
        found = _registered.get(name)
        home = BUILT_IN.get(name, name if imports and names_module(name) else "")
        if found is None and home:
            module, _, inner = home.rpartition(":")
            found = reduce(_attribute, inner.split("."), import_named(module, where))
        elif found is None and imports:
            found = next((entry.load() for entry in entry_points(group=_ENTRY_POINTS, name=name)), None)
    if found is None:
        raise _unknown(name, where)
    return found


def recipe_of(found: Any, where: str) -> Recipe:
    """Return a recipe, or that of a class of recipes or algorithms; checkpoints of this process may name it then."""
    recipe: Any = getattr(found, "recipe", found)
    recipe = recipe() if isinstance(recipe, type) else recipe
    if not hasattr(recipe, "make_learner"):
        raise ConfigError(
            f"{where}: a {type(recipe).__name__}, expected a recipe or a class of algorithms; see "
            "examples/own_algorithm.py"
        )
    if recipe.name not in BUILT_IN:
        register_algorithm(recipe.name, recipe)
    own: Recipe = recipe
    return own


def _attribute(holder: Any, name: str) -> Any:
    return getattr(holder, name, None)


def _unknown(name: Any, where: str) -> UnknownNameError:
    known = sorted({*BUILT_IN, *_registered, *(entry.name for entry in entry_points(group=_ENTRY_POINTS))})
    by_upper = {one.upper(): one for one in known}
    near = difflib.get_close_matches(name.upper(), by_upper, 1, 0.4) if isinstance(name, str) else []
    hint = (
        f"did you mean {by_upper[near[0]]!r}?" if near else "choose one of these, or register_algorithm first"
    )
    expected = f"{', '.join(known)}, 'module:Class' or 'file.py:Class'"
    return UnknownNameError(f"{where}={name!r:.60}, expected one of {expected}; {hint}")
