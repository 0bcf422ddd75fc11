"""Whether code draws from the generators that the whole process shares.

`menv.checking.stage` asks before and after each call of an environment.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def state_of_generators() -> tuple[Any, Any]:
    """Return what tells the present states of `numpy.random` and `random` from others."""
    state = np.random.get_state(legacy=False)
    inner: Any = state["state"]
    numbers = inner["key"].tobytes() if "key" in inner else repr(inner)
    return (numbers, inner.get("pos"), state["has_gauss"]), random.getstate()


def used_since(before: tuple[Any, Any]) -> str | None:
    """Return the name of a generator that was drawn from or seeded, None if neither was."""
    now = state_of_generators()
    names = [
        name for name, one, other in zip(("numpy.random", "random"), before, now, strict=True) if one != other
    ]
    return " and ".join(names) or None
