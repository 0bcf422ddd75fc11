"""What is made of other things of its kind: Dict and Tuple spaces, and dicts, tuples and lists of arrays.

Whoever looks at the parts of a space or of an observation asks it. It knows no kind of leaf but by not being nested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

Space: TypeAlias = gym.Space[Any]
Keys: TypeAlias = tuple[Any, ...]
Build: TypeAlias = Callable[[Sequence[Any]], Any]


def parts_of(space: Space) -> list[tuple[Any, Space]] | None:
    """Return the parts of a Dict or Tuple space and what each is called there, in order; None of any other space."""
    if isinstance(space, gym.spaces.Dict):
        return list(space.spaces.items())
    if isinstance(space, gym.spaces.Tuple):
        return list(enumerate(space.spaces))
    return None


def paths(space: Space, keys: Keys = ()) -> list[tuple[Keys, Space]]:
    """Return the spaces in a nested space that are not nested themselves, and the keys that lead to each, in order."""
    parts = parts_of(space)
    if parts is None:
        return [(keys, space)]
    return [path for key, part in parts for path in paths(part, (*keys, key))]


def leaves(space: Space) -> list[Any]:
    """Return the spaces in a nested space that are not nested themselves, in order."""
    return [leaf for _, leaf in paths(space)]


def columns_of(space: Space, values: Sequence[Any] | npt.NDArray[Any]) -> list[list[Any]]:
    """Return R values of each leaf, in order, of R elements of a space."""
    parts = parts_of(space)
    if parts is None:
        return [list(values)]
    return [column for key, part in parts for column in columns_of(part, [value[key] for value in values])]


def builder_of(space: Space) -> Build:
    """Return a function of the values of a space's leaves, in order, that makes one element."""
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
    """Return dicts and tuples as a space nests them, with what `make` gives for the keys to each leaf and the leaf."""
    parts = parts_of(space)
    if parts is None:
        return make(keys, space)
    made = {key: built(part, make, (*keys, key)) for key, part in parts}
    return made if isinstance(space, gym.spaces.Dict) else tuple(made.values())


def values_in(value: Any) -> Iterator[Any]:
    """Yield what is in dicts, tuples and lists that lie within each other, in order."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        yield value
        return
    for part in value:
        yield from values_in(part)


def flags_of(space: Space) -> int:
    """Return how many flags a mask of these actions has: one for each choice of its discrete parts."""
    discrete = gym.spaces.Discrete | gym.spaces.MultiDiscrete
    choices = [part for part in leaves(space) if isinstance(part, discrete)]
    return sum(int(np.sum(part.nvec if hasattr(part, "nvec") else part.n)) for part in choices)


def flat_mask(mask: Any, actions: Space | None = None) -> npt.NDArray[Any]:
    """Return the flags of a mask one after the other.

    Args:
        mask: An array, or gymnasium's form: a tuple or dict of one mask for each part, None where all is allowed and
            for a Box, which a dict may leave out.
        actions: The action space, which says how many flags None stands for, and the order of a dict.

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


def open_mask(mask: Any) -> Any:
    """Return a mask of the same form that allows everything."""
    if isinstance(mask, dict):
        return {key: open_mask(part) for key, part in mask.items()}
    if isinstance(mask, tuple):
        return tuple(map(open_mask, mask))
    return None if mask is None else np.ones_like(mask)


def own_copy(element: Any) -> Any:
    """Return a copy of an observation that its environment cannot change any more."""
    if isinstance(element, np.ndarray):
        return element.copy()
    if isinstance(element, dict):
        return {
            key: value.copy() if type(value) is np.ndarray else own_copy(value)
            for key, value in element.items()
        }
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
    """Return whether something is a number of elements one after the other, as lists, arrays and tensors are."""
    try:
        len(value)
    except TypeError:
        return False
    return not isinstance(value, Mapping | Set | str | bytes)
