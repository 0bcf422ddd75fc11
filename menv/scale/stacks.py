"""Lists of observations or actions on their way to another process: as few arrays as possible.

`menv.scale.env_host` and `menv.scale.far_host` pack and unpack with it. What comes out equals what went in, element by
element; it knows no spaces and no environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Stack(NamedTuple):
    """Elements of one type and shape as one array, a row each."""

    rows: Any


class Dicts(NamedTuple):
    """Dicts with the same keys, each key's values packed."""

    keys: tuple[Any, ...]
    values: tuple[Any, ...]


def pack(elements: Any) -> Any:
    """Return a list of elements, or the rows of an array, in the form in which they travel."""
    if isinstance(elements, np.ndarray) or len(elements) < 2:
        return elements
    first = elements[0]
    kind = type(first)
    if any(type(element) is not kind for element in elements):
        return elements
    if kind is np.ndarray and first.ndim and not first.dtype.hasobject:
        shape, dtype = first.shape, first.dtype
        if all(element.shape == shape and element.dtype == dtype for element in elements):
            return Stack(np.array(elements))
    elif isinstance(first, np.generic) and first.dtype.kind in "biuf":
        return Stack(np.array(elements))
    elif kind is dict:
        keys = tuple(first)
        if keys and all(tuple(element) == keys for element in elements):
            return Dicts(keys, tuple(pack([element[key] for element in elements]) for key in keys))
    return elements


def unpack(packed: Any) -> Sequence[Any]:
    """Return what was packed, as a list, or as the array that it was.

    The rows may be written to, whatever the array was that arrived.
    """
    if isinstance(packed, Stack):
        rows = packed.rows
        return list(rows if rows.flags.writeable else rows.copy())
    if isinstance(packed, Dicts):
        columns = [unpack(values) for values in packed.values]
        return [dict(zip(packed.keys, values, strict=True)) for values in zip(*columns, strict=True)]
    rows_or_list: Sequence[Any] = packed
    return rows_or_list
