"""ActionHead: the meaning of a policy network's outputs: how D numbers per row become an action.

Network builders, acting back-ends and losses all read the same head. Its discrete actions count from 0 and its
continuous ones are flat float32 rows; connectors apply `start` offsets, bounds and shapes of the environment's space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import rng
from menv.errors import ConfigError

Kind: TypeAlias = Literal[
    "categorical", "multi_categorical", "gaussian", "mixed", "q_values", "multi_q_values"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

ILLEGAL = -1e9
"""The distribution input of a masked action: finite, so KL terms stay finite, with probability exactly 0 in float32."""

LEAST_CHANCE = 1e-30
"""Stands for probability 0 of an epsilon-greedy choice in logarithms, which stay finite."""

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)

_LONGEST = 120


class ActionPart(NamedTuple):
    """The choices of a mixed action, or its numbers: their head, their columns [n] in actions and in the inputs."""

    head: ActionHead
    columns: npt.NDArray[np.int64]
    inputs: slice


@dataclass(frozen=True)
class ActionHead:
    """How a row of D distribution inputs becomes an action.

    Attributes:
        kind: "categorical" and "multi_categorical" hold logits; "gaussian" means, then log standard deviations;
            "mixed" the logits of all choices, then means and log standard deviations of all numbers; "q_values"
            the Q-values of an epsilon-greedy choice (epsilon is a weight of the network); "multi_q_values" the
            same for several components, which explore independently.
        sizes: Number of choices of each component, the same for all of "multi_q_values"; for "gaussian" the
            one number k of dimensions; for "mixed" one size for each column of an action, 0 for a number.
    """

    kind: Kind
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not self.sizes or not self._right_sizes():
            raise ConfigError(
                f"ActionHead: kind {self.kind!r:.60} with sizes {self.sizes!r:.60}, expected one of {KINDS} and "
                "positive sizes (exactly one unless multi_categorical, equal ones for multi_q_values, of mixed a 0 for "
                "each number and at least one choice); use ActionHead.for_space"
            )

    def _right_sizes(self) -> bool:
        if self.kind == "mixed":
            return min(self.sizes) == 0 < max(self.sizes)
        if self.kind == "multi_q_values":
            return min(self.sizes) > 0 and len(set(self.sizes)) == 1
        return min(self.sizes) > 0 and (self.kind == "multi_categorical" or len(self.sizes) == 1)

    @classmethod
    def for_space(cls, space: gym.Space[Any]) -> ActionHead:
        """Return the head for the actions of `space`; ConfigError if there is none."""
        spaces = gym.spaces
        if isinstance(space, spaces.Discrete):
            return cls("categorical", (int(space.n),))
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return cls("multi_categorical", tuple(int(n) for n in space.nvec))
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and np.prod(space.shape):
            return cls("gaussian", (int(np.prod(space.shape)),))
        if isinstance(space, spaces.Tuple):
            # The flat space of choices and numbers, one leaf after the other.
            sizes: list[int] = []
            for leaf in space.spaces:
                count = leaf.n if isinstance(leaf, spaces.Discrete) else getattr(leaf, "nvec", 0)
                sizes += np.broadcast_to(count, leaf.shape or ()).reshape(-1).tolist()
            if min(sizes, default=1) == 0 < max(sizes):
                return cls("mixed", tuple(sizes))
        raise ConfigError(
            f"action space: {in_a_line(space)}, expected Discrete, MultiDiscrete with a 1-D nvec, a float Box, or a "
            "Tuple or Dict of these; wrap the environment"
        )

    @cached_property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each discrete component; () for continuous actions."""
        return () if self.kind == "gaussian" else tuple(size for size in self.sizes if size)

    @cached_property
    def numbers(self) -> int:
        """k, the continuous dimensions of an action."""
        return self.sizes[0] if self.kind == "gaussian" else self.sizes.count(0)

    @cached_property
    def parts(self) -> tuple[ActionPart, ...]:
        """The choices and the numbers of a "mixed" head, in this order; () for any other."""
        if self.kind != "mixed":
            return ()
        sizes, cut = np.array(self.sizes), sum(self.sizes)
        return (
            ActionPart(ActionHead("multi_categorical", self.choices), np.flatnonzero(sizes), slice(0, cut)),
            ActionPart(
                ActionHead("gaussian", (self.numbers,)), np.flatnonzero(sizes == 0), slice(cut, self.inputs)
            ),
        )

    @cached_property
    def inputs(self) -> int:
        """D, the number of distribution inputs a row."""
        return sum(self.choices) + 2 * self.numbers

    @cached_property
    def outputs(self) -> int:
        """Outputs of the last layer per row: D without the k log_stds, which are a free vector."""
        return sum(self.choices) + self.numbers

    @cached_property
    def is_value_based(self) -> bool:
        """Whether the inputs are Q-values, so only epsilon makes actions random."""
        return self.kind in ("q_values", "multi_q_values")

    @cached_property
    def returns_dist_inputs(self) -> bool:
        """Whether acting also returns the distribution inputs: logits cost nothing extra."""
        return self.kind in ("categorical", "multi_categorical", "mixed")

    @cached_property
    def noise(self) -> Literal["uniform", "normal", "mixed"]:
        """Kind of noise rows: uniform on [0, 1) in steps of 2**-23, standard normal, or both, see `normal`."""
        if self.kind == "mixed":
            return "mixed"
        return "normal" if self.kind == "gaussian" else "uniform"

    @cached_property
    def normal(self) -> npt.NDArray[np.bool_]:
        """[noise_width] True where noise is standard normal; elsewhere it is uniform."""
        if self.kind == "mixed":
            return np.equal(self.sizes, 0)
        return np.full(self.noise_width, self.kind == "gaussian")

    @property
    def draw(self) -> rng.Draw:
        """The counter-based generator of noise rows."""
        if self.kind == "mixed":
            return partial(rng.mixed, normal=self.normal)
        return rng.normals if self.kind == "gaussian" else rng.uniforms

    def sample_noise(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.float32]:
        """Return [rows, noise_width] noise from a generator, for tests of graphs."""
        shape = (rows, self.noise_width)
        uniform = rng.integers(0, 1 << 23, shape) * 2.0**-23 if self.choices else 0.0
        normal = rng.standard_normal(shape) if self.numbers else 0.0
        return np.where(self.normal, normal, uniform).astype(np.float32)

    @cached_property
    def noise_width(self) -> int:
        """Random numbers per row: one per component; for Q-values one for whether to explore, one for the choice."""
        if self.is_value_based:
            return 2 * len(self.sizes)
        return self.sizes[0] if self.kind == "gaussian" else len(self.sizes)

    @cached_property
    def mask_width(self) -> int:
        """Flags a row of an action mask; 0 if actions of this kind cannot be masked."""
        return sum(self.choices)

    @cached_property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one row's action: (), (components,) or (k,), or (components + k,) of both."""
        if self.kind == "gaussian":
            return self.sizes
        return () if self.kind in ("categorical", "q_values") else (len(self.sizes),)

    @cached_property
    def action_dtype(self) -> np.dtype[Any]:
        """int64 for choices, float32 for continuous and mixed actions."""
        return np.dtype(np.float32 if self.numbers else np.int64)

    def logp(
        self, dist_inputs: npt.NDArray[np.float32], actions: npt.NDArray[Any]
    ) -> npt.NDArray[np.float32]:
        """Return the [N] log-probabilities (densities) of actions, for inputs [N, D]; not for Q-values."""
        found: npt.NDArray[np.float32]
        if self.parts:
            columns = [
                (part.head, dist_inputs[:, part.inputs], actions[:, part.columns]) for part in self.parts
            ]
            choices, numbers = (
                head.logp(own, taken.astype(head.action_dtype)) for head, own, taken in columns
            )
            found = choices + numbers
            return found
        if self.kind == "gaussian":
            means, log_stds = np.split(dist_inputs, 2, 1)
            scaled = (actions - means) * np.exp(-log_stds)
            found = -0.5 * scaled * scaled - log_stds - _HALF_LOG_TWO_PI
            return np.add.reduce(found, axis=1).astype(np.float32)  # type: ignore[no-any-return]
        if self.sizes == (2,) and actions.ndim == 1:
            # log sigmoid: numpy is slow on many rows of two.
            lead = dist_inputs[:, 0] - dist_inputs[:, 1]
            # Indexing the rows with the other action would take twice as long.
            lead *= (1 - 2 * actions).astype(np.float32)
            found = np.minimum(lead, 0) - np.log1p(np.exp(-np.abs(lead)))
            return found
        total = np.zeros(len(dist_inputs), np.float32)
        rows, start = np.arange(len(dist_inputs)), 0
        chosen = actions if actions.ndim == 2 else actions[:, None]
        for column, size in enumerate(self.sizes):
            logits = dist_inputs[:, start : start + size]
            highest = np.maximum.reduce(logits, axis=1)
            spread = np.add.reduce(np.exp(logits - highest[:, None]), axis=1)
            total += logits[rows, chosen[:, column]] - highest - np.log(spread)
            start += size
        return total

    def empty_actions(self, rows: int) -> npt.NDArray[Any]:
        """Return an uninitialised array for the actions of `rows` rows."""
        return np.empty((rows, *self.action_shape), self.action_dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the head as a JSON value."""
        return {"kind": self.kind, "sizes": list(self.sizes)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ActionHead:
        """Return the head that `to_json` described."""
        try:
            return cls(value["kind"], tuple(int(size) for size in value["sizes"]))
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"ActionHead.from_json: {type(error).__name__} {error!s:.60}, expected 'kind' and a list 'sizes'; "
                "pass what to_json returned"
            ) from error


def in_a_line(space: gym.Space[Any]) -> str:
    """Return a short one-line description of a space."""
    return " ".join(str(space).split())[:_LONGEST]
