"""Custom networks: `CustomModel` is the contract of a user's `torch.nn.Module`, `CustomSpec` describes its network.

Select one with the `model` setting `custom_model`. torch is imported when the module is first built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.algorithms.networks.network_spec import UNKNOWN, NetworkSpec
from menv.algorithms.networks.stock_spec import UnitWeights
from menv.algorithms.training.torch_threads import check_packages
from menv.connectors.obs_preprocessor import MASK_KEY, ObsPreprocessor
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.heads.head import ActionHead
from menv.spaces import Keys, built

if TYPE_CHECKING:
    from torch import nn

    from menv.algorithms.networks.network_spec import TorchNetwork

VALUE_SCALE, VALUE_SHIFT = "value_scale.weight", "value_scale.bias"
"""Weights [1] of a module whose values have no separate last layer: its values times the first, plus the second."""


class CustomModel(Protocol):
    """Builds a user's module: a subclass of `torch.nn.Module`, or a function that returns a module.

        class Grid(torch.nn.Module):
            def __init__(self, obs_space, num_outputs, width=32):
                super().__init__()
                self.body = torch.nn.Sequential(torch.nn.Linear(obs_space.shape[0], width), torch.nn.Tanh())
                self.policy = torch.nn.Linear(width, num_outputs)
                self.value = torch.nn.Linear(width, 1)

            def forward(self, obs):
                features = self.body(obs)
                return self.policy(features), self.value(features)[:, 0]

        PPO(env=..., config={"model": {"custom_model": Grid, "custom_model_config": {"width": 64}}})

    - It is called several times per policy: for the initial weights, for acting and for learning. The module creates
      its initial weights with torch's generator, which is seeded and then restored.
    - Observations have the form of the space, as float32: Box as [B, *shape] (bytes as 0.0 to 255.0), Discrete as
      one-hot [B, n], MultiDiscrete as concatenated one-hots [B, sum of sizes], MultiBinary as [B, *shape], Dict and
      Tuple as a dict or a tuple of these. menv masks the outputs, so `"action_mask"` is neither in the space nor in
      observations.
    - For PPO, `forward` returns `(outputs [B, num_outputs], values [B])`. Outputs are logits; for continuous actions
      the k means, then k log standard deviations. For Dict and Tuple actions the logits of all discrete parts in the
      order of the space come first, then the means of all Box parts, then their log standard deviations: `{"brake":
      Discrete(3), "steer": Box(-1, 1, (1,))}` has 5 outputs. For DQN, `forward` returns Q-values [B, num_outputs],
      alone or first in a tuple; the setting `dueling` has no effect.
    - PPO's first values are 0, unless `normalize_values` is off: the last layer of the values starts with zeros. Where
      values have no last layer, menv multiplies and shifts them by two more weights, `value_scale`.
    - Parameters that require a gradient are trained. Other parameters and buffers keep the values of a module that is
      built with a seed of 0. The module always runs in evaluation mode: dropout is off, and batch normalization is
      refused; use `LayerNorm` or `GroupNorm`.
    - The output of a row may depend only on the row, the state and the parameters.
    - A recurrent module has a method `get_initial_state()` that returns a list of tensors [S_i], the parts of the
      state at the start of an episode. `forward(obs, state)` then gets B sequences of T timesteps, observations [B,
      T, ...] and a list of states [B, S_i], and returns `(outputs [B, T, num_outputs], values [B, T], state)`, for
      DQN `(q_values, state)`. Acting uses T = 1; learning uses sequences of at most `max_seq_len`, padded at their
      end.
    - torch runs the module for acting too; `result["inference"]` is "torch" then. Exported policies contain an ONNX
      graph, which torch's exporter writes once per run. Modules whose `forward` branches on numbers cannot be
      exported; their policies are missing from checkpoints as exported policies, but runs can still be saved and
      resumed.
    """

    def __call__(
        self, obs_space: gym.Space[Any], num_outputs: int, /, **custom_model_config: Any
    ) -> nn.Module:
        """Return a new module."""


class ObsStructure:
    """Converts flat rows of `size` numbers to the form of their space without action masks; one-hots stay one-hot."""

    def __init__(self, space: gym.Space[Any]) -> None:
        preprocessor = ObsPreprocessor(space)
        masks = {leaf.keys for leaf in preprocessor.mask_leaves}
        self.size = preprocessor.size
        self.space = _without(space, masks, ())
        self._leaves = {leaf.keys: leaf for leaf in preprocessor.leaves}

    def __call__(self, rows: Any) -> Any:
        """Return rows [B, F], arrays or tensors, as [B, ...] or as dicts and tuples of these."""

        def part(keys: Keys, _: gym.Space[Any]) -> Any:
            leaf = self._leaves[keys]
            shape = (
                leaf.space.shape if isinstance(leaf.space, gym.spaces.Box | gym.spaces.MultiBinary) else None
            )
            return rows[:, leaf.start : leaf.start + leaf.width].reshape(-1, *(shape or (leaf.width,)))

        return built(self.space, part)


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


def _custom_network() -> Any:
    """Return the module of the torch form, which imports torch."""
    check_packages("model.custom_model", "torch")
    from menv.algorithms.networks import custom_network

    return custom_network


@dataclass(frozen=True, eq=False)
class CustomSpec(NetworkSpec):
    """The description of a network that the module of `model(..., **config)` computes."""

    observation_space: gym.Space[Any]
    head: ActionHead
    model: CustomModel
    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        _ = self._first_shapes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CustomSpec):
            return NotImplemented
        mine, theirs = ((one.model, one.head, one.observation_space, one.config) for one in (self, other))
        try:
            return bool(mine == theirs)
        except ValueError:
            # Arrays among the arguments have no truth value.
            return False

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def structure(self) -> ObsStructure:
        """The form in which the module sees observations."""
        return ObsStructure(self.observation_space)

    @property
    def obs_size(self) -> int:
        return self.structure.size

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return tuple(len(part) for part in self.initial_state)

    @cached_property
    def initial_state(self) -> tuple[npt.NDArray[np.float32], ...]:
        """The parts of the initial recurrent state, () without one."""
        custom_network = _custom_network()
        parts = custom_network.initial_state(custom_network.build_module(self, 0))
        return tuple(part.numpy() for part in parts)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every learned parameter by its name in the module, and of epsilon for Q-values."""
        return dict(self._first_shapes)

    def first_weights(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return the parameters of a module built with this seed; epsilon is 1, and `VALUE_SCALE` too."""
        custom_network = _custom_network()
        params = custom_network.learned(custom_network.build_module(self, seed))
        weights: dict[str, npt.NDArray[np.float32]] = {
            name: param.detach().numpy().copy() for name, param in params.items()
        }
        if self.head.is_value_based:
            weights.update(self.head.weights)
        elif VALUE_SCALE in self.unit_weights().powers:
            weights.update({VALUE_SCALE: np.ones(1, np.float32), VALUE_SHIFT: np.zeros(1, np.float32)})
        return weights

    def unit_weights(self) -> UnitWeights:
        return self._unit_weights

    @cached_property
    def _unit_weights(self) -> UnitWeights:
        found: UnitWeights = _custom_network().unit_weights(self)
        if found.powers or self.head.is_value_based:
            return found
        return UnitWeights({VALUE_SCALE: 1, VALUE_SHIFT: 1}, VALUE_SHIFT)

    def torch_network(self, params: Mapping[str, Any]) -> TorchNetwork:
        network: TorchNetwork = _custom_network().TorchCustom(self, params)
        return network

    def graphs(self, defaults: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Return None: torch runs the module."""

    def stored_graphs(self) -> ActingGraphs:
        return self._stored_graphs

    @cached_property
    def _stored_graphs(self) -> ActingGraphs:
        from menv.algorithms.networks.custom_network import CustomGraphs

        return CustomGraphs(self)

    @property
    def most_weights(self) -> int:
        """No maximum: torch acts."""
        return UNKNOWN

    @cached_property
    def _first_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: value.shape for name, value in self.first_weights(0).items()}
