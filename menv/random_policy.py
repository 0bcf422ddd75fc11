"""RandomPolicy: uniform actions of any space; legal ones only where observations carry a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.drawing_policy import DrawingPolicy
from menv.errors import ConfigError
from menv.nested import flags_of, flat_mask
from menv.policy import RowDraws

MASK_KEY = "action_mask"


class RandomPolicy(DrawingPolicy):
    """Draws from the action space; never learns.

    A bounded Box is drawn from uniformly, an unbounded dimension from a standard normal. With an
    `"action_mask"` in the observations, or in those of a group's members, every allowed choice is
    equally likely. Without a sampler `config["seed"]` decides, as for each `DrawingPolicy`.
    """

    def answer(
        self, obs_batch: Sequence[Any], row_draws: RowDraws, explore: bool | None, episodes: Sequence[Any]
    ) -> Sequence[Any]:
        """Return R random actions that depend on `row_draws` alone."""
        if type(self).compute_actions is not RandomPolicy.compute_actions:
            # A subclass that decides for itself in the classic way.
            return super().answer(obs_batch, row_draws, explore, episodes)
        mask = _masks(self.observation_space, self.action_space, obs_batch)
        uniforms = row_draws.uniforms(_width(self.action_space)).astype(np.float64)
        return _draw(self.action_space, uniforms, mask)


def _masks(space: gym.Space[Any], action_space: gym.Space[Any], obs_batch: Sequence[Any]) -> Any:
    """Return [R, M] flags, a list with those of each member of a group, or None where there are none."""
    if isinstance(space, gym.spaces.Dict) and MASK_KEY in space.spaces:
        return np.stack([flat_mask(obs[MASK_KEY], action_space) for obs in obs_batch]) != 0
    if not isinstance(space, gym.spaces.Tuple) or not isinstance(action_space, gym.spaces.Tuple):
        return None
    if len(space.spaces) != len(action_space.spaces):
        return None
    pairs = zip(space.spaces, action_space.spaces, strict=True)
    return [_masks(own, actions, [obs[i] for obs in obs_batch]) for i, (own, actions) in enumerate(pairs)]


def _masks_of_parts(parts: Sequence[gym.Space[Any]], mask: Any) -> Sequence[Any]:
    if mask is None:
        return [None] * len(parts)
    ends = np.cumsum([flags_of(part) for part in parts])
    return mask if isinstance(mask, list) else np.split(mask, ends[:-1], axis=1)


def _width(space: gym.Space[Any]) -> int:
    """Return how many uniforms one element of `space` takes."""
    if isinstance(space, gym.spaces.Discrete):
        return 1
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return sum(_width(part) for part in _parts(space))
    if isinstance(space, gym.spaces.Box):
        return 2 * int(np.prod(space.shape))
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return int(np.prod(space.shape))
    raise ConfigError(
        f"RandomPolicy: cannot draw from {type(space).__name__}, expected Box, Discrete, MultiDiscrete, MultiBinary, "
        "Dict or Tuple; name a Policy subclass of your own"
    )


def _parts(space: gym.spaces.Dict | gym.spaces.Tuple[Any]) -> list[gym.Space[Any]]:
    return list(space.spaces.values()) if isinstance(space, gym.spaces.Dict) else list(space.spaces)


def _draw(space: gym.Space[Any], uniforms: npt.NDArray[np.float64], mask: Any = None) -> list[Any]:
    """Return R elements from [R, width] uniforms."""
    if isinstance(space, gym.spaces.Discrete):
        allowed = np.ones((len(uniforms), int(space.n)), np.bool_) if mask is None else mask
        return list((_pick(allowed, uniforms[:, 0]) + space.start).astype(space.dtype, copy=False))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return _draw_multi_discrete(space, uniforms, mask)
    if isinstance(space, gym.spaces.MultiBinary):
        return list((uniforms >= 0.5).astype(space.dtype).reshape(-1, *space.shape))
    if isinstance(space, gym.spaces.Box):
        return _draw_box(space, uniforms)
    assert isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)
    parts = _parts(space)
    cuts = np.cumsum([_width(part) for part in parts])[:-1]
    pieces = zip(parts, np.split(uniforms, cuts, axis=1), _masks_of_parts(parts, mask), strict=True)
    drawn = [_draw(part, own, flags) for part, own, flags in pieces]
    rows = zip(*drawn, strict=True)
    return (
        [dict(zip(space.spaces, row, strict=True)) for row in rows]
        if isinstance(space, gym.spaces.Dict)
        else list(rows)
    )


def _pick(allowed: npt.NDArray[np.bool_], uniforms: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the index of one allowed entry per row, each equally likely."""
    counts = allowed.cumsum(axis=1)
    wanted = np.floor(uniforms * counts[:, -1]) + 1
    picked: npt.NDArray[np.int64] = np.argmax(counts >= wanted[:, None], axis=1)
    return picked


def _draw_multi_discrete(
    space: gym.spaces.MultiDiscrete, uniforms: npt.NDArray[np.float64], mask: Any
) -> list[Any]:
    sizes = space.nvec.reshape(-1)
    cuts = np.cumsum(sizes)[:-1]
    masks = [None] * len(sizes) if mask is None else np.split(mask, cuts, axis=1)
    columns = [
        _pick(np.ones((len(uniforms), int(size)), np.bool_) if part is None else part, uniforms[:, index])
        for index, (size, part) in enumerate(zip(sizes, masks, strict=True))
    ]
    digits = np.stack(columns, axis=1) + space.start.reshape(-1)
    return list(digits.astype(space.dtype).reshape(-1, *space.shape))


def _draw_box(space: gym.spaces.Box, uniforms: npt.NDArray[np.float64]) -> list[Any]:
    first, second = np.split(uniforms, 2, axis=1)
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    below, above = np.isfinite(low), np.isfinite(high)
    width = np.where(below & above, high - low, 1.0)
    if np.issubdtype(space.dtype, np.integer):
        values = np.where(below, low, 0.0) + np.floor(first * (width + 1.0))
        return list(values.astype(space.dtype).reshape(-1, *space.shape))
    normal = np.sqrt(-2.0 * np.log(1.0 - first)) * np.cos(2.0 * np.pi * second)
    tail = -np.log(1.0 - first)
    values = np.where(below & above, np.where(below, low, 0.0) + first * width, normal)
    values = np.where(below & ~above, np.where(below, low, 0.0) + tail, values)
    values = np.where(above & ~below, np.where(above, high, 0.0) - tail, values)
    # A Box without dimensions holds 0-d arrays, and iterating over a row would give scalars.
    return [np.asarray(row) for row in values.astype(space.dtype).reshape(-1, *space.shape)]
