"""What the algorithms ask of the description of a network, whatever its layers are.

A recipe makes one for each policy; `menv.algorithms.cohorts` builds the acting back-ends from it and a learner
the network that it trains. Specs compare equal if their networks differ in nothing but weights. A spec is made
without torch and without onnx; its methods import what they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from menv.acting.acting_graphs import ActingGraphs
from menv.acting.action_head import ActionHead

if TYPE_CHECKING:
    from menv.algorithms.networks.stock import UnitWeights
    from menv.algorithms.networks.torch_network import TorchNetwork


def obs_column(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return observations [N, F] as networks read them: bytes stay bytes, all else is float32."""
    return column if column.dtype == np.uint8 else np.asarray(column, np.float32)


class NetworkSpec(Protocol):
    """The architecture that the policies of a cohort share."""

    @property
    def obs_size(self) -> int:
        """F, numbers in a flat observation."""

    @property
    def head(self) -> ActionHead:
        """What the policy's outputs mean."""

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Numbers in each part of the recurrent state, () for a network without one."""

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight by name, in a fixed order."""

    def first_weights(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return weights to begin with; the same seed gives the same."""

    def unit_weights(self) -> UnitWeights:
        """Return the weights that follow the unit in which rewards are paid."""

    def torch_network(self, params: Mapping[str, Any]) -> TorchNetwork:
        """Return the network over `params`, a tensor for each name, whose current values every call reads."""

    def graphs(self, defaults: Mapping[str, npt.NDArray[np.float32]]) -> ActingGraphs | None:
        """Return what builds its acting graphs, None if only torch can run it.

        Args:
            defaults: Weights that a graph of a single policy holds unless it is fed others.
        """
