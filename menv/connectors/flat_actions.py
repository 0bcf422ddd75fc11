"""Tuple and Dict action spaces as one flat space, and flat actions as their elements.

A network answers with one row of choices, or one of numbers; `menv.connectors.action_output` gives the
environment the nested form. Grouped agents have such spaces. Nothing here knows networks.
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
    float Box spaces is one Box. Any other space is returned as it is.

    Raises:
        ConfigError: The parts are of both kinds, or of another.
    """
    if not isinstance(space, gym.spaces.Tuple | gym.spaces.Dict):
        return space
    parts = leaves(space)
    if parts and all(isinstance(part, gym.spaces.Discrete | gym.spaces.MultiDiscrete) for part in parts):
        sizes = [_sizes(part) for part in parts]
        starts = [np.atleast_1d(np.asarray(part.start)).reshape(-1) for part in parts]
        return gym.spaces.MultiDiscrete(np.concatenate(sizes), start=np.concatenate(starts))
    if parts and all(isinstance(part, gym.spaces.Box) and part.dtype.kind == "f" for part in parts):
        # Bounds of float64 would be other ones after rounding, and actions at them outside the space.
        dtype = np.result_type(np.float32, *[part.dtype for part in parts]).type
        lows, highs = (
            np.concatenate([getattr(part, name).reshape(-1) for part in parts]).astype(dtype)
            for name in ("low", "high")
        )
        return gym.spaces.Box(lows, highs, dtype=dtype)
    kinds = sorted({type(part).__name__ for part in parts})
    raise ConfigError(
        f"action space: {type(space).__name__} of {', '.join(kinds) or 'nothing'}, expected parts that are all "
        "discrete (Discrete, MultiDiscrete) or all float Box; wrap the environment so that they are of one kind"
    )


def component_sizes(space: Space | None) -> Array:
    """Return how many choices each component of an action of `space` has; [0] of an action that is no choice."""
    parts = [] if space is None else leaves(space)
    if not all(isinstance(part, gym.spaces.Discrete | gym.spaces.MultiDiscrete) for part in parts):
        return np.zeros(0, np.int64)
    return np.concatenate([np.zeros(0, np.int64), *map(_sizes, parts)])


class NestedActions:
    """Elements of a Tuple or Dict space as rows of its flat space, and back; it is pickled as its space.

    Args:
        space: As it is given to `flat_action_space`.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._leaves = leaves(space)
        self._widths = [
            1 if isinstance(leaf, gym.spaces.Discrete) else int(np.prod(leaf.shape)) for leaf in self._leaves
        ]
        self._build = builder_of(space)

    def __reduce__(self) -> tuple[type[NestedActions], tuple[Space]]:
        return NestedActions, (self.space,)

    def elements(self, rows: Array) -> list[Any]:
        """Return R elements for [R, K] rows; the arrays in them are views of the rows."""
        columns: list[Any] = []
        start = 0
        for leaf, width in zip(self._leaves, self._widths, strict=True):
            block = rows[:, start : start + width]
            if isinstance(leaf, gym.spaces.Discrete):
                columns.append(list(block[:, 0].astype(leaf.dtype, copy=False)))
            else:
                values = block.astype(leaf.dtype, copy=False).reshape(len(rows), *leaf.shape)
                # gymnasium takes an array of no axes for an element of such a Box, and not a scalar.
                columns.append(list(values) if leaf.shape else [np.asarray(value) for value in values])
            start += width
        build = self._build
        return [build(parts) for parts in zip(*columns, strict=True)]

    def rows(self, actions: Sequence[Any] | Array) -> Array:
        """Return [R, K] rows for R elements."""
        rows = []
        for leaf, column in zip(self._leaves, columns_of(self.space, actions), strict=True):
            dtype = np.float64 if isinstance(leaf, gym.spaces.Box) else np.int64
            rows.append(np.asarray(column, dtype).reshape(len(actions), -1))
        return np.concatenate(rows, 1)


def _sizes(space: Any) -> Array:
    if isinstance(space, gym.spaces.Discrete):
        return np.array([space.n], np.int64)
    return np.asarray(space.nvec, np.int64).reshape(-1)
