"""A user's own `torch.nn.Module` as a network: the description that policies share.

`network_choice` makes it; `custom_model` says what the module gets and gives. torch is imported when the
module is first built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.acting.acting_graphs import ActingGraphs
from menv.acting.action_head import ActionHead
from menv.algorithms.networks.custom_model import CustomModel
from menv.algorithms.networks.obs_structure import ObsStructure
from menv.algorithms.networks.stock import EPSILON, UnitWeights

if TYPE_CHECKING:
    from menv.algorithms.networks.torch_network import TorchNetwork


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
