"""A user's own `torch.nn.Module` as a network: the description that policies share.

`network_choice` makes it; `custom_model` says what the module gets and gives. torch is imported when the
module is first built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.algorithms.networks.stock_spec import EPSILON, UnitWeights
from menv.connectors.obs_preprocessor import MASK_KEY, Leaf, ObsPreprocessor
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.action_heads import ActionHead
from menv.spaces import Keys, built

if TYPE_CHECKING:
    from torch import nn

    from menv.algorithms.networks.network_spec import TorchNetwork


# SEAM menv.algorithms.networks.custom_model
# What a user's own `torch.nn.Module` gets and has to give: the contract of `model {"custom_model": ...}`.
#
# class Grid(torch.nn.Module):
# def __init__(self, obs_space, num_outputs, width=32):
# super().__init__()
# self.body = torch.nn.Sequential(torch.nn.Linear(obs_space.shape[0], width), torch.nn.Tanh())
# self.policy = torch.nn.Linear(width, num_outputs)
# self.value = torch.nn.Linear(width, 1)
#
# def forward(self, obs):
# features = self.body(obs)
# return self.policy(features), self.value(features)[:, 0]
#
# PPO(env=..., config={"model": {"custom_model": Grid, "custom_model_config": {"width": 64}}})
#
# - The class, or a function that returns a module, is called with the observation space, the number of
# outputs and
# the items of `custom_model_config`. It is called more than once for each policy: for its first weights,
# for acting and
# for learning. First weights are those it builds, drawn from torch's generator, which is seeded for it and
# then
# put back.
# - Observations come in the form of the space, as float32: a Box as [B, *shape] (bytes of images as 0.0 to
# 255.0),
# Discrete as one-hot [B, n], MultiDiscrete as one one-hot after the other [B, sum of sizes], MultiBinary as
# [B, *shape], Dict and Tuple as a dict or a tuple of these. `"action_mask"` is no part of the space that it
# is built
# with, nor of the observations: menv masks the outputs itself.
# - What it returns for PPO is `(outputs, values)`, shapes [B, num_outputs] and [B]. Outputs are logits; of
# continuous actions the k means, then k logarithms of standard deviations. Of Dict and Tuple actions the
# logits of all
# discrete parts come first, part after part in the order of the space, then the means of all Box parts,
# then the
# logarithms of their standard deviations: `{"brake": Discrete(3), "steer": Box(-1, 1, (1,))}` has 5
# outputs. For DQN
# it returns the Q-values [B, num_outputs], alone or first in a tuple; the setting `dueling` is left to the
# module.
# - Learned is every parameter that requires a gradient. What does not, and buffers, keep the values that
# the module has when it is built with a seed of 0. The module always runs in its evaluation mode: dropout
# is off, and
# batch normalisation, whose statistics would never move, is refused; take `LayerNorm` or `GroupNorm`.
# - A row's answer must depend on nothing but the row, the state and the parameters.
# - A module with a state has a method `get_initial_state()` that returns a list of tensors [S_i], the parts
# of the
# state with which each life of an agent begins. Then `forward(obs, state)` gets B sequences of T rows,
# observations
# as [B, T, ...] and the state before them as a list of [B, S_i], and returns the state after them as well:
# `(outputs [B, T, num_outputs], values [B, T], state)`, for DQN `(q_values, state)`. Acting is T = 1;
# learning takes
# sequences of at most `max_seq_len` rows, shorter ones padded behind their end.
# - torch runs it, in acting too; `result["inference"]` says "torch" then. On disk it is a graph that torch's
# exporter has
# written, once for a run, which takes a few seconds. A forward that branches on numbers has none: policies
# of such a
# module are refused when they are exported, and left out of checkpoints, which hold the run all the same.


class CustomModel(Protocol):
    """Builds a user's module; a subclass of `torch.nn.Module` is one."""

    def __call__(
        self, obs_space: gym.Space[Any], num_outputs: int, /, **custom_model_config: Any
    ) -> nn.Module:
        """Return a new module.

        Args:
            obs_space: Of the policy, without action masks.
            num_outputs: Width of its first output.
            custom_model_config: The items of that setting.
        """


# SEAM menv.algorithms.networks.obs_structure
# Flat rows back in the form of their observation space, for modules that a user wrote.
#
# It undoes what `ObsPreprocessor` does, except that what it made one-hot stays so. Rows may be arrays or
# tensors.


class ObsStructure:
    """The form of the observations of one space, action masks left out.

    Args:
        space: The observation space.

    Attributes:
        size: F, numbers in a row.
        space: The space without its masks.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        preprocessor = ObsPreprocessor(space)
        masks = {leaf.keys for leaf in preprocessor.mask_leaves}
        self.size = preprocessor.size
        self.space = _without(space, masks, ())
        self._leaves = {leaf.keys: leaf for leaf in preprocessor.leaves}

    def __call__(self, rows: Any) -> Any:
        """Return rows [B, F] as [B, ...], or as dicts and tuples of such."""

        def part(keys: Keys, _: gym.Space[Any]) -> Any:
            leaf = self._leaves[keys]
            return rows[:, leaf.start : leaf.start + leaf.width].reshape(-1, *_shape(leaf))

        return built(self.space, part)


def _shape(leaf: Leaf) -> tuple[int, ...]:
    if isinstance(leaf.space, gym.spaces.Box | gym.spaces.MultiBinary):
        return tuple(leaf.space.shape)
    return (leaf.width,)


def _without(space: gym.Space[Any], masks: set[tuple[Any, ...]], keys: tuple[Any, ...]) -> gym.Space[Any]:
    if isinstance(space, gym.spaces.Dict):
        parts = {
            name: _without(part, masks, (*keys, name))
            for name, part in space.spaces.items()
            if name != MASK_KEY or (*keys, name) not in masks
        }
        return gym.spaces.Dict(parts)
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple(
            [_without(part, masks, (*keys, index)) for index, part in enumerate(space.spaces)]
        )
    return space


@dataclass(frozen=True, eq=False)
class CustomSpec:
    """A policy and a value function, or Q-values, computed by a module that a user wrote.

    Attributes:
        observation_space: Of the policy.
        head: What the module's outputs mean.
        model: Builds the module.
        config: Keyword arguments for it.

    Raises:
        ConfigError: The module cannot be built, or gives something else than it has to.
    """

    observation_space: gym.Space[Any]
    head: ActionHead
    model: CustomModel
    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Build the module once and try it on two rows."""
        _ = self._first_shapes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CustomSpec):
            return NotImplemented
        if (self.model, self.head, self.observation_space) != (
            other.model,
            other.head,
            other.observation_space,
        ):
            return False
        try:
            return bool(self.config == other.config)
        except ValueError:
            # Arrays among the arguments do not say whether they are equal.
            return False

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def structure(self) -> ObsStructure:
        """The form in which the module sees observations."""
        return ObsStructure(self.observation_space)

    @property
    def obs_size(self) -> int:
        """F, numbers in a flat observation."""
        return self.structure.size

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Numbers in each part of the module's state, () without one."""
        return tuple(len(part) for part in self.initial_state)

    @cached_property
    def initial_state(self) -> tuple[npt.NDArray[np.float32], ...]:
        """What each part of the module's state begins with; () without one."""
        from menv.algorithms.networks.torch_custom import build_module, initial_state

        return tuple(part.numpy() for part in initial_state(build_module(self, 0)))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every learned parameter by its name in the module, and of epsilon for Q-values."""
        return dict(self._first_shapes)

    def first_weights(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return the parameters of a module built with this seed; epsilon is 1."""
        from menv.algorithms.networks.torch_custom import build_module, learned

        weights: dict[str, npt.NDArray[np.float32]] = {
            name: param.detach().numpy().copy() for name, param in learned(build_module(self, seed)).items()
        }
        if self.head.kind == "q_values":
            weights[EPSILON] = np.ones(1, np.float32)
        return weights

    def unit_weights(self) -> UnitWeights:
        """Return the weights of the layers that values or Q-values come from, none if the module has no such layers."""
        return self._unit_weights

    @cached_property
    def _unit_weights(self) -> UnitWeights:
        from menv.algorithms.networks.torch_custom import unit_weights

        return unit_weights(self)

    def torch_network(self, params: Mapping[str, Any]) -> TorchNetwork:
        """Return the network over `params`; see `NetworkSpec.torch_network`."""
        from menv.algorithms.networks.torch_custom import TorchCustom

        return TorchCustom(self, params)

    def graphs(self, defaults: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Return None: torch runs it."""

    @cached_property
    def stored_graphs(self) -> ActingGraphs:
        """What builds its acting graphs for a disk, where torch's exporter can express it."""
        from menv.algorithms.networks.custom_graphs import CustomGraphs

        return CustomGraphs(self)

    @cached_property
    def _first_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: value.shape for name, value in self.first_weights(0).items()}
