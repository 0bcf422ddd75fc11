"""Keys of settings: read nested sections, refuse unknown keys, and warn of keys without meaning in menv.

Config classes use it for keywords and sections, `read_config` for whole dicts.
"""

from __future__ import annotations

import difflib
import functools
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, fields
from typing import Any, TypeVar

import numpy as np

from menv.errors import ConfigError
from menv.migration_hints import HINTS, ONLY_VALUES, RENAMED_SETTINGS, hint

S = TypeVar("S")

RENAMED = {"lambda": "lambda_"}
"""Fields of classic keys that are not valid Python names."""

SECTION_KEYS: dict[str, frozenset[str]] = {}
"""Keys by section, such as `model`; `section_named` adds them when a class is imported."""
_NEAR = 0.7
"""Minimum similarity of suggested names."""
_warned: set[str] = set()


@contextmanager
def prefixed(where: str) -> Iterator[None]:
    """Put `where` in front of the message of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from error


def section(section_class: type[S], value: Any, where: str) -> S:
    """Return a nested section, an instance of `section_class` or a dict of its fields."""
    return (
        value
        if isinstance(value, section_class)
        else section_class(**section_values(section_class, value, where))
    )


def section_values(section_class: type[Any], value: Any, where: str) -> dict[str, Any]:
    """Return the keyword arguments for a nested section that is given as a dict."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"config[{where!r}]: {type(value).__name__}, expected a dict; write {where}={{...}}"
        )
    known = {field.name for field in fields(section_class)}
    for key, entry in value.items():
        if key not in known:
            refuse_or_warn(key, entry, known, f"config[{where!r}]: ")
    return {key: entry for key, entry in value.items() if key in known}


def refuse_or_warn(key: Any, value: Any, known: set[str], where: str, *, python_names: bool = False) -> None:
    """Warn once of a key without meaning in menv, accept a value that is menv's behavior anyway, refuse other keys.

    Suggestions are fields with `python_names`, else classic keys.
    """
    if not isinstance(key, str):
        raise ConfigError(
            f"{where}unknown key {key!r:.60}, a {type(key).__name__}, expected the name of a setting; "
            "write it as a string"
        )
    if key in ONLY_VALUES and value == ONLY_VALUES[key]:
        return
    if key in HINTS["setting"] and (value is None or value in (False, [], {})):
        return
    if key in HINTS["ignored setting"]:
        if key not in _warned:
            _warned.add(key)
            warnings.warn(
                f"{where}{key!r} has no meaning in menv and is ignored; leave it out",
                stacklevel=_frames_of_menv(),
            )
        return
    advice = setting_hint(key, known)
    if advice is not None:
        raise ConfigError(f"{where}unknown key {key!r}, expected a known one; {advice}")
    classic = {} if python_names else {old: new for old, new in RENAMED.items() if new in known}
    names = [*sorted(known - set(classic.values())), *classic]
    near = [name for name in names if name.startswith(key)] or difflib.get_close_matches(key, names, 1, _NEAR)
    advice = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
    raise ConfigError(f"{where}unknown key {key!r}, expected a known one; {advice}")


def setting_hint(key: str, known: Container[str]) -> str | None:
    """Return what to write instead of a setting that is not among the known ones."""
    if RENAMED_SETTINGS.get(key) in known:
        return f"it is called {RENAMED_SETTINGS[key]!r} here"
    for name, keys in SECTION_KEYS.items():
        if name in known and key in keys:
            return f'it belongs into {name}: write {name}={{"{key}": ...}}'
    if "lr" in known and (advice := hint("setting of another algorithm", key)) is not None:
        return advice
    return hint("setting", key)


def newly_chosen(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return changes to a section; if they set `prioritized_replay`, the earlier `type` no longer decides it."""
    return {"type": None, **changes} if "prioritized_replay" in changes else changes


def _frames_of_menv() -> int:
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("menv."):
        frame, level = frame.f_back, level + 1
    return level


def by_name(config_class: type[S]) -> type[S]:
    """Make a dataclass explain unknown keywords; a decorator above `dataclass`.

    Classic keys without meaning in menv warn once, as in a dict. numpy numbers and arrays, which random searches
    produce, become Python numbers and lists.
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
        # A name such as "lambda" is no Python keyword argument, but `**settings` can contain it.
        old = {key: name for key, name in RENAMED.items() if name in known and name not in given}
        settings = {old.get(key, key): value for key, value in given.items()}
        for name, value in settings.items():
            if name not in known:
                refuse_or_warn(name, value, known, f"{config_class.__name__}: ", python_names=True)
        build(self, **{name: _plain(value) for name, value in settings.items() if name in known})

    type.__setattr__(config_class, "__init__", init)
    type.__setattr__(config_class, "__setattr__", _stay)
    return config_class


def section_named(name: str) -> Callable[[type[S]], type[S]]:
    """Return `by_name` for the dataclass of the section of this name."""

    def decorated(section_class: type[S]) -> type[S]:
        SECTION_KEYS[name] = frozenset(field.name for field in fields(section_class))  # type: ignore[arg-type]
        return by_name(section_class)

    return decorated


def _stay(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(
        f"{type(self).__name__}: {name} is assigned to, expected settings to stay unchanged; "
        f"call dataclasses.replace(config, {name}=...), which returns a changed copy"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
