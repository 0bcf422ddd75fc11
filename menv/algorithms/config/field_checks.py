"""Checks of numeric settings and of numbers in checkpoints, with the same messages everywhere."""

from __future__ import annotations

import math

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


def check_count(
    where: str, name: str, value: object, least: int = 1, most: float = MOST, also: str = ""
) -> None:
    """Refuse everything but integers from `least` to `most`; flags are no integers. `also` ends the rule."""
    bound, advice = f"of at least {least}", "correct it"
    if isinstance(value, int) and not isinstance(value, bool):
        if least <= value <= most:
            return
        bound, advice = (bound, "raise it") if value < least else (f"from {least} to {most}", "lower it")
    raise ConfigError(f"{where}: {name} is {shown(value)}, expected an integer {bound}{also}; {advice}")


def check_number(
    where: str,
    name: str,
    value: object,
    least: float = -LARGEST,
    most: float = LARGEST,
    positive: bool = False,
    also: str = "",
) -> None:
    """Refuse everything but numbers in [least, most] that networks can compute with; flags and NaN are no numbers.

    `positive` refuses 0 and what is below; `also` ends the rule.
    """
    beyond = False
    if isinstance(value, int | float) and not isinstance(value, bool):
        beyond = LARGEST < abs(value) < math.inf
        # Integers beyond the range of floats do not count as infinity.
        fits = not (beyond and isinstance(value, int)) and not (positive and value <= 0)
        if fits and least <= value <= most:
            return
    low = " above 0" if positive else "" if least <= -LARGEST else f" from {least:g}"
    high = f" to {min(most, LARGEST):g}" if most < LARGEST or beyond else ""
    kind = "finite number" if most == LARGEST else "number"
    raise ConfigError(f"{where}: {name} is {shown(value)}, expected a {kind}{low}{high}{also}; correct it")


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
