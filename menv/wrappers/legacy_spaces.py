"""Spaces of the old `gym` package as gymnasium spaces, recognised by their attributes.

`menv.wrappers.legacy_gym` calls it. The old package is neither imported nor needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from menv.errors import ConfigError


def to_gymnasium(space: Any, where: str = "space") -> gym.Space[Any]:
    """Return the gymnasium space that has the same elements as `space`.

    Args:
        space: A space of the old gym (any version) or of gymnasium: Box, Discrete, MultiDiscrete,
            MultiBinary, a Dict or Tuple of these, or a list.
        where: Begins the message if it is something else.

    Raises:
        ConfigError: It is no such space.
    """
    if isinstance(space, gym.Space):
        return space
    # Some of many agents have a list of one for each.
    parts = space if isinstance(space, list | tuple) else getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return gym.spaces.Dict({key: to_gymnasium(part, f"{where}[{key!r}]") for key, part in parts.items()})
    if isinstance(parts, tuple | list):
        return gym.spaces.Tuple([to_gymnasium(part, f"{where}[{i}]") for i, part in enumerate(parts)])
    if hasattr(space, "low") and hasattr(space, "high"):
        return _box(space)
    if hasattr(space, "nvec"):
        return gym.spaces.MultiDiscrete(np.array(space.nvec, np.int64))
    if hasattr(space, "n"):
        # Both kinds count with n; early versions gave neither of them a shape.
        if getattr(space, "shape", None) or type(space).__name__ == "MultiBinary":
            return gym.spaces.MultiBinary(space.n)
        return gym.spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    raise ConfigError(
        f"LegacyGym: the {where} is {type(space).__name__}, expected Box, Discrete, MultiDiscrete, MultiBinary, Dict "
        "or Tuple of the old gym or of gymnasium; set observation_space and action_space in the environment's __init__"
    )


def _box(space: Any) -> gym.spaces.Box:
    dtype: Any = np.dtype(getattr(space, "dtype", None) or np.float32)
    # Bounds of a wider type than the elements are usual in old environments, and overflow to infinity.
    with np.errstate(over="ignore"):
        low, high = np.asarray(space.low).astype(dtype), np.asarray(space.high).astype(dtype)
    return gym.spaces.Box(low, high, dtype=dtype)
