"""Tuple and Dict action spaces as one flat space, and flat actions as their elements.

A network answers with one row of choices, or one of numbers; `menv.connectors.action_output` gives the
environment the nested form. Grouped agents have such spaces. Nothing here knows networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError

Array = npt.NDArray[Any]
Space = gym.Space[Any]
Build = Callable[[Sequence[Any]], Any]


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


def leaves(space: Space) -> list[Any]:
    """Return the spaces in a nested space that are not nested themselves, in order."""
    if isinstance(space, gym.spaces.Tuple):
        return [leaf for part in space.spaces for leaf in leaves(part)]
    if isinstance(space, gym.spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in leaves(part)]
    return [space]


def component_sizes(space: Space | None) -> Array:
    """Return how many choices each component of an action of `space` has; [0] of an action that is no choice."""
    parts = [] if space is None else leaves(space)
    if not all(isinstance(part, gym.spaces.Discrete | gym.spaces.MultiDiscrete) for part in parts):
        return np.zeros(0, np.int64)
    return np.concatenate([np.zeros(0, np.int64), *map(_sizes, parts)])


def nested_actions(space: Space, rows: Array) -> list[Any]:
    """Return R elements of `space`, a Tuple or Dict.

    Args:
        space: As it was given to `flat_action_space`.
        rows: [R, K] elements of the flat space; the arrays of the answers are views of it.
    """
    columns: list[Any] = []
    start = 0
    for part in leaves(space):
        width = 1 if isinstance(part, gym.spaces.Discrete) else int(np.prod(part.shape))
        block = rows[:, start : start + width]
        if isinstance(part, gym.spaces.Discrete):
            columns.append(list(block[:, 0].astype(part.dtype, copy=False)))
        else:
            values = block.astype(part.dtype, copy=False).reshape(len(rows), *part.shape)
            # gymnasium takes an array of no axes for an element of such a Box, and not a scalar.
            columns.append(list(values) if part.shape else [np.asarray(value) for value in values])
        start += width
    build = _builder(space)
    return [build(parts) for parts in zip(*columns, strict=True)]


def flat_actions(space: Space, actions: Sequence[Any] | Array) -> Array:
    """Return the [R, K] elements of the flat space for R elements of `space`, a Tuple or Dict."""
    rows = []
    for part, column in zip(leaves(space), _leaf_columns(space, actions), strict=True):
        dtype = np.float64 if isinstance(part, gym.spaces.Box) else np.int64
        rows.append(np.asarray(column, dtype).reshape(len(actions), -1))
    return np.concatenate(rows, 1)


def _leaf_columns(space: Space, values: Sequence[Any] | Array) -> list[list[Any]]:
    """Return R values of each leaf, in order, of R elements."""
    if isinstance(space, gym.spaces.Tuple):
        parts: Sequence[tuple[Any, Space]] = list(enumerate(space.spaces))
    elif isinstance(space, gym.spaces.Dict):
        parts = list(space.spaces.items())
    else:
        return [list(values)]
    return [column for key, part in parts for column in _leaf_columns(part, [value[key] for value in values])]


def _sizes(space: Any) -> Array:
    if isinstance(space, gym.spaces.Discrete):
        return np.array([space.n], np.int64)
    return np.asarray(space.nvec, np.int64).reshape(-1)


def _builder(space: Space) -> Build:
    """Return a function of the leaves, in order, that makes one element."""
    if isinstance(space, gym.spaces.Tuple):
        return _container([(None, part) for part in space.spaces])
    if isinstance(space, gym.spaces.Dict):
        return _container(list(space.spaces.items()))
    return lambda parts: parts[0]


def _container(parts: list[tuple[Any, Space]]) -> Build:
    """Return a function that makes a tuple, or a dict where the parts have keys."""
    counts = [len(leaves(part)) for _, part in parts]
    starts = np.cumsum([0, *counts]).tolist()
    builders = [
        (key, _builder(part), start, start + count)
        for (key, part), start, count in zip(parts, starts, counts, strict=False)
    ]
    if parts and parts[0][0] is not None:
        return lambda values: {key: build(values[a:b]) for key, build, a, b in builders}
    return lambda values: tuple(build(values[a:b]) for _, build, a, b in builders)
