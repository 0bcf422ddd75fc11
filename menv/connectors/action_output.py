"""What a network answers to what an environment expects: scale, clip, shift, shape.

In this order: NormalizeActions ([-1, 1] to the bounds of a Box), ClipActions (into the bounds),
then the environment's own form. `menv.loop.net_cohort` calls it on whole batches; the batch that is
learned from keeps the network's own actions. Who learns from actions that somebody else took, in the
environment's form, asks for the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.connectors.flat_actions import NestedActions, flat_action_space
from menv.errors import ConfigError
from menv.spaces import OutsideSpaceError, why_outside

Array = npt.NDArray[Any]

_LEAST_SCALE = 1e-30
"""What a range of no width counts as in logarithms, so that those stay numbers."""
_CHOICE = np.dtype(np.int64)


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
        given, space = space, flat_action_space(space)
        self.nested = NestedActions(given) if isinstance(given, gym.spaces.Tuple | gym.spaces.Dict) else None
        if not isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.Box):
            raise ConfigError(
                f"action space: {type(space).__name__}, expected Discrete, MultiDiscrete, Box, or a Tuple or Dict of "
                "these; wrap the environment so that its actions are one of these"
            )
        self.space = space
        self._start = int(space.start) if isinstance(space, gym.spaces.Discrete) else 0
        # Whether actions are given to the environment as they are.
        self._plain = isinstance(space, gym.spaces.Discrete) and not self._start and space.dtype == _CHOICE
        if not isinstance(space, gym.spaces.Box):
            sizes = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
            self._first = np.asarray(space.start, np.int64).reshape(-1)
            self._behind = self._first + np.asarray(sizes, np.int64).reshape(-1)
        if isinstance(space, gym.spaces.Box):
            self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)
            finite = with_range(self._low, self._high)
            self._scaled = finite if normalize else np.zeros_like(finite)
            low, high = np.where(finite, self._low, 0), np.where(finite, self._high, 0)
            self._half = np.where(self._scaled, (high - low) / 2, 1).astype(np.float32)
            self._centre = np.where(self._scaled, low + self._half, 0).astype(np.float32)
            # A bound on one side cannot be scaled to, but it is still a bound.
            self._least = self._low if normalize or clip else np.full_like(self._low, -np.inf)
            self._most = self._high if normalize or clip else np.full_like(self._high, np.inf)

    @property
    def scaling(self) -> tuple[Array, Array, Array, Array]:
        """Of a Box: what each flat number is multiplied by, what is added then, the least and the most."""
        return self._half, self._centre, self._least, self._most

    def __call__(self, actions: Array) -> Sequence[Any] | Array:
        """Return R env-ready actions."""
        if self._plain:
            return actions
        if isinstance(self.space, gym.spaces.Discrete):
            shifted: Array = (actions + self._start).astype(self.space.dtype, copy=False)
            return shifted
        if isinstance(self.space, gym.spaces.Box):
            scaled = actions * self._half + self._centre
            out = np.minimum(np.maximum(scaled, self._least), self._most).reshape(-1, *self.space.shape)
            out = out.astype(self.space.dtype, copy=False)
        else:
            out = (actions + self.space.start).astype(self.space.dtype, copy=False)
        out.flags.writeable = False
        if self.nested is not None:
            return self.nested.elements(out)
        return out if out.ndim > 1 else [np.asarray(row) for row in out]

    def inverse(self, actions: Sequence[Any] | Array) -> Array:
        """Return the network's [R, ...] actions that come out as these.

        Clipping has no way back: what lies outside the bounds is scaled like the rest, so that its density is that
        of the action which was taken.

        Args:
            actions: R elements of the action space, or an array of them.

        Returns:
            int64 [R] of Discrete, [R, components] of MultiDiscrete; float32 [R, k] of a Box.

        Raises:
            OutsideSpaceError: One is no element of the space, bounds of a Box left aside.
        """
        rows = self._flat(actions)
        if rows is None:
            raise self._outside(actions)
        if isinstance(self.space, gym.spaces.Box):
            return self._unscaled(rows.astype(np.float64)).astype(np.float32)
        shifted: Array = rows.astype(np.int64) - self._first
        return shifted[:, 0] if isinstance(self.space, gym.spaces.Discrete) else shifted

    def _flat(self, actions: Sequence[Any] | Array) -> Array | None:
        """Return [R, k] numbers of R elements of the space, None if there is another among them."""
        box = isinstance(self.space, gym.spaces.Box)
        width = len(self._half) if box else len(self._first)
        try:
            rows = np.asarray(actions) if self.nested is None else self.nested.rows(actions)
            rows = rows.reshape(len(actions), width)
        except (TypeError, ValueError, KeyError, IndexError):
            return None
        if rows.dtype.kind not in ("iuf" if box else "iu"):
            return None
        inside = np.isfinite(rows) if box else (rows >= self._first) & (rows < self._behind)
        return rows if inside.all() else None

    def _outside(self, actions: Sequence[Any] | Array) -> OutsideSpaceError:
        """Return the error for the first action that is no element of the space."""
        space = self.space if self.nested is None else self.nested.space
        reasons = ((row, why_outside(space, action, "action")) for row, action in enumerate(actions))
        row, why = next(
            ((row, why) for row, why in reasons if why), (0, f"action: expected an element of {space}")
        )
        return OutsideSpaceError(row, why)

    @property
    def log_scale(self) -> Array:
        """float32 [k] log of what each flat number is multiplied by, zeros where nothing is; [0] of choices.

        A log-density of an action as the environment takes it, plus the sum of these, is that of the network's own.
        """
        if not isinstance(self.space, gym.spaces.Box):
            return np.zeros(0, np.float32)
        return np.log(np.maximum(self._half, _LEAST_SCALE)).astype(np.float32)

    def inverse_inputs(self, dist_inputs: Array) -> Array:
        """Return the network's own distribution inputs for those of the environment's actions.

        Args:
            dist_inputs: [R, D] logits, which are returned as they are; or, of a Box, means and then logarithms of
                standard deviations, [R, 2 k].
        """
        if not isinstance(self.space, gym.spaces.Box):
            return dist_inputs
        means, log_stds = np.split(dist_inputs.astype(np.float64), 2, 1)
        found = np.concatenate((self._unscaled(means), log_stds - self.log_scale), 1)
        return found.astype(np.float32)

    def _unscaled(self, rows: Array) -> Array:
        """Return [R, k] numbers before they were scaled; 0 where the bounds leave nothing to choose."""
        moved: Array = np.divide(
            rows - self._centre, self._half, out=np.zeros_like(rows), where=self._half > 0
        )
        return moved


def with_range(low: Array, high: Array) -> npt.NDArray[np.bool_]:
    """Return where there are two bounds with a range between them that float32 can hold.

    Bounds such as -3.4e38 and 3.4e38 say that there are none, and cannot be scaled to.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found: npt.NDArray[np.bool_] = np.isfinite(high.astype(np.float32) - low.astype(np.float32))
    return found
