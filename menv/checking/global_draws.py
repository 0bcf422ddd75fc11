"""Whether code draws from the generators that the whole process shares.

`menv.checking.stage` asks before and after each call of an environment.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np

_MT19937_BYTES = 625 * 4
"""624 words and the place among them."""


def state_of_generators() -> tuple[Any, Any]:
    """Return what tells the present states of `numpy.random` and `random` from others."""
    return _state_of_numpy(), random.getstate()


def used_since(before: tuple[Any, Any]) -> str | None:
    """Return the name of a generator that was drawn from or seeded, None if neither was."""
    now = state_of_generators()
    names = [
        name for name, one, other in zip(("numpy.random", "random"), before, now, strict=True) if one != other
    ]
    return " and ".join(names) or None


def _state_of_numpy() -> Any:
    # A normal number that numpy has kept for the next call is left out: whoever drew it was seen to draw.
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # numpy's stubs leave it out
    if type(generator) is np.random.MT19937:
        # As it lies in memory; `get_state` takes fifty times as long, and is asked twice in each env step.
        return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    return repr(np.random.get_state(legacy=False))
