"""Flat rows back in the form of their observation space, for modules that a user wrote.

It undoes what `ObsPreprocessor` does, except that what it made one-hot stays so. Rows may be arrays or tensors.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.connectors.obs_preprocessor import MASK_KEY, Leaf, ObsPreprocessor
from menv.nested import Keys, built


class ObsStructure:
    """The form of the observations of one space, action masks left out.

    Args:
        space: The observation space.

    Attributes:
        size: F, numbers in a row.
        space: The space without its masks.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        preprocessor = ObsPreprocessor(space)
        masks = {leaf.keys for leaf in preprocessor.mask_leaves}
        self.size = preprocessor.size
        self.space = _without(space, masks, ())
        self._leaves = {leaf.keys: leaf for leaf in preprocessor.leaves}

    def __call__(self, rows: Any) -> Any:
        """Return rows [B, F] as [B, ...], or as dicts and tuples of such."""

        def part(keys: Keys, _: gym.Space[Any]) -> Any:
            leaf = self._leaves[keys]
            return rows[:, leaf.start : leaf.start + leaf.width].reshape(-1, *_shape(leaf))

        return built(self.space, part)


def _shape(leaf: Leaf) -> tuple[int, ...]:
    if isinstance(leaf.space, gym.spaces.Box | gym.spaces.MultiBinary):
        return tuple(leaf.space.shape)
    return (leaf.width,)


def _without(space: gym.Space[Any], masks: set[tuple[Any, ...]], keys: tuple[Any, ...]) -> gym.Space[Any]:
    if isinstance(space, gym.spaces.Dict):
        parts = {
            name: _without(part, masks, (*keys, name))
            for name, part in space.spaces.items()
            if name != MASK_KEY or (*keys, name) not in masks
        }
        return gym.spaces.Dict(parts)
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple(
            [_without(part, masks, (*keys, index)) for index, part in enumerate(space.spaces)]
        )
    return space
