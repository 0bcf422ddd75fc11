"""ActionHead: the meaning of a policy network's outputs: how D numbers per row become an action.

Network builders, acting back-ends and losses all ask the same head. Its discrete actions count from 0 and its
continuous ones are flat float32 rows; connectors apply `start` offsets, bounds and shapes of the environment's space.
Heads neither import torch nor onnx: they call methods of the tensors and of the graph that they are given.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import rng
from menv.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

Floats: TypeAlias = npt.NDArray[np.float32]

ILLEGAL = -1e9
"""The distribution input of a masked action: finite, so KL terms stay finite, with probability exactly 0 in float32."""

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)

_LONGEST = 120


@dataclass(frozen=True)
class ActionHead:
    """How a row of D distribution inputs becomes an action.

    Torch methods take `inputs` [N, D] after masking that went through `standard` once, and actions as the acting
    back-ends return them. Subclasses are the distributions; Q-values have no log-probability, entropy and divergence.

    Attributes:
        sizes: Number of choices of each component; of continuous actions the one number k of dimensions; of mixed ones
            one size for each column of an action, 0 for a number.
    """

    sizes: tuple[int, ...]

    kind: ClassVar[str]
    """The name in files."""
    is_value_based: ClassVar[bool] = False
    """Whether the inputs are Q-values, so only epsilon makes actions random."""
    returns_dist_inputs: ClassVar[bool] = False
    """Whether acting also returns the distribution inputs: logits cost nothing extra."""
    has_gradients: ClassVar[bool] = True
    """Whether there is `gradients`."""

    def __post_init__(self) -> None:
        if not self.sizes or not self.has_right_sizes():
            raise ConfigError(
                f"ActionHead: kind {self.kind!r} with sizes {self.sizes!r:.60}, expected positive sizes (exactly one "
                "unless multi_categorical, equal ones for multi_q_values, of mixed a 0 for each number and at least "
                "one choice); use head_for_space"
            )

    def has_right_sizes(self) -> bool:
        """Return whether such a head may have the sizes, of which there is at least one."""
        return len(self.sizes) == 1 and self.sizes[0] > 0

    @classmethod
    def for_space(cls, space: gym.Space[Any]) -> ActionHead | None:
        """Return the head for the actions of a flat space, None if they are of another kind."""
        return None

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each discrete component; () for continuous actions."""
        return self.sizes

    @property
    def numbers(self) -> int:
        """k, the continuous dimensions of an action."""
        return 0

    @property
    def members(self) -> int:
        """Number of agents of a group that one row acts for; 0 for a single agent."""
        return 0

    @cached_property
    def inputs(self) -> int:
        """D, the number of distribution inputs a row."""
        return sum(self.choices) + 2 * self.numbers

    @cached_property
    def outputs(self) -> int:
        """Outputs of the last layer per row: D without weights that `completed` appends."""
        return self.inputs

    @cached_property
    def normal(self) -> npt.NDArray[np.bool_]:
        """[noise_width] True where noise is standard normal; elsewhere it is uniform in steps of 2**-23."""
        return np.full(self.noise_width, self.numbers > 0)

    @property
    def draw(self) -> rng.Draw:
        """The counter-based generator of noise rows."""
        if self.choices and self.numbers:
            return partial(rng.mixed, normal=self.normal)
        return rng.normals if self.numbers else rng.uniforms

    def sample_noise(self, rng: np.random.Generator, rows: int) -> Floats:
        """Return [rows, noise_width] noise from a generator, for tests of graphs."""
        shape = (rows, self.noise_width)
        uniform = rng.integers(0, 1 << 23, shape) * 2.0**-23 if self.choices else 0.0
        normal = rng.standard_normal(shape) if self.numbers else 0.0
        return np.where(self.normal, normal, uniform).astype(np.float32)

    @property
    def noise_width(self) -> int:
        """Random numbers per row."""
        return len(self.sizes)

    @cached_property
    def mask_width(self) -> int:
        """Flags a row of an action mask; 0 if actions of this kind cannot be masked."""
        return sum(self.choices)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one row's action: () of a single choice, (k,) of numbers, (components,) of several columns."""
        return (len(self.sizes),)

    @cached_property
    def action_dtype(self) -> np.dtype[Any]:
        """int64 for choices, float32 for continuous and mixed actions."""
        return np.dtype(np.float32 if self.numbers else np.int64)

    def empty_actions(self, rows: int) -> npt.NDArray[Any]:
        """Return an uninitialised array for the actions of `rows` rows."""
        return np.empty((rows, *self.action_shape), self.action_dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the head as a JSON value."""
        return {"kind": self.kind, "sizes": list(self.sizes)}

    @property
    def weights(self) -> dict[str, Floats]:
        """First values of the weights outside of layers, by name."""
        return {}

    def logp(self, dist_inputs: Floats, actions: npt.NDArray[Any]) -> Floats:
        """Return the [N] log-probabilities (densities) of actions, for inputs [N, D]."""
        raise NotImplementedError

    def completed(self, outputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Return distribution inputs [N, D]: the outputs of a network, and weights that are equal in all rows."""
        return outputs

    def standard(self, dist_inputs: Tensor) -> Tensor:
        """Return the form of distribution inputs [N, D] that the other methods take: log-probabilities of choices."""
        return dist_inputs

    def log_prob(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """Return the [N] log-probability (density, of continuous actions) of each row's action."""
        raise NotImplementedError

    def entropy(self, inputs: Tensor) -> Tensor:
        """Return the [N] entropy in nats; components are independent, so theirs add up."""
        raise NotImplementedError

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return the [N] divergence KL(old || new) in nats."""
        raise NotImplementedError

    def chosen(
        self, dist_inputs: Tensor, noise: Tensor | None, mask: Tensor | None, weights: Mapping[str, Tensor]
    ) -> Tensor:
        """Return actions [N, *action_shape], the most likely ones without noise."""
        raise NotImplementedError

    def acting_logp(
        self, dist_inputs: Tensor, actions: Tensor, mask: Tensor | None, weights: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the [N] log-probability of `chosen`."""
        return self.log_prob(self.standard(dist_inputs), actions)

    def nodes(self, graph: Graph) -> HeadNodes:
        """Return what adds the head to an acting graph."""
        raise NotImplementedError

    def client_inputs(self, graph: Builder, found: str, weights: Mapping[str, Floats], mask: str) -> str:
        """Return logits, or means and log standard deviations, of a graph's distribution inputs.

        `mask` is the name of the mask [N, M], "" without one.
        """
        return found

    def action_columns(self, actions: Tensor) -> Tensor:
        """Return actions [N, ...] as [columns, N], as `gradients` reads them: choices as indices of outputs."""
        return actions.reshape(len(actions), -1).t().contiguous()

    def gradients(
        self, rows: PolicyRows, outputs: Tensor, log_std: Tensor | None, coeffs: Coefficients, report: bool
    ) -> PolicyGradients:
        """Return the gradients of the policy's part of `menv.algorithms.ppo.loss.ppo_loss`, without autograd.

        outputs [D, B] come from the policy network before masking, and may be overwritten.
        """
        raise NotImplementedError


class Coefficients(Protocol):
    """The weights of the loss's terms."""

    @property
    def entropy_coeff(self) -> float: ...
    @property
    def kl_coeff(self) -> float: ...
    @property
    def magnet_coeff(self) -> float: ...


class PolicyRows(NamedTuple):
    """A minibatch of B rows in columns, because sums over a few choices are faster down a column.

    Attributes:
        forbidden: [D, B] choices that the mask forbids, or None.
        actions: [columns, B] of `action_columns`.
        old_logp: [B].
        losses: [B] -A_t.
        least: [B] bounds between which log r_t is not clipped.
        most: [B].
        old_inputs: [D, B] standard.
        magnet: [D, B] inputs of the magnet, None without one.
    """

    forbidden: Tensor | None
    actions: Tensor
    old_logp: Tensor
    losses: Tensor
    least: Tensor
    most: Tensor
    old_inputs: Tensor
    magnet: Tensor | None = None

    def surrogate(self, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's loss [B], -r_t A_t, and its gradient for the log-probability, 0 where it is clipped."""
        clipped = log_ratio.clamp(self.least, self.most)
        within = clipped == log_ratio
        losses = clipped.exp_().mul_(self.losses)
        return losses, losses.where(within, 0.0)


PolicyGradients: TypeAlias = "tuple[Tensor, Tensor | None, tuple[Tensor, ...]]"
"""Gradients of the policy's part of the loss: for its outputs [D, B], for log_std [k] (None for discrete actions), and
policy_loss, entropy, kl and, with a magnet, magnet_kl if they are reported, else ()."""


class Builder(Protocol):
    """What heads call of `GraphBuilder`, see there."""

    def add(self, op: str, *operands: str, **attributes: Any) -> str: ...
    def cast(self, x: str, dtype: npt.DTypeLike) -> str: ...
    def constant(self, value: Any, dtype: Any = ...) -> str: ...


class Graph(Builder, Protocol):
    """What heads call of `ActingGraph`, see there."""

    @property
    def stacked(self) -> bool: ...
    @property
    def own_deviations(self) -> bool: ...
    def given(self, name: str, dtype: npt.DTypeLike, shape: Sequence[str | int]) -> str: ...
    def of_each_row(self, name: str, shape: tuple[int, ...]) -> str: ...
    def row_sum(self, x: str, width: int) -> str: ...


class HeadNodes(ABC):
    """The nodes behind the outputs of a network; call `dist_inputs` first."""

    def __init__(self, graph: Graph, head: ActionHead) -> None:
        self.graph, self.head = graph, head

    @abstractmethod
    def dist_inputs(self, outputs: str, masked: bool) -> str:
        """Return the distribution inputs; `masked` adds the input "mask"."""

    @abstractmethod
    def sample(self, draws: str) -> str:
        """Return actions by noise."""

    @abstractmethod
    def mode(self) -> str:
        """Return the most likely actions."""

    @abstractmethod
    def logp(self, actions: str) -> str:
        """Return the log-probabilities of actions."""

    def columns(self, x: str, places: npt.ArrayLike) -> str:
        """Return some columns of rows."""
        return self.graph.add("Gather", x, self.graph.constant(places), axis=1)

    def legal(self, x: str, mask: str) -> str:
        """Return outputs of choices, a very low one where the mask forbids it."""
        return self.graph.add("Where", mask, x, self.graph.constant(ILLEGAL, np.float32))

    def highest(self, x: str) -> str:
        """Return the index of the first highest number in the last axis."""
        return self.graph.add("ArgMax", x, axis=-1, keepdims=0)

    def drawn(self, weights: str, draws: str, count: int, axis: int = 1) -> str:
        """Return the first of `count` choices whose cumulated weight exceeds the draw's share of the sum.

        The draw is scaled by the sum as computed, which keeps it below the last step, so that rounding can never pick a
        choice of weight 0.
        """
        graph = self.graph
        steps = graph.add("CumSum", weights, graph.constant(axis))
        total = graph.add("Gather", steps, graph.constant([count - 1]), axis=axis)
        beyond = graph.add("Greater", steps, graph.add("Mul", draws, total))
        return self.highest(graph.cast(beyond, np.uint8))

    def squeezed(self, x: str) -> str:
        """Return the one column of rows."""
        return self.graph.add("Squeeze", x, self.graph.constant([-1]))


def cat(parts: Sequence[Tensor], axis: int = -1) -> Tensor:
    """Return tensors side by side."""
    # Processes that only act have no torch.
    import torch

    return torch.cat(list(parts), axis)


def masked(inputs: Tensor, mask: Tensor | None) -> Tensor:
    """Return distribution inputs [N, D] without the choices that mask [N, M] forbids; numbers follow the choices."""
    if mask is None:
        return inputs
    choices = mask.shape[1]
    if choices == inputs.shape[1]:
        return inputs.where(mask, ILLEGAL)
    return cat((inputs[:, :choices].where(mask, ILLEGAL), inputs[:, choices:]))


def in_a_line(space: gym.Space[Any]) -> str:
    """Return a short one-line description of a space."""
    return " ".join(str(space).split())[:_LONGEST]
