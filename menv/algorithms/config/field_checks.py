"""Bounds of numbers in settings and in checkpoints, and their messages."""

from __future__ import annotations

import numpy as np

from menv.errors import ConfigError

MOST = 2**63 - 1
"""Largest integer of columns and libraries; some configs use it for "never" or "all"."""
MOST_ROWS = 10**9
"""Largest number of rows that are held in memory together."""

LARGEST = 1e30
"""Largest number: networks compute in single precision, and products of settings must stay below 3e38."""
FASTEST = 1e3
"""Largest learning rate: beyond it weights overflow within a few steps of Adam."""
_LONG = 100
LEARNERS = "learners.safetensors"
"""The file of the learners in a checkpoint, for error messages."""
_MOST_COUNTED = 2**53
"""Largest counter of a run; integers up to here are exact as floats."""


def check_most(where: str, name: str, value: int, most: int) -> None:
    """Refuse a number that together with other settings would be too large."""
    if value > most:
        raise ConfigError(f"{where}: {name} is {value}, expected at most {most}; lower it")


def check_stored(
    where: str, name: str, value: object, kinds: str = "iu", least: float = 0, most: float = _MOST_COUNTED
) -> None:
    """Refuse a number or an array in a checkpoint that no run can have written; `kinds` are numpy dtype kinds."""
    array = np.asarray(value)
    if array.dtype.kind in kinds:
        if not array.size:
            return
        low, high = array.min().item(), array.max().item()
        if least <= low and high <= most:
            return
        value = low if low == high else f"numbers from {low} to {high}"
    rule = "integers" if kinds == "iu" else "numbers"
    raise ConfigError(
        f"{where}: {name} is {shown(value)}, expected {rule} from {least:g} to {most:g}; load another checkpoint"
    )


def shown(value: object) -> str:
    """Return a value for a message, shortened if it is long."""
    if isinstance(value, int) and value.bit_length() > _LONG:
        # Python refuses to write integers of thousands of digits.
        return f"{'-' if value < 0 else ''}2**{value.bit_length() - 1} and more"
    try:
        text = repr(value)
    except ValueError:
        # It contains such an integer.
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
