"""Writing into the observations of a turn, and taking it back.

The probe of ownership steps in between: an environment that goes on with what it handed out shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from menv.checking.stage import Turn
from menv.checking.transcript import same
from menv.nested import values_in


@contextmanager
def written_into(turn: Turn) -> Iterator[None]:
    """Change every array in the observations of `turn` for as long as the context lasts.

    An array may be a constant that the environment shares with others, so that it gets its numbers back, unless
    the environment has written new ones.
    """
    changed: list[tuple[Any, Any, Any]] = []
    try:
        for obs in turn.shown.values():
            for array in filter(_is_writable, values_in(obs)):
                before = array.copy()
                _change(array)
                changed.append((array, before, array.copy()))
        yield
    finally:
        for array, before, after in reversed(changed):
            if same(array, after):
                array[...] = before


def _is_writable(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.flags.writeable and value.dtype.kind in "biuf"


def _change(array: Any) -> None:
    if array.dtype.kind == "b":
        np.logical_not(array, out=array)
    else:
        np.add(array, 1, out=array, casting="unsafe")
