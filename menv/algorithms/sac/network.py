"""The networks of SAC: a policy, two critics of observation and action, and the logarithm of the temperature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from menv.algorithms.networks.stock_spec import Role, StockSpec, UnitWeights
from menv.inference.acting_graphs import ActingGraphs
from menv.inference.heads.q_values import EPSILON, QValues

if TYPE_CHECKING:
    from menv.algorithms.sac.learner import TorchSAC

CRITICS = ("q1", "q2")
LOG_ALPHA = "log_alpha"
"""The weight [1] that is the logarithm of the temperature, in the unit of the critics."""


class SACSpec(StockSpec):
    """A stock policy network of a squashed Gaussian, with two critics.

    A critic is a stock Q-network of one choice over the critic's observation, which is followed by the action; its
    weights are called as there, with the critic's name in place of "policy".
    """

    @property
    def roles(self) -> tuple[Role, ...]:
        return ("policy",)

    @property
    def critic(self) -> StockSpec:
        """The network of each critic."""
        size = self.inputs_of("value") + self.head.numbers
        return StockSpec(size, QValues((1,)), self.hiddens, self.activation)

    def of_critic(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the weights of a critic by their names in `critic`."""
        start = f"{name}."
        return {f"policy.{key.removeprefix(start)}": values[key] for key in values if key.startswith(start)}

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = super().weight_shapes()
        for name in CRITICS:
            shapes.update(_renamed(name, self.critic.weight_shapes()))
        return {**shapes, LOG_ALPHA: (1,)}

    def first_weights(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return first weights: of stock networks, other ones for each critic, and a temperature of 1."""
        weights = super().first_weights(seed)
        for number, name in enumerate(CRITICS):
            weights.update(_renamed(name, self.critic.first_weights(seed + number + 1)))
        return weights

    def unit_weights(self) -> UnitWeights:
        powers = {
            name: 1 for critic in CRITICS for name in _renamed(critic, self.critic.unit_weights().powers)
        }
        return UnitWeights(powers)

    def torch_network(self, params: Mapping[str, Any]) -> TorchSAC:
        from menv.algorithms.sac.learner import TorchSAC

        return TorchSAC(self, params)

    def graphs(self, defaults: Mapping[str, npt.NDArray[np.float32]]) -> ActingGraphs:
        from menv.algorithms.sac.graphs import SACGraphs

        return SACGraphs(self, defaults)


def _renamed(name: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of a critic by their names in the whole network."""
    return {key.replace("policy.", f"{name}."): value for key, value in weights.items() if key != EPSILON}
