"""Elements of spaces: batches, checks, and exact messages about what is wrong.

`Stacker` stacks elements quickly, `why_outside` explains why a value is not in a space. The functions about nested
spaces come first. It knows gymnasium spaces and numpy only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from operator import attrgetter
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv.errors import ContractError, message_of

Space: TypeAlias = gym.Space[Any]
Keys: TypeAlias = tuple[Any, ...]
Build: TypeAlias = Callable[[Sequence[Any]], Any]

_DTYPE = attrgetter("dtype")


def parts_of(space: Space) -> list[tuple[Any, Space]] | None:
    """Return the named parts of a Dict or Tuple space, in order; None for any other space."""
    if isinstance(space, gym.spaces.Dict):
        return list(space.spaces.items())
    if isinstance(space, gym.spaces.Tuple):
        return list(enumerate(space.spaces))
    return None


def paths(space: Space, keys: Keys = ()) -> list[tuple[Keys, Space]]:
    """Return the leaf spaces of a nested space and the keys that lead to each, in order."""
    parts = parts_of(space)
    if parts is None:
        return [(keys, space)]
    return [path for key, part in parts for path in paths(part, (*keys, key))]


def leaves(space: Space) -> list[Any]:
    """Return the leaf spaces of a nested space, in order."""
    return [leaf for _, leaf in paths(space)]


def columns_of(space: Space, values: Sequence[Any] | npt.NDArray[Any]) -> list[list[Any]]:
    """Return R values of each leaf, in order, of R elements of a space."""
    parts = parts_of(space)
    if parts is None:
        return [list(values)]
    return [column for key, part in parts for column in columns_of(part, [value[key] for value in values])]


def builder_of(space: Space) -> Build:
    """Return a function that makes one element from the values of a space's leaves."""
    parts = parts_of(space)
    if parts is None:
        return lambda values: values[0]
    counts = [len(leaves(part)) for _, part in parts]
    starts = np.cumsum([0, *counts]).tolist()
    builders = [
        (key, builder_of(part), start, start + count)
        for (key, part), start, count in zip(parts, starts, counts, strict=False)
    ]
    if isinstance(space, gym.spaces.Dict):
        return lambda values: {key: build(values[a:b]) for key, build, a, b in builders}
    return lambda values: tuple(build(values[a:b]) for _, build, a, b in builders)


def built(space: Space, make: Callable[[Keys, Space], Any], keys: Keys = ()) -> Any:
    """Return dicts and tuples nested as the space is, with `make(keys, leaf)` for each leaf."""
    parts = parts_of(space)
    if parts is None:
        return make(keys, space)
    made = {key: built(part, make, (*keys, key)) for key, part in parts}
    return made if isinstance(space, gym.spaces.Dict) else tuple(made.values())


def values_in(value: object) -> Iterator[Any]:
    """Yield the values in nested dicts, tuples and lists, in order."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        yield value
        return
    for part in value:
        yield from values_in(part)


def flags_of(space: Space) -> int:
    """Return the number of flags in an action mask: one for each choice of the discrete parts."""
    discrete = gym.spaces.Discrete | gym.spaces.MultiDiscrete
    choices = [part for part in leaves(space) if isinstance(part, discrete)]
    return sum(int(np.sum(part.nvec if hasattr(part, "nvec") else part.n)) for part in choices)


def flat_mask(mask: object, actions: Space | None = None) -> npt.NDArray[Any]:
    """Return the flags of a mask as one array.

    Args:
        mask: An array, or gymnasium's form: a tuple or dict of one mask for each part, None where all is allowed and
            for a Box, which a dict may leave out.
        actions: The action space: the number of flags of None, and the order of a dict.

    Raises:
        KeyError: A dict has other keys than the actions.
    """
    if mask is None:
        return np.ones(0 if actions is None else flags_of(actions), np.int8)
    parts = dict((None if actions is None else parts_of(actions)) or ())
    if isinstance(mask, dict) and parts:
        mask = {**{key: None for key, part in parts.items() if not flags_of(part)}, **mask}
        for key in mask.keys() ^ parts.keys():
            raise KeyError(key)
    if isinstance(mask, tuple | dict) and len(parts) == len(mask):
        return np.concatenate([flat_mask(mask[key], part) for key, part in parts.items()])
    found = [np.ravel(part) for part in values_in(mask) if part is not None]
    return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, np.int8), *found])


def open_mask(mask: object) -> Any:
    """Return a mask of the same form that allows everything."""
    if isinstance(mask, dict):
        return {key: open_mask(part) for key, part in mask.items()}
    if isinstance(mask, tuple):
        return tuple(map(open_mask, mask))
    return None if mask is None else np.ones_like(mask)


class GroupObs(tuple[Any, ...]):
    """The observations of a group's members, in order; `absent` are the places of members that are not there."""

    absent: frozenset[int] = frozenset()

    @classmethod
    def of(cls, parts: Iterable[Any], absent: Iterable[int]) -> GroupObs:
        obs = cls(parts)
        obs.absent = frozenset(absent)
        return obs


def own_copy(element: object) -> Any:
    """Return a copy of an observation that the environment cannot change later."""
    if isinstance(element, np.ndarray):
        return element.copy()
    if isinstance(element, dict):
        return {
            key: value.copy() if type(value) is np.ndarray else own_copy(value)
            for key, value in element.items()
        }
    if isinstance(element, GroupObs):
        return GroupObs.of(map(own_copy, element), element.absent)
    if isinstance(element, tuple | list):
        # A named tuple takes its values one by one.
        make = getattr(type(element), "_make", type(element))
        return make(own_copy(value) for value in element)
    if isinstance(element, Mapping):
        # Their own `copy` keeps the arrays in them.
        return {key: own_copy(value) for key, value in element.items()}
    # Tensors of other libraries, by the names that they have for it; numbers of Python cannot change.
    for name in ("clone", "copy"):
        copy = getattr(element, name, None)
        if callable(copy):
            return copy()
    return element


def has_order(value: Any) -> bool:
    """Return whether a value is a sequence of elements, as lists, arrays and tensors are."""
    try:
        len(value)
    except TypeError:
        return False
    return not isinstance(value, Mapping | Set | str | bytes)


Array = npt.NDArray[Any]


class OutsideSpaceError(ContractError):
    """One element of a batch is outside its space.

    Attributes:
        row: Index of the element in the batch.
        why: Path in the space, expected and got, first bad index.
        makers: Names of the custom connectors that processed it.
    """

    def __init__(self, row: int, why: str, makers: Sequence[str] = ()) -> None:
        super().__init__(f"element {row} of the batch: {why}")
        self.row = row
        self.why = why
        self.makers = makers

    def among(self, places: npt.NDArray[np.intp]) -> OutsideSpaceError:
        """Return the error of a larger batch, in which the elements of this one have these places."""
        return OutsideSpaceError(int(places[self.row]), self.why, self.makers)

    def with_advice(self, advice: str) -> str:
        """Return what is wrong and how to fix it."""
        makers = f"fix the output of {', '.join(self.makers)}, or " if self.makers else ""
        return f"{self.why}; {makers}{advice}"


def stack(values: Sequence[Any] | Array, space: gym.Space[Any], path: str = "") -> Array:
    """Return [R, *shape] of the elements of a leaf space; keep a `Stacker` for repeated calls."""
    return Stacker(space, path)(values)


class Stacker:
    """Stacks elements of a leaf space, a Box, Discrete, MultiDiscrete or MultiBinary; `path` names it in messages."""

    __slots__ = ("_bytes", "_casts", "_dtype", "_length", "_path", "_shape", "_space")

    def __init__(self, space: gym.Space[Any], path: str = "") -> None:
        self._space, self._path = space, path
        # Whether elements of another number type were seen; later ones will have it too.
        self._casts = False
        shape, dtype = space.shape, space.dtype
        self._shape: tuple[int, ...] = shape or ()
        # The dtype of a pickled space is another object than numpy's.
        self._dtype = np.dtype(object if dtype is None else dtype.str)
        self._bytes = self._dtype.itemsize * math.prod(self._shape)
        self._length = self._shape[0] if len(self._shape) == 1 else None

    def __reduce__(self) -> Any:
        return Stacker, (self._space, self._path)

    def __call__(self, values: Sequence[Any] | Array) -> Array:
        """Return [R, *shape] of R elements in the space's dtype, one copy; an array [R, *shape] is passed through.

        Elements of another float or integer type are cast, with one warning, if no value is lost.

        Raises:
            OutsideSpaceError: An element has the wrong type, shape or dtype. Bounds are checked elsewhere.
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
            # A join costs a quarter of np.array, but sees bytes only.
            data, other = b"".join(values), []
            if [*map(_DTYPE, values)].count(dtype) != rows:
                other = [value for value in values if value.dtype != dtype]
            if self._length is None:
                other = other or [value for value in values if value.shape != self._shape]
            elif rows and ([*map(len, values)].count(self._length) != rows or values[0].shape != self._shape):
                # An array of `rows` columns has as many bytes: check the first element.
                other = [values[0]]
        except (TypeError, AttributeError, BufferError, ValueError):
            return _stack_slowly(values, space, self._path)
        if other or len(data) != rows * self._bytes:
            cast = self._cast(values)
            return _stack_slowly(values, space, self._path) if cast is None else cast
        return np.frombuffer(data, dtype).reshape(rows, *self._shape)

    def _checked(self, values: Array) -> Array:
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
        """Return [R] int64 of scalars that are within `space`."""
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
        """Return [R, *shape] cast from another number type, None if that is impossible or loses values."""
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

    def _warn(self, got: object, wanted: str) -> None:
        if not self._casts:
            self._casts = True
            warnings.warn(
                f"{self._path or 'obs'}: observations of {got} for {self._space}, expected {wanted}; they are cast, "
                "because no value is lost; convert them in the environment to save time",
                stacklevel=2,
            )


def keeps_values(array: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a cast keeps all numbers, except for the precision of floats."""
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
    """Stack elements that need a cast, or report which one is wrong."""
    for row, value in enumerate(values):
        why = why_outside(space, value, path)
        if why is not None:
            raise OutsideSpaceError(row, why)
    return np.stack([np.asarray(value, dtype=space.dtype).reshape(space.shape or ()) for value in values])


def why_outside(space: gym.Space[Any], value: object, path: str = "") -> str | None:
    """Return why `value` is not an element of `space`, or None if it is one.

    The text names the path in the space, what was expected, what was got and the first bad index; it never holds the
    whole value.
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


def _why_outside_dict(space: gym.spaces.Dict, value: object, where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where}: expected a dict with keys {_listed(space.keys())}, got {_kind(value)}"
    missing, extra = _listed(space.keys() - value.keys()), _listed(value.keys() - space.keys())
    if missing or extra:
        return f"{where}: expected keys {_listed(space.keys())}; missing {missing}, not in the space {extra}"
    reasons = (why_outside(space[name], value[name], f"{where}[{name!r}]") for name in space.keys())  # noqa: SIM118
    return next((reason for reason in reasons if reason is not None), None)


def _why_outside_tuple(space: gym.spaces.Tuple[Any], value: object, where: str) -> str | None:
    if not isinstance(value, tuple | list) or len(value) != len(space):
        got = f"{len(value)}" if isinstance(value, tuple | list) else _kind(value)
        return f"{where}: expected a tuple of {len(space)} elements, got {got}"
    reasons = (why_outside(part, value[i], f"{where}[{i}]") for i, part in enumerate(space))
    return next((reason for reason in reasons if reason is not None), None)


def _why_outside_discrete(space: gym.spaces.Discrete, value: object, where: str) -> str | None:
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


def _as_array(value: object) -> tuple[Array, str]:
    """Return a value as numpy reads it, and the problem if numpy cannot, such as a tensor of another device."""
    try:
        return np.asarray(value), ""
    except ValueError:
        return np.empty(0), f"a ragged {type(value).__name__}"
    except (TypeError, RuntimeError) as error:
        first = next(iter(message_of(error).splitlines()), type(error).__name__)
        return np.empty(0), f"a {type(value).__name__} that numpy cannot read ({first})"


def why_out_of_bounds(array: Array, low: Array, high: Array, where: str) -> str | None:
    """Return a text about the first index of `array` outside [low, high] (NaN is outside), or None."""
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
    """Return whether two spaces differ at most in the bounds of Boxes."""
    spaces = gym.spaces
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return one.shape == other.shape and one.dtype == other.dtype
    return one == other


def holds(wide: gym.Space[Any], narrow: gym.Space[Any]) -> bool:
    """Return whether every element of `narrow` is one of `wide`, except for the precision of its numbers."""
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
    """Return the least and the greatest element of a space of numbers, both inclusive."""
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, gym.spaces.Discrete):
        first = int(space.start)
        return np.array(first), np.array(first + int(space.n) - 1)
    return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)


def _listed(keys: Iterable[Any]) -> list[Any]:
    return sorted(keys, key=repr)


def _kind(value: object) -> str:
    """Describe a value by its type and shape, never by its content."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return f"{type(value).__name__} {value}"
    if isinstance(value, dict):
        return f"a dict with keys {_listed(value)}"
    return f"{type(value).__name__}"
