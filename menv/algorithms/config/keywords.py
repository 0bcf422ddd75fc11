"""Keywords of the config classes: those that no field has are refused in the words of a dict's unknown keys.

The classes of the settings and of their sections are decorated with it; `keys` has the words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any, TypeVar

import numpy as np

from menv.algorithms.config.keys import RENAMED, SECTION_KEYS, refuse_or_warn
from menv.errors import ConfigError

S = TypeVar("S")


def by_name(config_class: type[S]) -> type[S]:
    """Let a dataclass say what is wrong with keywords that are none of its fields; a decorator above `dataclass`.

    Those that classic configs have, and that mean nothing here, warn once, as they do in a dict. Numbers and arrays
    of numpy, as whoever draws settings at random has them, are taken for Python's numbers and lists, in lists too.

    Raises:
        ConfigError: From the class, when it is called: there is no such setting, or something has no name.
    """
    names = [field.name for field in fields(config_class)]  # type: ignore[arg-type]
    known, first = set(names), "env" if "env" in names else names[0]
    build: Any = vars(config_class)["__init__"]

    @functools.wraps(build)
    def init(self: S, *args: Any, **given: Any) -> None:
        if args:
            raise ConfigError(
                f"{config_class.__name__}: {args[0]!r:.60} without a name, expected settings by name; write "
                f"{config_class.__name__}({first}=...), or {config_class.__name__}(**settings) for a dict of them"
            )
        # What is no keyword in Python, such as "lambda", can come from a dict all the same.
        old = {key: name for key, name in RENAMED.items() if name in known and name not in given}
        settings = {old.get(key, key): value for key, value in given.items()}
        strange = settings.keys() - known
        if strange:
            _judge({name: settings[name] for name in settings if name in strange}, known, config_class)
        build(self, **{name: _plain(value) for name, value in settings.items() if name in known})

    type.__setattr__(config_class, "__init__", init)
    type.__setattr__(config_class, "__setattr__", _stay)
    return config_class


def section_named(name: str) -> Callable[[type[S]], type[S]]:
    """Return a decorator like `by_name` for the dataclass of a config's section of this name."""

    def decorated(section_class: type[S]) -> type[S]:
        SECTION_KEYS[name] = frozenset(field.name for field in fields(section_class))  # type: ignore[arg-type]
        return by_name(section_class)

    return decorated


def _stay(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(
        f"{type(self).__name__}: {name} is assigned to, expected settings to stay as they are; "
        f"call dataclasses.replace(config, {name}=...), which returns a changed copy"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _judge(strange: dict[str, Any], known: set[str], config_class: type[Any]) -> None:
    for name, value in strange.items():
        refuse_or_warn(name, value, known, f"{config_class.__name__}: ", python_names=True)
