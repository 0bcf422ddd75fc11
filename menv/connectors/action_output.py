"""What a network answers to what an environment expects: scale, clip, shift, shape.

In this order: NormalizeActions ([-1, 1] to the bounds of a Box), ClipActions (into the bounds),
then the environment's own form. `menv.loop.cohort` calls it on whole batches; the batch that is
learned from keeps the network's own actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.connectors.flat_actions import flat_action_space, nested_actions
from menv.errors import ConfigError

Array = npt.NDArray[Any]


class ActionOutput:
    """Turns [R, ...] network actions into R elements of the action space.

    Discrete actions come out as an array of numpy integers, as `space.sample()` gives them (gymnasium's
    own checks take longer over a Python int), the others as read-only arrays.
    """

    def __init__(self, space: gym.Space[Any], *, normalize: bool = True, clip: bool = False) -> None:
        """Choose the steps for `space`.

        Args:
            space: Discrete, MultiDiscrete, a float Box, or a Tuple or Dict of discrete or of Box spaces.
            normalize: Read bounded Box dimensions of an action as [-1, 1] and scale them to the bounds.
            clip: Clip Box actions into the bounds. With `normalize` they are clipped anyhow.
        """
        self.normalize, self.clip = normalize, clip
        self.nested = space if isinstance(space, gym.spaces.Tuple | gym.spaces.Dict) else None
        space = flat_action_space(space)
        if not isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.Box):
            raise ConfigError(
                f"action space: {type(space).__name__}, expected Discrete, MultiDiscrete, Box, or a Tuple or Dict of "
                "these; wrap the environment so that its actions are one of these"
            )
        self.space = space
        self._start = int(space.start) if isinstance(space, gym.spaces.Discrete) else 0
        if isinstance(space, gym.spaces.Box):
            self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)
            finite = np.isfinite(self._low) & np.isfinite(self._high)
            self._scaled = finite if normalize else np.zeros_like(finite)
            self._half = np.where(self._scaled, (self._high - np.where(finite, self._low, 0)) / 2, 1).astype(
                np.float32
            )
            self._centre = np.where(self._scaled, np.where(finite, self._low, 0) + self._half, 0).astype(
                np.float32
            )
            # A bound on one side cannot be scaled to, but it is still a bound.
            self._least = self._low if normalize or clip else np.full_like(self._low, -np.inf)
            self._most = self._high if normalize or clip else np.full_like(self._high, np.inf)

    @property
    def scaling(self) -> tuple[Array, Array, Array, Array]:
        """Of a Box: what each flat number is multiplied by, what is added then, the least and the most."""
        return self._half, self._centre, self._least, self._most

    def __call__(self, actions: Array) -> Sequence[Any] | Array:
        """Return R env-ready actions."""
        if isinstance(self.space, gym.spaces.Discrete):
            return actions + self._start if self._start else actions
        if isinstance(self.space, gym.spaces.Box):
            scaled = actions * self._half + self._centre
            out = np.minimum(np.maximum(scaled, self._least), self._most).reshape(-1, *self.space.shape)
        else:
            out = (actions + self.space.start).astype(self.space.dtype, copy=False)
        out.flags.writeable = False
        if self.nested is not None:
            return nested_actions(self.nested, out)
        return out if out.ndim > 1 else [np.asarray(row) for row in out]
