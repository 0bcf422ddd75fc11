"""Keys of config dicts: reading nested sections, refusing unknown keys, warning about those without meaning.

`classic_keys` reads the whole dict with it, `algorithm_config` the sections that are given as dicts.
"""

from __future__ import annotations

import difflib
import functools
import sys
import warnings
from collections.abc import Callable, Container, ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager, suppress
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from menv.errors import ConfigError
from menv.migration_hints import HINTS, ONLY_VALUES, RENAMED_SETTINGS, hint

S = TypeVar("S")

RENAMED = {"lambda": "lambda_"}
"""Classic keys that are no Python names, and the fields that they mean."""

SECTION_KEYS: dict[str, frozenset[str]] = {}
"""The keys of each section, such as `model`, whose class has been imported; `section_named` adds them."""
_NEAR = 0.7
"""How alike a name has to be that is suggested; less is another word with letters in common."""
_warned: set[str] = set()


@contextmanager
def prefixed(where: str) -> Iterator[None]:
    """Let what is wrong with settings begin with `where` they were given.

    Raises:
        ConfigError: One of the settings is wrong.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from error


def section(section_class: type[S], value: Any, where: str) -> S:
    """Return a nested section, an instance of `section_class` or a dict of its fields.

    Raises:
        ConfigError: It is neither, or has an unknown key.
    """
    return (
        value
        if isinstance(value, section_class)
        else section_class(**section_values(section_class, value, where))
    )


def section_values(section_class: type[Any], value: Any, where: str) -> dict[str, Any]:
    """Return the keyword arguments that the dict of a nested section means."""
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
    """Warn once about a key without meaning; refuse any other unknown key, unless it says what holds anyhow.

    Args:
        key: As it was given.
        value: Of the key.
        known: Names of the fields.
        where: Begins the message.
        python_names: Whether near names are those of the fields, rather than classic keys.
    """
    if not isinstance(key, str):
        raise ConfigError(
            f"{where}unknown key {key!r:.60}, a {type(key).__name__}, expected the name of a setting; "
            "write it as a string"
        )
    if key in ONLY_VALUES and value == ONLY_VALUES[key]:
        return
    if key in HINTS["setting"] and (value is None or value in (False, [], {})):
        # It is off, as here.
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


def _frames_of_menv() -> int:
    """Return the `stacklevel` of the line outside menv that led here."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("menv."):
        frame, level = frame.f_back, level + 1
    return level


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


# SEAM menv.algorithms.config.read_as_dict
# Settings, read as the nested dict that classic configs were.
#
# A base class of `AlgorithmConfig`. Nothing is changed through it: `copy()` gives a dict of the caller's own,
# which an
# algorithm takes as its config.


_CLASSIC = {name: key for key, name in RENAMED.items()}


class ReadAsDict:
    """What a dataclass of settings has in common with a dict of them, keyed as in classic configs."""

    def __getitem__(self, key: str) -> Any:
        """Return a setting; a section is a dict of its own.

        Raises:
            KeyError: There is none of this name.
        """
        name, known = RENAMED.get(key, key), _names(self)
        if name not in known:
            hint = setting_hint(key, known) or "keys() has them all"
            raise KeyError(f"config: no setting {key!r}, expected one that there is; {hint}")
        value = vars(self)[name]
        return {inner: getattr(value, inner) for inner in _names(value)} if is_dataclass(value) else value

    def __setitem__(self, key: str, value: Any) -> None:
        """Say how settings are changed.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"config[{key!r}]: settings stay as they are, expected them to be read; change a copy() and build from that"
        )

    def __contains__(self, key: object) -> bool:
        return RENAMED.get(str(key), key) in _names(self)

    def __iter__(self) -> Iterator[str]:
        return iter([_CLASSIC.get(name, name) for name in _names(self)])

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting, `default` if there is none of this name."""
        with suppress(KeyError):
            return self[key]
        return default

    def keys(self) -> KeysView[str]:
        """Return the names, as classic configs spell them."""
        return self.copy().keys()

    def values(self) -> ValuesView[Any]:
        """Return the settings."""
        return self.copy().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the settings by name."""
        return self.copy().items()

    def copy(self) -> dict[str, Any]:
        """Return the settings as a dict that may be changed, and given to an algorithm as its `config`."""
        return {key: self[key] for key in self}

    def to_dict(self) -> dict[str, Any]:
        """Return the same as `copy`."""
        return self.copy()


def _names(settings: Any) -> list[str]:
    return [field.name for field in fields(settings)]
