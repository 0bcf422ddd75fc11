"""What tells one algorithm from another: a policy's network, what its batches lack, who learns from them.

`menv.algorithms.algorithm` keeps one for each policy, so that policies of several algorithms are trained
on one sampler. `PPORecipe` and its siblings implement it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.algorithms.config.algorithm_config import AlgorithmConfig
from menv.algorithms.dqn.config import OffPolicyConfig
from menv.algorithms.networks.network_spec import NetworkSpec
from menv.algorithms.networks.stock_spec import EPSILON
from menv.connectors.action_output import flat_action_space
from menv.connectors.clip_reward import clip_rewards_of
from menv.errors import ConfigError
from menv.inference.action_heads import ActionHead
from menv.inference.backend import ActingBackend
from menv.sample_batch import SampleBatch

Weights = Mapping[str, npt.NDArray[np.float32]]

_HOMES = {
    "DQN": "menv.algorithms.dqn.dqn:DQNRecipe",
    "PPO": "menv.algorithms.ppo.ppo:PPORecipe",
    "QMIX": "menv.algorithms.qmix.qmix:QMIXRecipe",
}


class Learner(Protocol):
    """What improves one policy's weights."""

    def learn(self, batch: SampleBatch, env_steps: int) -> dict[str, float]:
        """Learn from one batch and return statistics.

        Args:
            batch: The policy's rows, completed.
            env_steps: Env steps of the whole run so far, for schedules.
        """

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the weights by name."""

    def set_weights(self, weights: Weights) -> None:
        """Copy weights in."""


@runtime_checkable
class KeepsState(Protocol):
    """A learner that checkpoints can hold; those of menv all do."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything besides the weights that the next step depends on, as arrays."""

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` returned; called after `set_weights`."""


@runtime_checkable
class ChecksState(Protocol):
    """A learner that can tell beforehand what it could not take over."""

    def check_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Raise `ConfigError` where `set_state` would, and change nothing."""


@runtime_checkable
class FollowsRewards(Protocol):
    """A learner that scales its weights with the size of the rewards.

    Attributes:
        has_first_weights: Whether the weights are random ones, whose outputs have no unit.
    """

    has_first_weights: bool


@runtime_checkable
class BringsLearner(Protocol):
    """A policy object whose class says how it learns, such as `menv.algorithms.PPOPolicy`."""

    def make_learner(self, seed: int) -> Learner:
        """Return the learner of the policy; `seed` decides the order of rows."""


@runtime_checkable
class ReadsLearner(Protocol):
    """A policy object that reads the weights that its learner changes, such as `menv.algorithms.PPOPolicy`."""

    def leave_learner(self) -> None:
        """Stand on weights of its own again, for the learner is dropped."""


class Recipe(Protocol):
    """How one policy is trained.

    Attributes:
        name: As in `PolicySpec(algorithm=...)`.
        config_class: The settings of such a policy.
        off_policy: Whether it may learn from actions without knowing how probable they were.
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
        """Return the description of the network.

        Args:
            obs_size: F, numbers in a flat observation.
            action_space: Of the policy.
            config: Its settings.
            observation_space: Of the policy, for networks that follow its structure.

        Raises:
            ConfigError: A space is none for this algorithm.
        """

    def first_weights(
        self, network: NetworkSpec, config: Any, seed: int
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Return the weights that a policy begins with."""

    def complete(
        self, batch: SampleBatch, backend: ActingBackend, index: int, config: Any, *, later: bool = False
    ) -> None:
        """Add the columns that the learner needs, such as advantages, to one policy's batch, where they are not there.

        Args:
            batch: The policy's rows.
            backend: Runs its network.
            index: The policy's index in it.
            config: The policy's settings.
            later: Whether this is called again, with a network that has learned more by then; what it thinks of
                states, which gets better, may be left to then, but nothing about the actions.
        """

    def make_learner(self, network: NetworkSpec, weights: Weights, config: Any, seed: int) -> Learner:
        """Return the learner of one policy; `seed` decides its draws, such as the order of rows."""


def recipe_named(name: str, policy_id: str) -> Recipe:
    """Return an algorithm's recipe.

    Raises:
        ConfigError: There is no such algorithm.
    """
    if not isinstance(name, str) or name not in _HOMES:
        near = difflib.get_close_matches(name.upper(), _HOMES, 1, 0.4) if isinstance(name, str) else []
        hint = f"did you mean {near[0]!r}?" if near else "choose one of these"
        raise ConfigError(
            f"policies[{policy_id!r}]: algorithm={name!r:.60}, expected one of {', '.join(sorted(_HOMES))}; {hint}"
        )
    module, _, attribute = _HOMES[name].partition(":")
    recipe: Recipe = getattr(import_module(module), attribute)()
    return recipe


class OffPolicyRecipe:
    """First weights, and what a batch lacks."""

    off_policy = True

    def first_weights(self, network: NetworkSpec, config: OffPolicyConfig, seed: int) -> dict[str, Any]:
        """Return the weights that a policy begins with, epsilon among them."""
        weights = network.first_weights(seed)
        weights[EPSILON][:] = config.epsilon_at(0)
        return weights

    def complete(
        self,
        batch: SampleBatch,
        backend: ActingBackend,
        index: int,
        config: OffPolicyConfig,
        *,
        later: bool = False,
    ) -> None:
        """Clip the rewards if the settings say so; targets are made when rows are learned from."""
        clip_rewards_of(batch, config.clip_rewards)


def instead(action_space: gym.Space[Any]) -> str:
    """Return what to do about actions that are not chosen by their worth."""
    try:
        ActionHead.for_space(flat_action_space(action_space))
    except ConfigError:
        return "wrap the environment so that its actions are Discrete"
    if isinstance(action_space, gym.spaces.Tuple):
        return "train the policy of a group of agents with QMIX, any other with PPO"
    return "train this policy with PPO"
