"""Settings that are numbers: refusing what is none, or too large or small, in the same words everywhere.

The settings of each algorithm and the sections of its config call it. It knows no names of settings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from menv.errors import ConfigError

MOST = 2**63 - 1
"""What columns and libraries count to; it stands for "never" and "all" in some configs."""
MOST_ROWS = 10**9
"""Rows that come together, each of them some bytes: more than any machine holds, or than any run lives to see."""

LARGEST = 1e30
"""Of numbers: networks compute in single precision, and products of settings have to stay below its 3e38."""
FASTEST = 1e3
"""Of learning rates: Adam moves a weight by as much at each step, and soon no product of two of them is a number."""
_LONG = 100
LEARNERS = "learners.safetensors"
"""Begins messages about what learners have written."""
_MOST_COUNTED = 2**53
"""What a run can have counted: the next integers still fit, also as floats."""


def check_count(where: str, name: str, value: Any, least: int = 1, most: int = MOST) -> None:
    """Refuse what is no integer from `least` to `most`.

    Args:
        where: Begins the message: an algorithm or a section.
        name: Of the setting.
        value: As it was given.
        least: The smallest that can work.
        most: The largest.

    Raises:
        ConfigError: It is something else; flags are.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value > most:
        raise ConfigError(
            f"{where}: {name} is {shown(value)}, expected an integer from {least} to {most}; lower it"
        )
    if not whole or value < least:
        advice = "raise it" if whole else "correct it"
        raise ConfigError(
            f"{where}: {name} is {shown(value)}, expected an integer of at least {least}; {advice}"
        )


def check_number(
    where: str,
    name: str,
    value: Any,
    least: float = -LARGEST,
    most: float = LARGEST,
    *,
    none_is_off: bool = False,
    endless: bool = False,
) -> None:
    """Refuse what is no number within [least, most], or beyond what networks can compute with.

    Args:
        where: Begins the message: an algorithm or a section.
        name: Of the setting.
        value: As it was given.
        least: The smallest that can work.
        most: The largest.
        none_is_off: Whether None is a value, which switches a limit off, as infinity does then; 0 lets nothing pass
            and is refused.
        endless: Whether infinity is a value by itself.

    Raises:
        ConfigError: It is something else; flags and NaN are.
    """
    if value is None and none_is_off:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if none_is_off and number and value == 0:
        raise ConfigError(
            f"{where}: {name} is {shown(value)}, which lets nothing be learned, expected a number above 0, or None to "
            "switch it off; correct it"
        )
    # An integer that no float holds is no infinity either.
    beyond = number and LARGEST < abs(value) < math.inf
    if not number or not least <= value <= most or (beyond and isinstance(value, int)):
        off = ", or None to switch it off" if none_is_off else ""
        low = "" if least <= -LARGEST else f" from {least:g}"
        high = f" to {min(most, LARGEST):g}" if most < LARGEST or beyond else ""
        kind = "number" if most < LARGEST or endless else "finite number"
        raise ConfigError(f"{where}: {name} is {shown(value)}, expected a {kind}{low}{high}{off}; correct it")


def check_stored(
    where: str, name: str, value: Any, kinds: str = "iu", least: float = 0, most: float = _MOST_COUNTED
) -> None:
    """Refuse a number of a checkpoint, or an array of them, that no run can have reached.

    Args:
        where: Begins the message.
        name: Of the field in its file.
        value: As it was read.
        kinds: Kinds of numpy's dtypes that it may have.
        least: The smallest that can be.
        most: The largest. NaN is refused, too.

    Raises:
        ConfigError: It is something else; flags are.
    """
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


def shown(value: Any) -> str:
    """Return a value for a message, cut where it is long."""
    if isinstance(value, int) and value.bit_length() > _LONG:
        # Python itself refuses to write those of thousands of digits.
        return f"{'-' if value < 0 else ''}2**{value.bit_length() - 1} and more"
    try:
        text = repr(value)
    except ValueError:
        # Such an integer lies within.
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
