"""One choice, or several independent ones: the inputs are logits, side by side in one row.

Gathering and summing over the row treats one component and many alike. A masked choice has probability 0 and adds
exactly 0 to every sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.inference.heads.head import (
    ILLEGAL,
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


class Categorical(ActionHead):
    """One choice by logits."""

    kind: ClassVar[str] = "categorical"
    returns_dist_inputs = True

    @classmethod
    def for_space(cls, space: gym.Space[Any]) -> ActionHead | None:
        return cls((int(space.n),)) if isinstance(space, gym.spaces.Discrete) else None

    @property
    def action_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def starts(self) -> list[int]:
        """The first input of each component."""
        return [0, *accumulate(self.sizes[:-1])]

    def logp(self, dist_inputs: Floats, actions: npt.NDArray[Any]) -> Floats:
        if self.sizes == (2,) and actions.ndim == 1:
            # log sigmoid: numpy is slow on many rows of two.
            lead = dist_inputs[:, 0] - dist_inputs[:, 1]
            # Indexing the rows with the other action would take twice as long.
            lead *= (1 - 2 * actions).astype(np.float32)
            found: Floats = np.minimum(lead, 0) - np.log1p(np.exp(-np.abs(lead)))
            return found
        total, rows = np.zeros(len(dist_inputs), np.float32), np.arange(len(dist_inputs))
        taken = actions if actions.ndim == 2 else actions[:, None]
        for column, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            logits = dist_inputs[:, start : start + size]
            highest, log_sum = _highest_and_log_sum(logits)
            total += logits[rows, taken[:, column]] - highest - log_sum
        return total

    def standard(self, dist_inputs: Tensor) -> Tensor:
        if len(self.sizes) == 1:
            return _log_softmax(dist_inputs)
        return cat([_log_softmax(part) for part in dist_inputs.split_with_sizes(self.sizes, -1)])

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        if len(self.sizes) == 1:
            return inputs.gather(1, actions.reshape(-1, 1)).squeeze(1)
        return inputs.gather(1, actions + actions.new_tensor(self.starts)).sum(-1)

    def entropy(self, inputs: Tensor) -> Tensor:
        return -(inputs.exp() * inputs).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        return (old.exp() * (old - new)).sum(-1)

    def chosen(
        self, dist_inputs: Tensor, noise: Tensor | None, mask: Tensor | None, weights: Mapping[str, Tensor]
    ) -> Tensor:
        columns = [
            part.argmax(-1) if noise is None else _inverse_cdf(part, noise[:, column])
            for column, part in enumerate(dist_inputs.split_with_sizes(self.sizes, -1))
        ]
        return cat([column[:, None] for column in columns]).reshape(-1, *self.action_shape)

    def nodes(self, graph: Graph) -> CategoricalNodes:
        return CategoricalNodes(graph, self)

    def action_columns(self, actions: Tensor) -> Tensor:
        return super().action_columns(actions) + actions.new_tensor(self.starts)[:, None]

    def gradients(
        self, rows: PolicyRows, outputs: Tensor, log_std: Tensor | None, coeffs: Coefficients, report: bool
    ) -> PolicyGradients:
        if rows.forbidden is not None:
            outputs.masked_fill_(rows.forbidden, ILLEGAL)
        one = len(self.sizes) == 1
        logp = self.log_chances(outputs)
        taken = logp.gather(0, rows.actions)
        losses, logp_grads = rows.surrogate((taken[0] if one else taken.sum(0)) - rows.old_logp)
        share = 1.0 / len(logp_grads)
        chances = logp.exp()
        terms: tuple[Tensor, ...] = ()
        if report:
            entropy = (chances * logp).sum() * -share
            kl = (rows.old_inputs.exp() * (rows.old_inputs - logp)).sum() * share
            terms = losses.mean(), entropy, kl
            if rows.magnet is not None:
                terms = (*terms, (chances * (logp - rows.magnet)).sum() * share)
        regularizer = _regularizer(self.sizes, coeffs, rows, logp, chances)
        less = chances.new_full((), -1.0)
        gradients = chances.scatter_add_(0, rows.actions, less.expand_as(rows.actions)).mul_(
            logp_grads.mul_(-share)
        )
        if regularizer is not None:
            gradients.add_(regularizer, alpha=share)
        if rows.forbidden is not None:
            gradients.masked_fill_(rows.forbidden, 0.0)
        return gradients, None, terms

    def log_chances(self, outputs: Tensor) -> Tensor:
        """Return the log-probabilities [D, B] of all choices from outputs [D, B]."""
        if len(self.sizes) == 1:
            return outputs.log_softmax(0)
        return cat([part.log_softmax(0) for part in outputs.split_with_sizes(self.sizes)], 0)


class MultiCategorical(Categorical):
    """Several choices, each by its own logits."""

    kind = "multi_categorical"

    def has_right_sizes(self) -> bool:
        return min(self.sizes) > 0

    @classmethod
    def for_space(cls, space: gym.Space[Any]) -> ActionHead | None:
        if isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return cls(tuple(int(n) for n in space.nvec))
        return None

    @property
    def action_shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)


class CategoricalNodes(HeadNodes):
    """The nodes of one or several categorical components.

    Components of different sizes are stored as [R, components, largest size], padded with illegal
    choices, so that any number of them costs the same few nodes.
    """

    @property
    def several(self) -> bool:
        """Whether actions have an axis of components."""
        return bool(self.head.action_shape)

    def dist_inputs(self, outputs: str, masked: bool) -> str:
        self.logits = outputs
        if masked:
            mask = self.graph.given("mask", np.bool_, ["R", self.head.mask_width])
            self.logits = self.legal(outputs, mask)
        return self.logits

    def by_component(self) -> str:
        """Return the logits [R, components, largest size], [R, size] of one component."""
        graph, sizes, widest = self.graph, self.head.sizes, max(self.head.sizes)
        if not self.several:
            return self.logits
        if min(sizes) == widest:
            return graph.add("Reshape", self.logits, graph.constant([0, len(sizes), widest]))
        starts = np.cumsum((0, *sizes[:-1]))[:, None]
        choice = np.arange(widest)[None, :]
        real = choice < np.asarray(sizes)[:, None]
        padded = self.columns(self.logits, np.where(real, starts + choice, 0))
        illegal = graph.constant(ILLEGAL, np.float32)
        return graph.add("Where", graph.constant(real, np.bool_), padded, illegal)

    def sample(self, draws: str) -> str:
        graph, head = self.graph, self.head
        if head.sizes == (2,) and not self.several:
            return self._sample_of_two(draws)
        chances = graph.add("Softmax", self.by_component(), axis=-1)
        if not self.several:
            return self.drawn(chances, draws, head.sizes[0])
        return self.drawn(chances, graph.add("Unsqueeze", draws, graph.constant([2])), max(head.sizes), 2)

    def _sample_of_two(self, draws: str) -> str:
        # A softmax of two numbers takes as long as the layer before it. The draw is in [0, 1), so a choice of
        # probability 0 is never taken.
        graph = self.graph
        # One node instead of three; products with 1 are exact, and so is the sum.
        lead = graph.add("MatMul", self.logits, graph.constant([[1.0], [-1.0]], np.float32))
        chance = graph.add("Sigmoid", lead)
        return self.squeezed(graph.cast(graph.add("GreaterOrEqual", draws, chance), np.int64))

    def mode(self) -> str:
        return self.highest(self.by_component())

    def logp(self, actions: str) -> str:
        graph = self.graph
        logs = graph.add("LogSoftmax", self.by_component(), axis=-1)
        places = graph.add("Unsqueeze", actions, graph.constant([-1]))
        taken = self.squeezed(graph.add("GatherElements", logs, places, axis=-1))
        return self.squeezed(graph.row_sum(taken, len(self.head.sizes))) if self.several else taken


def _highest_and_log_sum(logits: Floats) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the highest of the logits [N, D] of each row, and log(sum(exp(logits - highest))), both [N]."""
    # Six times as fast for few choices. From 8 on numpy rounds sums along a row and down a column differently.
    if logits.shape[1] < 8:
        columns = np.ascontiguousarray(logits.T)
        highest = np.maximum.reduce(columns, axis=0)
        return highest, np.log(np.add.reduce(np.exp(columns - highest), axis=0))
    highest = np.maximum.reduce(logits, axis=1)
    return highest, np.log(np.add.reduce(np.exp(logits - highest[:, None]), axis=1))


def _log_softmax(logits: Tensor) -> Tensor:
    # Rows that fill no vector register are computed number by number; columns are not. With 9 choices that takes
    # half as long, with 16 twice.
    if 2 < logits.shape[-1] < 16:
        return logits.t().log_softmax(0).t()
    return logits.log_softmax(-1)


def _inverse_cdf(logits: Tensor, draws: Tensor) -> Tensor:
    """Return the [N] first choices whose cumulated probability exceeds the draw."""
    steps = logits.softmax(-1).cumsum(-1)
    return (steps > (draws * steps[:, -1])[:, None]).byte().argmax(-1)


def _regularizer(
    sizes: tuple[int, ...], coeffs: Coefficients, rows: PolicyRows, logp: Tensor, chances: Tensor
) -> Tensor | None:
    """Return the gradients [D, B] of all terms but policy_loss, None if their weights are 0."""
    changes = []
    if coeffs.entropy_coeff:
        changes.append(_slope(sizes, chances, logp).mul_(coeffs.entropy_coeff))
    if coeffs.kl_coeff:
        changes.append((chances - rows.old_inputs.exp()).mul_(coeffs.kl_coeff))
    if rows.magnet is not None:
        changes.append(_slope(sizes, chances, logp - rows.magnet).mul_(coeffs.magnet_coeff))
    for change in changes[1:]:
        changes[0].add_(change)
    return changes[0] if changes else None


def _slope(sizes: tuple[int, ...], chances: Tensor, values: Tensor) -> Tensor:
    """Return the gradients [D, B] of the mean of `values`, which are log chances and constants, for the logits."""
    means = [part.sum(0, keepdim=True).expand_as(part) for part in (chances * values).split_with_sizes(sizes)]
    return (values - cat(means, 0)).mul_(chances)
