"""Settings that are numbers: refusing what is none, or too large or small, in the same words everywhere.

The settings of each algorithm and the sections of its config call it. It knows no names of settings.
"""

from __future__ import annotations

import math
from typing import Any

from menv.errors import ConfigError


def check_count(where: str, name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no integer of at least `least`.

    Args:
        where: Begins the message: an algorithm or a section.
        name: Of the setting.
        value: As it was given.
        least: The smallest that can work.

    Raises:
        ConfigError: It is something else; flags are.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{where}: {name} is {value!r}, expected an integer of at least {least}; raise it")


def check_number(
    where: str,
    name: str,
    value: Any,
    least: float = 0.0,
    most: float = math.inf,
    *,
    none_is_off: bool = False,
    endless: bool = False,
) -> None:
    """Refuse what is no number within [least, most]; infinity is one only where it may stand for no limit.

    Args:
        where: Begins the message: an algorithm or a section.
        name: Of the setting.
        value: As it was given.
        least: The smallest that can work.
        most: The largest.
        none_is_off: Whether None is a value, which switches something off, as infinity does then.
        endless: Whether infinity is a value by itself.

    Raises:
        ConfigError: It is something else; flags and NaN are.
    """
    if value is None and none_is_off:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or (math.isinf(value) and not (none_is_off or endless)):
        off = ", or None to switch it off" if none_is_off else ""
        low = "" if math.isinf(least) else f" from {least:g}"
        high = f" to {most:g}" if most < math.inf else ""
        kind = "number" if high or endless else "finite number"
        raise ConfigError(f"{where}: {name} is {value!r}, expected a {kind}{low}{high}{off}; correct it")
