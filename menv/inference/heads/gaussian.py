"""Continuous actions: the inputs are means, then log standard deviations, which are a weight of stock networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.inference.heads.head import (
    HALF_LOG_TWO_PI,
    ActionHead,
    Coefficients,
    Floats,
    Graph,
    HeadNodes,
    PolicyGradients,
    PolicyRows,
    cat,
)

if TYPE_CHECKING:
    from torch import Tensor

LOG_STD = "policy.log_std"


class Gaussian(ActionHead):
    """k numbers of independent normal distributions."""

    kind: ClassVar[str] = "gaussian"

    @classmethod
    def for_space(cls, space: gym.Space[Any]) -> ActionHead | None:
        if (
            isinstance(space, gym.spaces.Box)
            and np.issubdtype(space.dtype, np.floating)
            and 0 not in space.shape
        ):
            return cls((math.prod(space.shape),))
        return None

    @property
    def choices(self) -> tuple[int, ...]:
        return ()

    @property
    def numbers(self) -> int:
        return self.sizes[0]

    @property
    def outputs(self) -> int:
        return self.sizes[0]

    @property
    def noise_width(self) -> int:
        return self.sizes[0]

    @property
    def action_shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def weights(self) -> dict[str, Floats]:
        return {LOG_STD: np.zeros(self.sizes, np.float32)}

    def logp(self, dist_inputs: Floats, actions: npt.NDArray[Any]) -> Floats:
        means, log_stds = np.split(dist_inputs, 2, 1)
        scaled = (actions - means) * np.exp(-log_stds)
        found = -0.5 * scaled * scaled - log_stds - HALF_LOG_TWO_PI
        return np.add.reduce(found, axis=1).astype(np.float32)  # type: ignore[no-any-return]

    def completed(self, outputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        return with_log_std(outputs, weights)

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = inputs.chunk(2, -1)
        z = (actions - mean) * (-log_std).exp()
        return -(0.5 * z * z + log_std).sum(-1) - self.sizes[0] * HALF_LOG_TWO_PI

    def entropy(self, inputs: Tensor) -> Tensor:
        return inputs[:, self.sizes[0] :].sum(-1) + self.sizes[0] * (HALF_LOG_TWO_PI + 0.5)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        old_mean, old_log_std = old.chunk(2, -1)
        mean, log_std = new.chunk(2, -1)
        variances = (2.0 * (old_log_std - log_std)).exp()
        z = (old_mean - mean) * (-log_std).exp()
        return (log_std - old_log_std + 0.5 * (variances + z * z) - 0.5).sum(-1)

    def chosen(
        self, dist_inputs: Tensor, noise: Tensor | None, mask: Tensor | None, weights: Mapping[str, Tensor]
    ) -> Tensor:
        mean, log_std = dist_inputs.chunk(2, -1)
        return mean if noise is None else mean + log_std.exp() * noise

    def nodes(self, graph: Graph) -> GaussianNodes:
        return GaussianNodes(graph, self)

    def gradients(
        self, rows: PolicyRows, outputs: Tensor, log_std: Tensor | None, coeffs: Coefficients, report: bool
    ) -> PolicyGradients:
        assert log_std is not None
        shrink = log_std.neg().exp_()[:, None]
        scaled = (rows.actions - outputs).mul_(shrink)
        spread = log_std.sum()
        logp = scaled.square().sum(0).mul_(-0.5) - (spread + len(log_std) * HALF_LOG_TWO_PI)
        losses, logp_grads = rows.surrogate(logp - rows.old_logp)
        share = 1.0 / len(logp_grads)
        logp_grads *= share
        log_std_grad = scaled.square().sub_(1.0).mv(logp_grads)
        gradients = scaled.mul_(shrink).mul_(logp_grads)
        terms: tuple[Tensor, ...] = ()
        if report or coeffs.kl_coeff:
            old_means, old_log_std = rows.old_inputs.chunk(2)
            apart = (outputs - old_means).mul_(shrink)
            # The old variance and the squared distance, in units of the new variance.
            moment = (old_log_std - log_std[:, None]).mul_(2.0).exp_().addcmul_(apart, apart)
            if report:
                kl = (log_std[:, None] - old_log_std + 0.5 * moment - 0.5).sum() * share
                terms = losses.mean(), spread + len(log_std) * (HALF_LOG_TWO_PI + 0.5), kl
            if coeffs.kl_coeff:
                gradients.add_(apart.mul_(shrink), alpha=coeffs.kl_coeff * share)
                log_std_grad += (1.0 - moment.mean(1)) * coeffs.kl_coeff
        if coeffs.entropy_coeff:
            log_std_grad -= coeffs.entropy_coeff
        if rows.magnet is not None:
            their_means, their_log_std = rows.magnet.chunk(2)
            tighten = their_log_std.neg().exp_()
            apart = (outputs - their_means).mul_(tighten)
            variance = (log_std[:, None] - their_log_std).mul_(2.0).exp_()
            if report:
                kl = (their_log_std - log_std[:, None] + 0.5 * (variance + apart * apart) - 0.5).sum() * share
                terms = (*terms, kl)
            gradients.add_(apart.mul_(tighten), alpha=coeffs.magnet_coeff * share)
            log_std_grad += (variance.mean(1) - 1.0) * coeffs.magnet_coeff
        return gradients, log_std_grad, terms


def with_log_std(outputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """Return outputs [N, *] and then the log standard deviations, the same in every row."""
    return cat((outputs, weights[LOG_STD].expand(len(outputs), -1)), 1)


class GaussianNodes(HeadNodes):
    """The nodes of a diagonal normal distribution, whose log_std is a weight, or an output of the network."""

    def dist_inputs(self, outputs: str, masked: bool) -> str:
        assert not masked, "continuous actions have no mask"
        graph, size = self.graph, self.head.sizes[0]
        self.outputs = self.means = outputs
        if not graph.own_deviations:
            return outputs if graph.stacked else self.complete()
        self.means, self.log_std = (
            self.columns(outputs, np.arange(start, start + size)) for start in (0, size)
        )
        return outputs

    def complete(self) -> str:
        """Return means and log_std of each row."""
        graph = self.graph
        if graph.own_deviations:
            return self.outputs
        rows = self.log_std = self.deviations()
        if not graph.stacked:
            rows = graph.add("Expand", rows, graph.add("Shape", self.means))
        return graph.add("Concat", self.means, rows, axis=1)

    def sample(self, draws: str) -> str:
        graph = self.graph
        return graph.add("Add", self.means, graph.add("Mul", graph.add("Exp", self.deviations()), draws))

    def deviations(self) -> str:
        """Return log_std."""
        own = self.graph.own_deviations
        return self.log_std if own else self.graph.of_each_row(LOG_STD, (self.head.numbers,))

    def mode(self) -> str:
        return self.means

    def logp(self, actions: str) -> str:
        graph = self.graph
        z = graph.add("Div", graph.add("Sub", actions, self.means), graph.add("Exp", self.log_std))
        terms = graph.add("Mul", graph.add("Mul", z, z), graph.constant(-0.5, np.float32))
        terms = graph.add("Sub", terms, self.log_std)
        terms = graph.add("Sub", terms, graph.constant(HALF_LOG_TWO_PI, np.float32))
        return self.squeezed(graph.row_sum(terms, self.head.numbers))
