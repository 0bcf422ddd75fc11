"""ActionOutput: from a network's actions to the environment's actions, for whole batches: scale, clip, shift, shape.

NormalizeActions ([-1, 1] to the bounds of a Box) comes before ClipActions (into the bounds), then the nested form. The
sample batch keeps the network's own actions; for actions from external clients, `inverse` maps the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError
from menv.spaces import OutsideSpaceError, builder_of, columns_of, leaves, own_copy, why_outside

Array = npt.NDArray[Any]
Space = gym.Space[Any]


def flat_action_space(space: Space) -> Space:
    """Return the space of the rows that a network answers with for actions of `space`.

    A Tuple or Dict, nested as may be, of Discrete and MultiDiscrete spaces is one MultiDiscrete space; one of
    float Box spaces is one Box; one of both is a Tuple of its leaves. Any other space is returned unchanged.
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
        "MultiDiscrete or float Box; wrap the environment so that its actions consist of these"
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

    `choices` and `numbers` are the columns of each kind; `mixed` rows, which have both, are floats whose choices count
    from 0.
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
                # An element of such a Box is an array without axes, not a scalar.
                columns.append(list(values) if leaf.shape else [np.asarray(value) for value in values])
            start += width
        build = self._build
        return [build(parts) for parts in zip(*columns, strict=True)]

    def rows(self, actions: Sequence[Any] | Array) -> Array:
        """Return [R, K] rows for R elements, or raise what numpy raises for an invalid one."""
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


_LEAST_SCALE = 1e-30
"""Stands for a range of width 0 in logarithms, which stay finite."""


class ActionOutput:
    """Turns [R, ...] network actions into R elements of the action space.

    `normalize` scales bounded Box dimensions from [-1, 1] to the bounds and clips; `clip` only clips. Discrete actions
    are an array of numpy integers, as `space.sample()` gives them (gymnasium's own checks take longer over a Python
    int), the others as read-only arrays.

    Attributes:
        is_plain: Whether elements of the space are the network's actions themselves.
    """

    def __init__(self, space: gym.Space[Any], *, normalize: bool = True, clip: bool = False) -> None:
        self.normalize, self.clip = normalize, clip
        given: Any = space
        flat: Any = flat_action_space(space)
        self.nested = NestedActions(given) if isinstance(given, gym.spaces.Tuple | gym.spaces.Dict) else None
        # Choices and numbers together.
        self._mixed = isinstance(flat, gym.spaces.Tuple)
        if not self._mixed and not isinstance(
            flat, gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.Box
        ):
            raise ConfigError(
                f"action space: {type(flat).__name__}, expected Discrete, MultiDiscrete, Box, or a Tuple or Dict of "
                "these; wrap the environment"
            )
        self.space: Any = flat
        self.is_plain = isinstance(flat, gym.spaces.Discrete) and not flat.start and flat.dtype == np.int64
        self._first = self._behind = np.zeros(0, np.int64)
        if isinstance(flat, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            self._first = np.asarray(flat.start, np.int64).reshape(-1)
            self._behind = self._first + component_sizes(flat)
        if isinstance(flat, gym.spaces.Tuple):
            self._behind = component_sizes(flat)
            self._first = np.zeros_like(self._behind)
            boxes = [leaf for leaf in flat.spaces if isinstance(leaf, gym.spaces.Box)]
            flat = flat_action_space(gym.spaces.Tuple(boxes))
        self._scale(flat)

    def _scale(self, space: gym.Space[Any]) -> None:
        normalize, clip = self.normalize, self.clip
        self._half = self._centre = np.zeros(0, np.float32)
        if isinstance(space, gym.spaces.Box):
            least, most = space.low.reshape(-1), space.high.reshape(-1)
            scaled = with_range(least, most) & normalize
            low, high = np.where(scaled, least, 0), np.where(scaled, most, 0)
            self._half = np.where(scaled, (high - low) / 2, 1).astype(np.float32)
            self._centre = np.where(scaled, low + self._half, 0).astype(np.float32)
            # A one-sided bound cannot be scaled to, but still clips.
            clips = normalize or clip
            self._least = least if clips else np.full_like(least, -np.inf)
            self._most = most if clips else np.full_like(most, np.inf)

    @property
    def scaling(self) -> tuple[Array, Array, Array, Array]:
        """What each number of an action is multiplied by, what is added then, the least and the most."""
        return self._half, self._centre, self._least, self._most

    def __call__(self, actions: Array) -> Sequence[Any] | Array:
        if self.is_plain:
            return actions
        if len(self._half):
            return self._elements(self._scaled(actions, self._least, self._most))
        shifted: Array = (actions + self.space.start).astype(self.space.dtype, copy=False)
        return shifted if isinstance(self.space, gym.spaces.Discrete) else self._elements(shifted)

    def unclipped(self, actions: Array) -> Sequence[Any] | Array:
        """Return R scaled actions of the environment, whose numbers may be outside of the bounds."""
        if not len(self._half):
            return self(actions)
        rows = self._scaled(actions, -np.inf, np.inf)
        return rows if self.nested is None else self.nested.elements(rows)

    def _scaled(self, actions: Array, least: Any, most: Any) -> Array:
        columns = self.nested.numbers if self._mixed and self.nested else slice(None)
        numbers: Array = actions[:, columns] * self._half + self._centre
        numbers = np.minimum(np.maximum(numbers, least), most)
        if not self._mixed:
            return numbers.reshape(-1, *self.space.shape).astype(self.space.dtype, copy=False)
        # Holds choices and numbers exactly.
        rows = actions.astype(np.float64)
        rows[:, columns] = numbers
        return rows

    def _elements(self, rows: Array) -> Sequence[Any] | Array:
        """Return R write-protected elements of the space."""
        rows.flags.writeable = False
        if self.nested is not None:
            return self.nested.elements(rows)
        return rows if rows.ndim > 1 else [np.asarray(row) for row in rows]

    def inverse(self, actions: Sequence[Any] | Array) -> Array:
        """Return the network's [R, ...] actions for R elements of the space; OutsideSpaceError for an invalid one.

        Clipping has no inverse: numbers outside the bounds are scaled like the rest, so their density is that of the
        action taken.
        """
        rows = self._flat(actions)
        if rows is None:
            raise self._outside(actions)
        if self._mixed:
            assert self.nested is not None
            rows[:, self.nested.numbers] = self._unscaled(rows[:, self.nested.numbers])
            return rows.astype(np.float32)
        if isinstance(self.space, gym.spaces.Box):
            return self._unscaled(rows.astype(np.float64)).astype(np.float32)
        shifted: Array = rows.astype(np.int64) - self._first
        return shifted[:, 0] if isinstance(self.space, gym.spaces.Discrete) else shifted

    def _flat(self, actions: Sequence[Any] | Array) -> Array | None:
        """Return [R, k] numbers of R elements, None if one is not in the space."""
        numbers = len(self._half)
        try:
            rows = np.asarray(actions) if self.nested is None else self.nested.rows(actions)
            rows = rows.reshape(len(actions), numbers + len(self._first))
        except (TypeError, ValueError, KeyError, IndexError):
            return None
        if rows.dtype.kind not in ("iuf" if numbers else "iu"):
            return None
        chosen = rows
        if numbers:
            if not np.isfinite(rows).all():
                return None
            chosen = rows[:, self.nested.choices] if self._mixed and self.nested else rows[:, :0]
        inside = (chosen >= self._first) & (chosen < self._behind)
        return rows if inside.all() else None

    def _outside(self, actions: Sequence[Any] | Array) -> OutsideSpaceError:
        space = self.space if self.nested is None else self.nested.space
        reasons = ((row, why_outside(space, action, "action")) for row, action in enumerate(actions))
        row, why = next(
            ((row, why) for row, why in reasons if why), (0, f"action: expected an element of {space}")
        )
        return OutsideSpaceError(row, why)

    @property
    def log_scale(self) -> Array:
        """float32 [k] log of the scale of each number of an action.

        The log-density of an environment's action plus their sum is that of the network's action.
        """
        return np.log(np.maximum(self._half, _LEAST_SCALE)).astype(np.float32)

    def inverse_inputs(self, dist_inputs: Array) -> Array:
        """Return the network's distribution inputs [R, D] (logits, means, log stds) for inputs of env-ready actions."""
        numbers = len(self._half)
        if not numbers:
            return dist_inputs
        cuts = [dist_inputs.shape[1] - 2 * numbers, dist_inputs.shape[1] - numbers]
        logits, means, log_stds = np.split(dist_inputs.astype(np.float64), cuts, 1)
        found = np.concatenate((logits, self._unscaled(means), log_stds - self.log_scale), 1)
        return found.astype(np.float32)

    def outer_inputs(self, dist_inputs: Array) -> Array:
        """Return the distribution inputs of env-ready actions; the inverse of `inverse_inputs`."""
        scale, shift = self.outer_scaling(dist_inputs.shape[1])
        outer: Array = (dist_inputs * scale + shift).astype(np.float32)
        return outer

    def outer_scaling(self, width: int) -> tuple[Array, Array]:
        """Return the factors and offsets of `outer_inputs` for `width` inputs."""
        logits = np.zeros(width - 2 * len(self._half), np.float32)
        scale = np.concatenate((np.ones_like(logits), self._half, np.ones_like(self._half)))
        return scale, np.concatenate((logits, self._centre, self.log_scale))

    def _unscaled(self, rows: Array) -> Array:
        """Return [R, k] numbers before scaling; 0 where both bounds are equal."""
        moved: Array = np.divide(
            rows - self._centre, self._half, out=np.zeros_like(rows), where=self._half > 0
        )
        return moved


def with_range(low: Array, high: Array) -> npt.NDArray[np.bool_]:
    """Return where two bounds have a finite float32 range; -3.4e38 and 3.4e38, for example, mean unbounded."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: npt.NDArray[np.bool_] = np.isfinite(high.astype(np.float32) - low.astype(np.float32))
    return found


def element(action: object, space: Space, row: int = 0) -> Any:
    """Return an action as a write-protected copy in the dtypes of its space; OutsideSpaceError of `row` otherwise."""
    action = own_copy(action)
    with suppress(TypeError, KeyError, ValueError, IndexError):
        action = fitted(action, space, lambda value, box: value.astype(box.dtype, copy=False))
    why = why_outside(space, action, "action")
    if why is not None:
        raise OutsideSpaceError(row, why)
    return each_part(action, write_protected)


def each_part(value: object, change: Callable[[Any], Any]) -> Any:
    """Return a nested value with each of its parts changed."""
    if isinstance(value, Mapping):
        return {key: each_part(part, change) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(each_part(part, change) for part in value)
    if isinstance(value, list) and not all(isinstance(part, int | float) for part in value):
        return [each_part(part, change) for part in value]
    return change(value)


def write_protected(value: object) -> Any:
    """Return a read-only view of an array; anything else unchanged."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def fitted(value: Any, space: Space, change: Callable[[Array, gym.spaces.Box], Array]) -> Any:
    """Return an element of `space` with `change(value, box)` of each Box."""
    if isinstance(space, gym.spaces.Dict):
        return {key: fitted(value[key], part, change) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(fitted(part, own, change) for part, own in zip(value, space.spaces, strict=True))
    return change(np.asarray(value), space) if isinstance(space, gym.spaces.Box) else value


def scaled(value: Array, space: gym.spaces.Box) -> Array:
    """Return a value of [-1, 1] scaled to the bounds; integers are shifted by the lower bound."""
    low, high = space.low, space.high
    finite = with_range(low, high)
    least, most = np.where(finite, low, 0), np.where(finite, high, 0)
    if space.dtype.kind in "iu":
        value = value + least
    else:
        value = np.where(finite, least + (value + 1.0) * (most - least) / 2.0, value)
    bounded: Array = np.clip(value, low, high).astype(space.dtype)
    return bounded


def clipped(value: Array, space: gym.spaces.Box) -> Array:
    """Return a value clipped into the bounds."""
    inside: Array = np.clip(value, space.low, space.high)
    return inside
