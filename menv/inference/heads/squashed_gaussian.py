"""Continuous actions between -1 and 1: the hyperbolic tangent of normal variables with means and deviations as inputs.

The distribution of SAC (Haarnoja et al. 2018b, arXiv:1812.05905, appendix C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError
from menv.inference.heads.gaussian import Gaussian, GaussianNodes
from menv.inference.heads.head import HALF_LOG_TWO_PI, ActionHead, Builder, Floats, Graph, cat

if TYPE_CHECKING:
    from torch import Tensor

LOG_STDS = -20.0, 2.0
"""Bounds of the logarithms of standard deviations."""
# The largest action whose log-probability is computed: others are rounded to 1 in float32.
_MOST = 1.0 - 1e-6


class SquashedGaussian(Gaussian):
    """k numbers between -1 and 1; the inputs are k means and k log standard deviations before the tangent."""

    kind = "squashed_gaussian"
    has_gradients = False

    @classmethod
    def for_space(cls, space: gym.Space[Any]) -> ActionHead | None:
        return None

    @property
    def outputs(self) -> int:
        return 2 * self.sizes[0]

    @property
    def weights(self) -> dict[str, Floats]:
        return {}

    def logp(self, dist_inputs: Floats, actions: npt.NDArray[Any]) -> Floats:
        clipped = np.clip(actions, -_MOST, _MOST)
        slopes = np.log1p(-clipped * clipped).sum(1)
        found: Floats = super().logp(dist_inputs, np.arctanh(clipped)) - slopes
        return found

    def completed(self, outputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        mean, log_std = outputs.chunk(2, -1)
        return cat((mean, log_std.clamp(*LOG_STDS)))

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        clipped = actions.clamp(-_MOST, _MOST)
        return super().log_prob(inputs, clipped.atanh()) - (-clipped * clipped).log1p().sum(-1)

    def entropy(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError

    def chosen(
        self, dist_inputs: Tensor, noise: Tensor | None, mask: Tensor | None, weights: Mapping[str, Tensor]
    ) -> Tensor:
        return super().chosen(dist_inputs, noise, mask, weights).tanh()

    def sampled(self, inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [N, k] and their log-probabilities [N], as differentiable functions of the inputs [N, 2k]."""
        mean, log_std = inputs.chunk(2, -1)
        before = mean + log_std.exp() * noise
        # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which is exact where the action is rounded to 1.
        softplus = (-2.0 * before).logaddexp(before.new_zeros(()))
        slopes = 2.0 * (math.log(2.0) - before - softplus)
        logp = -(0.5 * noise * noise + log_std + HALF_LOG_TWO_PI + slopes).sum(-1)
        return before.tanh(), logp

    def nodes(self, graph: Graph) -> SquashedNodes:
        return SquashedNodes(graph, self)

    def client_inputs(self, graph: Builder, found: str, weights: Mapping[str, Floats], mask: str) -> str:
        raise ConfigError(
            "RLlink model: a policy of SAC, whose actions have no normal distribution, expected another algorithm; let "
            'clients request each action (GET_ACTION), or use PolicyClient with inference_mode="local"'
        )


class SquashedNodes(GaussianNodes):
    """The nodes of a squashed normal distribution."""

    def dist_inputs(self, outputs: str, masked: bool) -> str:
        graph, size = self.graph, self.head.numbers
        self.means = self.columns(outputs, np.arange(size))
        bounds = [graph.constant(bound, np.float32) for bound in LOG_STDS]
        self.log_std = graph.add("Clip", self.columns(outputs, np.arange(size, 2 * size)), *bounds)
        return graph.add("Concat", self.means, self.log_std, axis=1)

    def deviations(self) -> str:
        return self.log_std

    def sample(self, draws: str) -> str:
        return self.graph.add("Tanh", super().sample(draws))

    def mode(self) -> str:
        return self.graph.add("Tanh", self.means)

    def logp(self, actions: str) -> str:
        graph = self.graph
        bounds = [graph.constant(bound, np.float32) for bound in (-_MOST, _MOST)]
        clipped = graph.add("Clip", actions, *bounds)
        square = graph.add("Mul", clipped, clipped)
        # log(1 - x) = -2 atanh(x / (2 - x)), because Log rounds numbers differently that fill no vector register.
        share = graph.add("Div", square, graph.add("Sub", graph.constant(2.0, np.float32), square))
        slopes = graph.row_sum(graph.add("Atanh", share), self.head.numbers)
        slopes = graph.add("Mul", slopes, graph.constant(-2.0, np.float32))
        return graph.add("Sub", super().logp(graph.add("Atanh", clipped)), self.squeezed(slopes))
