"""Batches of space elements: stacking them quickly and saying exactly what is wrong with one.

`menv.connectors` and `menv.adapters` call it. It knows gymnasium spaces and numpy, nothing else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ContractError
from menv.nested import parts_of

Array = npt.NDArray[Any]


class OutsideSpaceError(ContractError):
    """One element of a batch lies outside its space.

    Attributes:
        row: Index of the element in the batch.
        why: Path in the space, expected and got, first bad index.
        makers: Names of the connectors of a user's own that it came through, if there are any.
    """

    def __init__(self, row: int, why: str, makers: Sequence[str] = ()) -> None:
        super().__init__(f"element {row} of the batch: {why}")
        self.row = row
        self.why = why
        self.makers = makers

    def among(self, places: npt.NDArray[np.intp]) -> OutsideSpaceError:
        """Return the error of a larger batch, in which the elements of this one have these places."""
        return OutsideSpaceError(int(places[self.row]), self.why, self.makers)

    def mended(self, advice: str) -> str:
        """Return what is wrong and what to do about it, which is `advice` where no connector is to blame."""
        makers = f"mend what {', '.join(self.makers)} made of it, or " if self.makers else ""
        return f"{self.why}; {makers}{advice}"


def stack(values: Sequence[Any] | Array, space: gym.Space[Any], path: str = "") -> Array:
    """Return [R, *shape] of the elements of a leaf space; who does so again and again keeps a `Stacker`."""
    return Stacker(space, path)(values)


class Stacker:
    """Puts elements of a leaf space into one array.

    Args:
        space: A Box, Discrete, MultiDiscrete or MultiBinary space.
        path: Where the leaf lies in a larger space, for messages.
    """

    __slots__ = ("_bytes", "_casts", "_dtype", "_length", "_path", "_shape", "_space")

    def __init__(self, space: gym.Space[Any], path: str = "") -> None:
        self._space, self._path = space, path
        # Whether elements of another number type have come, which the next ones will be as well.
        self._casts = False
        shape, dtype = space.shape, space.dtype
        self._shape: tuple[int, ...] = shape or ()
        # A space that was pickled has a dtype of its own; that of arrays is numpy's one.
        self._dtype = np.dtype(object if dtype is None else dtype.str)
        self._bytes = self._dtype.itemsize * math.prod(self._shape)
        self._length = self._shape[0] if len(self._shape) == 1 else None

    def __reduce__(self) -> Any:
        return Stacker, (self._space, self._path)

    def __call__(self, values: Sequence[Any] | Array) -> Array:
        """Return [R, *shape] of the elements, one copy, dtype of the space.

        Args:
            values: R elements, or an array [R, *shape] that is passed on.

        Raises:
            OutsideSpaceError: An element has the wrong type, shape or dtype. (Bounds are checked apart.)

        Elements of another float or integer type are cast, with one warning, where no value is lost.
        """
        space = self._space
        if isinstance(space, gym.spaces.Discrete):
            return self._choices(values, space)
        if isinstance(values, np.ndarray) and values.dtype != object:
            return self._checked(values)
        if self._casts and (cast := self._cast(values)) is not None:
            return cast
        rows, dtype = len(values), self._dtype
        try:
            # A join costs a quarter of np.array, but sees bytes only: dtypes are compared by identity.
            data = b"".join(values)
            other = [value for value in values if value.dtype is not dtype]
            if other:
                # Arrays may have been pickled too.
                other = [value for value in other if value.dtype != dtype]
            if self._length is None:
                other = other or [value for value in values if value.shape != self._shape]
            elif rows and ([*map(len, values)].count(self._length) != rows or values[0].shape != self._shape):
                # Columns of so many rows have as many bytes: of those a look at the first has to do.
                other = [values[0]]
        except (TypeError, AttributeError, BufferError, ValueError):
            return _stack_slowly(values, space, self._path)
        if other or len(data) != rows * self._bytes:
            cast = self._cast(values)
            return _stack_slowly(values, space, self._path) if cast is None else cast
        return np.frombuffer(data, dtype).reshape(rows, *self._shape)

    def _checked(self, values: Array) -> Array:
        """Pass on an array [R, *shape] whose shape and dtype are those of an element of the space."""
        if values.shape[1:] == self._shape:
            if np.can_cast(values.dtype, self._dtype):
                return values
            cast = self._cast(values)
            if cast is not None:
                return cast
        reasons = (why_outside(self._space, value, self._path) for value in values)
        row, why = next(((row, why) for row, why in enumerate(reasons) if why), (0, "wrong shape"))
        raise OutsideSpaceError(row, why)

    def _choices(self, values: Sequence[Any] | Array, space: gym.spaces.Discrete) -> Array:
        """Return [R] int64 of scalars that lie within `space`."""
        try:
            out = np.array(values)
        except (ValueError, TypeError, RuntimeError):
            return _stack_slowly(values, space, self._path)
        if out.ndim == 1 and out.dtype.kind == "f" and keeps_values(out, np.dtype(np.int64)):
            self._warn(out.dtype, "integers")
            out = out.astype(np.int64)
        if out.ndim != 1 or out.dtype.kind not in "iu":
            return _stack_slowly(values, space, self._path)
        start = int(space.start)
        if out.min() < start or out.max() >= start + int(space.n):
            return _stack_slowly(values, space, self._path)
        return out.astype(np.int64, copy=False)

    def _cast(self, values: Sequence[Any] | Array) -> Array | None:
        """Return [R, *shape] of arrays of another number type, None if they are none or a value would be lost."""
        if type(values) is not np.ndarray and {*map(type, values)} != {np.ndarray}:
            return None
        try:
            array = np.asarray(values)
        except ValueError:
            return None
        if array.shape[1:] != self._shape or not keeps_values(array, self._dtype):
            return None
        if not np.can_cast(array.dtype, self._dtype):
            self._warn(array.dtype, str(self._dtype))
        return array.astype(self._dtype)

    def _warn(self, got: Any, wanted: str) -> None:
        if not self._casts:
            self._casts = True
            warnings.warn(
                f"{self._path or 'obs'}: observations of {got} for {self._space}, expected {wanted}; they are cast "
                "because no value is lost, convert them in the environment to save the time",
                stacklevel=2,
            )


def keeps_values(array: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether numbers are the same in another type, apart from the precision of floats."""
    if np.can_cast(array.dtype, dtype):
        return True
    if array.dtype.kind not in "iuf" or dtype.kind not in "iuf":
        return False
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if array.dtype.kind == dtype.kind == "f":
            return bool(np.isfinite(cast).all() or (np.isinf(cast) == np.isinf(array)).all())
        # The way back alone would not do: integers that wrap around come back.
        return bool(((cast == array) & (cast.astype(array.dtype) == array)).all())


def _stack_slowly(values: Sequence[Any] | Array, space: gym.Space[Any], path: str) -> Array:
    """Stack elements that need a cast, or say which one is wrong."""
    for row, value in enumerate(values):
        why = why_outside(space, value, path)
        if why is not None:
            raise OutsideSpaceError(row, why)
    return np.stack([np.asarray(value, dtype=space.dtype).reshape(space.shape or ()) for value in values])


def why_outside(space: gym.Space[Any], value: Any, path: str = "") -> str | None:
    """Return why `value` is not an element of `space`, or None if it is one.

    The answer names the path in the space, what was expected, what was got and the first bad
    index; it never holds the whole value.
    """
    where = path or "obs"
    if isinstance(space, gym.spaces.Dict):
        return _why_outside_dict(space, value, where)
    if isinstance(space, gym.spaces.Tuple):
        return _why_outside_tuple(space, value, where)
    if isinstance(space, gym.spaces.Discrete):
        return _why_outside_discrete(space, value, where)
    if isinstance(space, gym.spaces.Box | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return _why_outside_array(space, value, where)
    return None if space.contains(value) else f"{where}: expected an element of {space}, got {_kind(value)}"


def _why_outside_dict(space: gym.spaces.Dict, value: Any, where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where}: expected a dict with keys {_listed(space.keys())}, got {_kind(value)}"
    missing, extra = _listed(space.keys() - value.keys()), _listed(value.keys() - space.keys())
    if missing or extra:
        return f"{where}: expected keys {_listed(space.keys())}; missing {missing}, not in the space {extra}"
    reasons = (why_outside(space[name], value[name], f"{where}[{name!r}]") for name in space.keys())  # noqa: SIM118
    return next((reason for reason in reasons if reason is not None), None)


def _why_outside_tuple(space: gym.spaces.Tuple[Any], value: Any, where: str) -> str | None:
    if not isinstance(value, tuple | list) or len(value) != len(space):
        got = f"{len(value)}" if isinstance(value, tuple | list) else _kind(value)
        return f"{where}: expected a tuple of {len(space)} elements, got {got}"
    reasons = (why_outside(part, value[i], f"{where}[{i}]") for i, part in enumerate(space))
    return next((reason for reason in reasons if reason is not None), None)


def _why_outside_discrete(space: gym.spaces.Discrete, value: Any, where: str) -> str | None:
    # Both are of the space's dtype, which need not hold their sum.
    start, behind = int(space.start), int(space.start) + int(space.n)
    expected = f"{where}: expected an integer from {start} to {behind - 1}"
    scalar, why = _as_array(value)
    if why:
        return f"{expected}, got {why}"
    if scalar.ndim or scalar.dtype.kind == "b" or not keeps_values(scalar, np.dtype(np.int64)):
        return f"{expected}, got {_kind(value)}"
    return None if start <= int(scalar) < behind else f"{expected}, got {int(scalar)}"


def _why_outside_array(space: Any, value: Any, where: str) -> str | None:
    expected = f"{where}: expected {space.dtype} of shape {space.shape}"
    array, why = _as_array(value)
    if why:
        return f"{expected}, got {why}"
    if array.shape != space.shape:
        is_array = array.ndim or array.dtype.kind in "biuf"
        return f"{expected}, got {f'shape {array.shape}' if is_array else _kind(value)}"
    if isinstance(value, np.ndarray) and not keeps_values(array, space.dtype):
        return f"{expected}, got {array.dtype} with numbers that {space.dtype} cannot hold"
    if array.dtype.kind not in "biuf":
        return f"{expected}, got {array.dtype}"
    if (
        array.dtype.kind == "f"
        and space.dtype.kind != "f"
        and (broken := array[array != np.rint(array)]).size
    ):
        return f"{expected}, got {broken.flat[0]} in it; round it, or declare a float Box"
    return why_out_of_bounds(array, *bounds(space), where)


def _as_array(value: Any) -> tuple[Array, str]:
    """Return a value as numpy reads it, or what it is where numpy cannot, as a tensor of another device."""
    try:
        return np.asarray(value), ""
    except ValueError:
        return np.empty(0), f"a ragged {type(value).__name__}"
    except (TypeError, RuntimeError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        return np.empty(0), f"a {type(value).__name__} that numpy cannot read ({first})"


def why_out_of_bounds(array: Array, low: Array, high: Array, where: str) -> str | None:
    """Return the first index of `array` outside [low, high] (NaN is outside), or None."""
    inside = (array >= low) & (array <= high)
    if inside.all():
        return None
    index = tuple(int(i) for i in np.argwhere(~inside)[0])
    at = index if len(index) != 1 else index[0]
    return (
        f"{where}: {array[index]} at index {at} is outside "
        f"[{np.broadcast_to(low, array.shape)[index]}, {np.broadcast_to(high, array.shape)[index]}]"
    )


def alike(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Return whether two spaces differ in the bounds of Boxes at most."""
    spaces = gym.spaces
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return one.shape == other.shape and one.dtype == other.dtype
    return one == other


def holds(wide: gym.Space[Any], narrow: gym.Space[Any]) -> bool:
    """Return whether every element of one space lies in another, apart from the precision of its numbers."""
    spaces = gym.spaces
    for kind in (spaces.Dict, spaces.Tuple):
        if isinstance(wide, kind) and isinstance(narrow, kind):
            one, other = (dict(parts_of(space) or ()) for space in (wide, narrow))
            return one.keys() == other.keys() and all(holds(one[key], other[key]) for key in one)
    if isinstance(wide, spaces.Discrete) and isinstance(narrow, spaces.Discrete):
        start, begin = int(wide.start), int(narrow.start)
        return start <= begin and begin + int(narrow.n) <= start + int(wide.n)
    arrays = spaces.Box | spaces.MultiDiscrete
    if not isinstance(wide, arrays) or type(wide) is not type(narrow) or wide.shape != narrow.shape:
        return wide == narrow
    low, high = bounds(wide)
    least, most = bounds(narrow)
    kinds = low.dtype.kind, least.dtype.kind
    return (kinds[0] in ("f", kinds[1])) and bool(np.all(low <= least) and np.all(high >= most))


def bounds(space: Any) -> tuple[Array, Array]:
    """Return the least and the greatest element of an array space, both inclusive."""
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)


def _listed(keys: Iterable[Any]) -> list[Any]:
    """Return keys for a message; those of different types have no order of their own."""
    return sorted(keys, key=repr)


def _kind(value: Any) -> str:
    """Describe a value by its type and shape, never by its content."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return f"{type(value).__name__} {value}"
    if isinstance(value, dict):
        return f"a dict with keys {_listed(value)}"
    return f"{type(value).__name__}"
