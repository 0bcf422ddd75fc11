"""Tuple and Dict action spaces as one flat space, and flat actions as their elements.

A network answers with one row of choices, of numbers, or of both, one part after the other;
`menv.connectors.action_output` gives the environment the nested form. Grouped agents have such spaces. Nothing here
knows networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError
from menv.nested import builder_of, columns_of, leaves

Array = npt.NDArray[Any]
Space = gym.Space[Any]


def flat_action_space(space: Space) -> Space:
    """Return the space of the rows that a network answers with for actions of `space`.

    A Tuple or Dict, nested as may be, of Discrete and MultiDiscrete spaces is one MultiDiscrete space; one of
    float Box spaces is one Box; one of both is a Tuple of its leaves. Any other space is returned as it is.

    Raises:
        ConfigError: A part is of another kind, or there is none.
    """
    if not isinstance(space, gym.spaces.Tuple | gym.spaces.Dict):
        return space
    parts = leaves(space)
    if parts and all(map(is_discrete, parts)):
        sizes = [_sizes(part) for part in parts]
        starts = [np.atleast_1d(np.asarray(part.start)).reshape(-1) for part in parts]
        return gym.spaces.MultiDiscrete(np.concatenate(sizes), start=np.concatenate(starts))
    numbers = [part for part in parts if isinstance(part, gym.spaces.Box) and part.dtype.kind == "f"]
    if numbers and len(numbers) == len(parts):
        # Bounds of float64 would be other ones after rounding, and actions at them outside the space.
        dtype = np.result_type(np.float32, *[part.dtype for part in parts]).type
        lows, highs = (
            np.concatenate([getattr(part, name).reshape(-1) for part in parts]).astype(dtype)
            for name in ("low", "high")
        )
        return gym.spaces.Box(lows, highs, dtype=dtype)
    if numbers and len(numbers) + sum(map(is_discrete, parts)) == len(parts):
        return gym.spaces.Tuple(parts)
    kinds = sorted({type(part).__name__ for part in parts})
    raise ConfigError(
        f"action space: {type(space).__name__} of {', '.join(kinds) or 'nothing'}, expected parts that are Discrete, "
        "MultiDiscrete or float Box; wrap the environment so that its actions are made of these"
    )


def is_discrete(space: Space) -> bool:
    """Return whether the elements of a leaf are choices."""
    return isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)


def component_sizes(space: Space | None) -> Array:
    """Return how many choices each component of an action of `space` has, Boxes aside; [0] of other actions."""
    parts = [] if space is None else leaves(space)
    if not all(is_discrete(part) or isinstance(part, gym.spaces.Box) for part in parts):
        return np.zeros(0, np.int64)
    return np.concatenate([np.zeros(0, np.int64), *map(_sizes, filter(is_discrete, parts))])


class NestedActions:
    """Elements of a Tuple or Dict space as rows of its flat space, and back; it is pickled as its space.

    Rows of choices and numbers together are floats, so there choices count from 0.

    Args:
        space: As it is given to `flat_action_space`.

    Attributes:
        choices: The columns of rows that are choices.
        numbers: The columns that are numbers.
        mixed: Whether there are both.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._leaves = leaves(space)
        self._widths = [int(np.prod(leaf.shape)) for leaf in self._leaves]
        self._build = builder_of(space)
        chosen = np.repeat(list(map(is_discrete, self._leaves)), self._widths)
        self.choices, self.numbers = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        self.mixed = len(self.choices) > 0 and len(self.numbers) > 0

    def __reduce__(self) -> tuple[type[NestedActions], tuple[Space]]:
        return NestedActions, (self.space,)

    def elements(self, rows: Array) -> list[Any]:
        """Return R elements for [R, K] rows; the arrays in them are views of the rows."""
        columns: list[Any] = []
        start = 0
        for leaf, width in zip(self._leaves, self._widths, strict=True):
            block = rows[:, start : start + width]
            if self.mixed and is_discrete(leaf):
                block = block.astype(np.int64) + np.ravel(leaf.start)
            if isinstance(leaf, gym.spaces.Discrete):
                columns.append(list(block[:, 0].astype(leaf.dtype, copy=False)))
            else:
                values = block.astype(leaf.dtype, copy=False).reshape(len(rows), *leaf.shape)
                values.flags.writeable = False
                # gymnasium takes an array of no axes for an element of such a Box, and not a scalar.
                columns.append(list(values) if leaf.shape else [np.asarray(value) for value in values])
            start += width
        build = self._build
        return [build(parts) for parts in zip(*columns, strict=True)]

    def rows(self, actions: Sequence[Any] | Array) -> Array:
        """Return [R, K] rows for R elements, or raise what numpy raises where there is another."""
        rows = []
        for leaf, column in zip(self._leaves, columns_of(self.space, actions), strict=True):
            if is_discrete(leaf):
                found = np.asarray(column)
                if found.dtype.kind not in "iu":
                    raise TypeError("a choice is an integer")
                found = found.astype(np.int64).reshape(len(actions), -1)
                found = found - np.ravel(leaf.start) if self.mixed else found
            else:
                found = np.asarray(column, np.float64).reshape(len(actions), -1)
            rows.append(found)
        return np.concatenate(rows, 1)


def _sizes(space: Any) -> Array:
    if isinstance(space, gym.spaces.Discrete):
        return np.array([space.n], np.int64)
    return np.asarray(space.nvec, np.int64).reshape(-1)
