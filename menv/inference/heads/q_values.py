"""Choices by Q-value: the best one or, with probability epsilon, any legal one.

Epsilon is a weight of the network. Several components, the members of a group, explore independently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from menv.inference.heads.head import ActionHead, Builder, Floats, Graph, HeadNodes

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = "epsilon"
"""The probability of random actions of a Q-network: published with its weights, never learned."""
LEAST_CHANCE = 1e-30
"""Stands for probability 0 of an epsilon-greedy choice in logarithms, which stay finite."""
# The highest logit stays the highest where epsilon is 1, for clients that take it.
_MOST_EPSILON = 1.0 - 1e-6


class QValues(ActionHead):
    """An epsilon-greedy choice."""

    kind: ClassVar[str] = "q_values"
    is_value_based = True
    has_gradients = False

    @property
    def noise_width(self) -> int:
        """Two numbers for each component: whether to explore, and which choice to take."""
        return 2 * len(self.sizes)

    @property
    def action_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def weights(self) -> dict[str, Floats]:
        return {EPSILON: np.ones(1, np.float32)}

    def chosen(
        self, dist_inputs: Tensor, noise: Tensor | None, mask: Tensor | None, weights: Mapping[str, Tensor]
    ) -> Tensor:
        taken = dist_inputs.reshape(-1, self.sizes[0]).argmax(-1)
        if noise is not None:
            pairs, numbers = noise.reshape(-1, 2), self._legal(dist_inputs, mask).cumsum(-1)
            # Below the last number in float32, whatever the draw, so that a legal choice is always beyond it.
            beyond = numbers > pairs[:, 1:] * numbers[:, -1:]
            taken = beyond.byte().argmax(-1).where(pairs[:, 0] < weights[EPSILON], taken)
        return taken.reshape(-1, *self.action_shape)

    def acting_logp(
        self, dist_inputs: Tensor, actions: Tensor, mask: Tensor | None, weights: Mapping[str, Tensor]
    ) -> Tensor:
        legal, taken, epsilon = self._legal(dist_inputs, mask), actions.reshape(-1), weights[EPSILON]
        share = epsilon * legal.gather(1, taken[:, None])[:, 0] / legal.sum(-1).clamp(min=1.0)
        is_best = (taken == dist_inputs.reshape(-1, self.sizes[0]).argmax(-1)).float()
        logs = (share + is_best * (1.0 - epsilon)).clamp(min=LEAST_CHANCE).log()
        return logs.reshape(-1, len(self.sizes)).sum(-1)

    def _legal(self, dist_inputs: Tensor, mask: Tensor | None) -> Tensor:
        """Return [N * components, n] 1 where allowed and 0 elsewhere."""
        allowed = dist_inputs.new_ones(dist_inputs.shape) if mask is None else mask.float()
        return allowed.reshape(-1, self.sizes[0])

    def nodes(self, graph: Graph) -> QValueNodes:
        return QValueNodes(graph, self)

    def client_inputs(self, graph: Builder, found: str, weights: Mapping[str, Floats], mask: str) -> str:
        """Return logarithms of the chances of an epsilon-greedy choice."""
        count, last, one = self.sizes[0], graph.constant([-1]), graph.constant(1.0, np.float32)
        by_component, by_row = graph.constant([-1, count]), graph.constant([-1, self.inputs])
        worth = graph.add("Reshape", found, by_component)
        best = graph.add("ArgMax", worth, axis=-1, keepdims=1)
        best = graph.cast(graph.add("Equal", graph.constant(np.arange(count)), best), np.float32)
        share = graph.constant(weights[EPSILON], np.float32)
        share = graph.add("Min", share, graph.constant(_MOST_EPSILON, np.float32))
        if mask:
            legal = graph.cast(graph.add("Reshape", mask, by_component), np.float32)
        else:
            legal = graph.constant(np.ones(count), np.float32)
        total = graph.add("Max", graph.add("ReduceSum", legal, last, keepdims=1), one)
        any_legal = graph.add("Mul", share, graph.add("Div", legal, total))
        chance = graph.add("Add", any_legal, graph.add("Mul", best, graph.add("Sub", one, share)))
        chance = graph.add("Max", chance, graph.constant(LEAST_CHANCE, np.float32))
        return graph.add("Reshape", graph.add("Log", chance), by_row)


class MultiQValues(QValues):
    """The epsilon-greedy choices of the members of a group, all of the same size."""

    kind = "multi_q_values"

    def has_right_sizes(self) -> bool:
        return min(self.sizes) > 0 and len(set(self.sizes)) == 1

    @property
    def members(self) -> int:
        return len(self.sizes)

    @property
    def action_shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)


class QValueNodes(HeadNodes):
    """The nodes of epsilon-greedy choices; of several components the graph computes [R * components, choices]."""

    mask = ""

    def dist_inputs(self, outputs: str, masked: bool) -> str:
        graph, self.q_values = self.graph, outputs
        if masked:
            mask = graph.given("mask", np.bool_, ["R", self.head.mask_width])
            self.mask = self.laid_out(mask, self.head.sizes[0])
            self.q_values = self.legal(outputs, self.mask)
        return self.laid_out(self.q_values, self.head.inputs)

    def laid_out(self, x: str, width: int) -> str:
        """Return values as rows of `width`: per component, or of all components."""
        if not self.head.members:
            return x
        return self.graph.add("Reshape", x, self.graph.constant([-1, width]))

    def mode(self) -> str:
        return self.laid_out(self.highest(self.q_values), len(self.head.sizes))

    def sample(self, draws: str) -> str:
        graph = self.graph
        draws = self.laid_out(draws, 2)
        whether, what = (self.columns(draws, [place]) for place in (0, 1))
        explores = self.squeezed(graph.add("Less", whether, graph.of_each_row(EPSILON, (1,))))
        chosen = graph.add("Where", explores, self._any_legal(what), self.highest(self.q_values))
        return self.laid_out(chosen, len(self.head.sizes))

    def _any_legal(self, draw: str) -> str:
        graph, count = self.graph, self.head.sizes[0]
        if self.mask:
            return self.drawn(self._legal(), draw, count)
        number = graph.add("Mul", draw, graph.constant(count, np.float32))
        return self.squeezed(graph.cast(number, np.int64))

    def _legal(self) -> str:
        return self.graph.cast(self.mask, np.float32)

    def logp(self, actions: str) -> str:
        if not self.head.members:
            return self._logp(actions)
        logs = self._logp(self.graph.add("Reshape", actions, self.graph.constant([-1])))
        return self.squeezed(self.graph.row_sum(self.laid_out(logs, self.head.members), self.head.members))

    def _logp(self, actions: str) -> str:
        graph, last = self.graph, self.graph.constant([-1])
        epsilon = graph.of_each_row(EPSILON, (1,))
        one = graph.constant(1.0, np.float32)
        share = graph.add("Mul", epsilon, graph.constant(1.0 / self.head.sizes[0], np.float32))
        if self.mask:
            legal = self._legal()
            own = graph.add("GatherElements", legal, graph.add("Unsqueeze", actions, last), axis=1)
            total = graph.add("ReduceSum", legal, last, keepdims=1)
            # The mask of a padding row may allow nothing.
            shares = graph.add("Div", own, graph.add("Max", total, one))
            share = self.squeezed(graph.add("Mul", epsilon, shares))
        best = graph.cast(graph.add("Equal", actions, self.highest(self.q_values)), np.float32)
        chance = graph.add("Add", share, graph.add("Mul", best, graph.add("Sub", one, epsilon)))
        chance = graph.add("Max", chance, graph.constant(LEAST_CHANCE, np.float32))
        # Log rounds numbers that do not fill a vector register differently: each row gets separate registers.
        wide = graph.add("Mul", graph.add("Unsqueeze", chance, last), graph.constant([1.0] * 16, np.float32))
        return self.squeezed(self.columns(graph.add("Log", wide), [0]))
