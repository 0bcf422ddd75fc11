"""Choices and numbers in one action: the inputs are the logits of all choices, then means and log standard deviations.

Choices and numbers are independent of each other, so log-probability, entropy and KL divergence are sums of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.inference.heads.categorical import MultiCategorical
from menv.inference.heads.gaussian import Gaussian, GaussianNodes, with_log_std
from menv.inference.heads.head import (
    HALF_LOG_TWO_PI,
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


class Part(NamedTuple):
    """The choices of a mixed action, or its numbers: their head, their columns [n] in actions and in the inputs."""

    head: ActionHead
    columns: npt.NDArray[np.int64]
    inputs: slice

    def of(self, actions: Tensor) -> Tensor:
        """Return the part's columns of actions [N, ...], as its head takes them."""
        columns = actions[:, self.columns]
        return columns if self.head.numbers else columns.long()


class Mixed(ActionHead):
    """Choices by logits, and numbers of normal distributions."""

    kind = "mixed"
    returns_dist_inputs = True

    def has_right_sizes(self) -> bool:
        return min(self.sizes) == 0 < max(self.sizes)

    @classmethod
    def for_space(cls, space: gym.Space[Any]) -> ActionHead | None:
        if not isinstance(space, gym.spaces.Tuple):
            return None
        # The flat space of choices and numbers, one leaf after the other.
        sizes: list[int] = []
        for leaf in space.spaces:
            count = leaf.n if isinstance(leaf, gym.spaces.Discrete) else getattr(leaf, "nvec", 0)
            sizes += np.broadcast_to(count, leaf.shape or ()).reshape(-1).tolist()
        return cls(tuple(sizes)) if min(sizes, default=1) == 0 < max(sizes) else None

    @cached_property
    def choices(self) -> tuple[int, ...]:
        return tuple(size for size in self.sizes if size)

    @cached_property
    def numbers(self) -> int:
        return self.sizes.count(0)

    @cached_property
    def parts(self) -> tuple[Part, Part]:
        """The choices and the numbers."""
        sizes, cut = np.array(self.sizes), sum(self.sizes)
        return (
            Part(MultiCategorical(self.choices), np.flatnonzero(sizes), slice(0, cut)),
            Part(Gaussian((self.numbers,)), np.flatnonzero(sizes == 0), slice(cut, self.inputs)),
        )

    @cached_property
    def outputs(self) -> int:
        return sum(self.choices) + self.numbers

    @cached_property
    def normal(self) -> npt.NDArray[np.bool_]:
        return np.equal(self.sizes, 0)

    @property
    def weights(self) -> dict[str, Floats]:
        return self.parts[1].head.weights

    def logp(self, dist_inputs: Floats, actions: npt.NDArray[Any]) -> Floats:
        choices, numbers = (
            part.head.logp(
                dist_inputs[:, part.inputs], actions[:, part.columns].astype(part.head.action_dtype)
            )
            for part in self.parts
        )
        total: Floats = choices + numbers
        return total

    def completed(self, outputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        return with_log_std(outputs, weights)

    def standard(self, dist_inputs: Tensor) -> Tensor:
        return cat([part.head.standard(dist_inputs[:, part.inputs]) for part in self.parts])

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        return self._sum(lambda part: part.head.log_prob(inputs[:, part.inputs], part.of(actions)))

    def entropy(self, inputs: Tensor) -> Tensor:
        return self._sum(lambda part: part.head.entropy(inputs[:, part.inputs]))

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        return self._sum(lambda part: part.head.kl(old[:, part.inputs], new[:, part.inputs]))

    def _sum(self, of: Callable[[Part], Tensor]) -> Tensor:
        choices, numbers = map(of, self.parts)
        return choices + numbers

    def chosen(
        self, dist_inputs: Tensor, noise: Tensor | None, mask: Tensor | None, weights: Mapping[str, Tensor]
    ) -> Tensor:
        actions = dist_inputs.new_empty((len(dist_inputs), *self.action_shape))
        for part in self.parts:
            own = None if noise is None else noise[:, part.columns]
            found = part.head.chosen(dist_inputs[:, part.inputs], own, None, weights)
            actions[:, part.columns] = found.to(actions.dtype)
        return actions

    def nodes(self, graph: Graph) -> MixedNodes:
        return MixedNodes(graph, self)

    def action_columns(self, actions: Tensor) -> Tensor:
        starts = np.cumsum((0, *self.sizes[:-1])) * np.greater(self.sizes, 0)
        return super().action_columns(actions) + actions.new_tensor(starts)[:, None]

    def gradients(
        self, rows: PolicyRows, outputs: Tensor, log_std: Tensor | None, coeffs: Coefficients, report: bool
    ) -> PolicyGradients:
        assert log_std is not None
        choices, numbers = self.parts
        cut = choices.inputs.stop
        logits, means = outputs[:cut], outputs[cut:]
        if rows.forbidden is not None:
            logits.masked_fill_(rows.forbidden, ILLEGAL)
        chosen, taken = rows.actions[choices.columns].long(), rows.actions[numbers.columns]
        scaled = (taken - means).mul_(log_std.neg().exp_()[:, None])
        of_numbers = scaled.square_().sum(0).mul_(-0.5) - (log_std.sum() + len(log_std) * HALF_LOG_TWO_PI)
        assert isinstance(choices.head, MultiCategorical)
        of_choices = choices.head.log_chances(logits).gather(0, chosen).sum(0)
        # Each part gets the log-probability of the other one, so that both use the ratio of the whole action.
        magnet = rows.magnet
        one = rows._replace(
            actions=chosen, old_logp=rows.old_logp - of_numbers, old_inputs=rows.old_inputs[:cut],
            magnet=None if magnet is None else magnet[:cut],
        )  # fmt: skip
        other = rows._replace(
            actions=taken, old_logp=rows.old_logp - of_choices, old_inputs=rows.old_inputs[cut:],
            magnet=None if magnet is None else magnet[cut:],
        )  # fmt: skip
        first, _, terms = choices.head.gradients(one, logits, None, coeffs, report)
        second, log_std_grad, others = numbers.head.gradients(other, means, log_std, coeffs, report)
        if report:
            terms = terms[0], *(own + its for own, its in zip(terms[1:], others[1:], strict=True))
        return cat((first, second), 0), log_std_grad, terms


class MixedNodes(HeadNodes):
    """The nodes of discrete and continuous parts, which are sampled independently."""

    head: Mixed

    def __init__(self, graph: Graph, head: Mixed) -> None:
        super().__init__(graph, head)
        choices, numbers = (part.head for part in head.parts)
        self.choices, self.numbers = choices.nodes(graph), GaussianNodes(graph, numbers)

    def dist_inputs(self, outputs: str, masked: bool) -> str:
        graph, choices = self.graph, sum(self.head.choices)
        width = self.head.inputs if graph.own_deviations else self.head.outputs
        logits = self.columns(outputs, np.arange(choices))
        self.numbers.dist_inputs(self.columns(outputs, np.arange(choices, width)), False)
        return graph.add("Concat", self.choices.dist_inputs(logits, masked), self.numbers.complete(), axis=1)

    def sample(self, draws: str) -> str:
        own = [self.columns(draws, part.columns) for part in self.head.parts]
        return self._joined(self.choices.sample(own[0]), self.numbers.sample(own[1]))

    def mode(self) -> str:
        return self._joined(self.choices.mode(), self.numbers.mode())

    def logp(self, actions: str) -> str:
        choices, numbers = (self.columns(actions, part.columns) for part in self.head.parts)
        of_choices = self.choices.logp(self.graph.cast(choices, np.int64))
        return self.graph.add("Add", of_choices, self.numbers.logp(numbers))

    def _joined(self, choices: str, numbers: str) -> str:
        """Return actions of choices [R, components] and numbers [R, k]."""
        both = self.graph.add("Concat", self.graph.cast(choices, np.float32), numbers, axis=1)
        return self.columns(both, np.argsort(np.concatenate([part.columns for part in self.head.parts])))
