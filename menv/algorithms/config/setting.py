"""One line for each setting: config classes state their settings as fields, and `table` is what all others read.

An annotation says which values a setting may have; `setting` adds bounds and other names. msgspec checks values when a
config is made. Unknown keys are refused with the nearest known one, and keys without meaning in menv warn once.
`check_stored` checks numbers in checkpoints.
"""

from __future__ import annotations

import difflib
import functools
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, FrozenInstanceError, field, fields
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import numpy as np

from menv.errors import ConfigError
from menv.migration_hints import HINTS, ONLY_VALUES, hint

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


S = TypeVar("S")
T = TypeVar("T")

_NEAR = 0.7
"""Minimum similarity of suggested names."""
_warned: set[str] = set()
_tables: dict[type[Any], Mapping[str, Setting]] = {}


class Facts(TypedDict, total=False):
    """What a setting says about itself, beyond its annotation and default.

    A class that states a setting again keeps the facts that it does not repeat.
    """

    low: float
    """Minimum; 1 for integers and none for other numbers by default."""
    high: float
    """Maximum."""
    positive: bool
    """Whether 0 is refused."""
    old: str
    """Names in RLlib and Stable-Baselines3, separated by spaces: the builder chain accepts them, dicts explain them."""
    classic: object
    """RLlib's spelling of the default, such as 0 for `evaluation_interval`."""
    scope: Literal["run", "schedule", "policy", "network", "connectors"]
    """Who may have a different value: "run", evaluations; "schedule", none; "policy", policies and evaluations;
    "network" and "connectors", policies only, because the setting defines them. The default is "run" for settings of
    every algorithm, else "policy"."""


def setting(default: T, **facts: Unpack[Facts]) -> T:
    """Return the field of a setting; each config has a separate copy of a dict."""
    if isinstance(default, dict):
        return cast(T, field(default_factory=default.copy, metadata=facts))
    return field(default=default, metadata=facts)


_WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "a name", Mapping: "a dict"}


class Setting(NamedTuple):
    """One setting of a config class.

    Attributes:
        kind: The type of its values, apart from single ones such as "auto" or None; a section's class.
        type: What msgspec checks.
        rule: The same in words.
    """

    name: str
    default: Any
    kind: Any
    type: Any
    rule: str
    facts: Facts

    @property
    def key(self) -> str:
        """Its name in dicts: "lambda" is not a name of Python."""
        return self.name.removesuffix("_")

    @property
    def section(self) -> type[Settings] | None:
        """The config class of its values, such as `ModelConfig`."""
        return self.kind if isinstance(self.kind, type) and issubclass(self.kind, Settings) else None

    def read(self, where: str, value: object) -> Any:
        """Return a given value: sections as objects, numbers and arrays of numpy as Python's.

        Raises:
            ConfigError: The setting cannot have this value.
        """
        if self.section is not None:
            return section(self.section, value, self.name)
        value, classic = _plain(value), self.facts.get("classic", MISSING)
        if type(value) is type(classic) and value == classic:
            return self.default
        if self.kind is Mapping and isinstance(value, Mapping):
            return value
        try:
            return msgspec.convert(value, self.type)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{where}: {self.key} is {shown(value)}, expected {self.rule}; correct the value"
            ) from error


def table(config_class: type[Any]) -> Mapping[str, Setting]:
    """Return the settings of a config class by name."""
    if config_class not in _tables:
        _tables[config_class] = _read_table(config_class)
    return _tables[config_class]


def _read_table(config_class: type[Any]) -> Mapping[str, Setting]:
    annotations = get_type_hints(config_class, include_extras=True)
    rows: dict[str, Setting] = {}
    for one in fields(config_class):
        facts: dict[str, Any] = {}
        for base in reversed(config_class.__mro__):
            stated = vars(base).get("__dataclass_fields__", {}).get(one.name)
            facts |= stated.metadata if stated else {}
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        rows[one.name] = Setting(
            one.name, default, *_checks(annotations[one.name], facts), cast(Facts, facts)
        )
    return rows


def _checks(annotation: Any, facts: Mapping[str, Any]) -> tuple[Any, Any, str]:
    """Return the kind, the type for msgspec and the rule of a setting."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    choices = {part: _choices(part, parts) for part in parts}
    kinds = [part for part in parts if not choices[part]]
    listed = [repr(choice) for found in choices.values() for choice in found]
    if not kinds:
        return None, annotation, f"one of {', '.join(listed)}"
    kind = Mapping if get_origin(kinds[0]) is Mapping else kinds[0]
    if get_origin(kind) is Annotated:
        return kind, annotation, kinds[0].__metadata__[0].description
    if len(kinds) > 1 or kind not in _WORDS:
        # A section, a function or one of several types, which the config class checks itself.
        return kind, Any, ""
    checked, words = _bounded(kind, facts)
    return kind, Union[(checked, *(part for part in parts if choices[part]))], ", or ".join([words, *listed])


def _bounded(kind: Any, facts: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a type with the bounds of a setting, and both in words."""
    words = _WORDS[kind]
    if kind not in (int, float):
        return {str: Annotated[str, msgspec.Meta(min_length=1)], Mapping: dict}.get(kind, kind), words
    least, most = (1, MOST) if kind is int else (-LARGEST, LARGEST)
    low, high = facts.get("low", least), facts.get("high", most)
    bounds = {"gt": 0} if facts.get("positive") else {"ge": low}
    words += " above 0" if "gt" in bounds else f" from {low}"
    if high < math.inf:
        bounds["le"] = high
        words += f" to {high}" if high != MOST else ""
    return Annotated[kind, msgspec.Meta(**bounds)], words


def _choices(part: object, parts: tuple[object, ...]) -> tuple[object, ...]:
    if part is NoneType:
        return (None,)
    if part is bool and float in parts:
        return (True, False)
    return get_args(part) if get_origin(part) is Literal else ()


class Settings:
    """Base of the config classes, which are frozen dataclasses: checks their settings when one is made."""

    _where: ClassVar[str] = "config"
    """The beginning of error messages."""

    def __post_init__(self) -> None:
        values = vars(self)
        values |= {row.name: row.read(self._where, values[row.name]) for row in table(type(self)).values()}


def field_name(key: str, known: Mapping[str, Setting]) -> str:
    """Return the name of the field that a key of a dict sets, the key itself if there is none."""
    return f"{key}_" if f"{key}_" in known else key


def renamed(key: str, known: Mapping[str, Setting]) -> str | None:
    """Return the name of a setting that had the name `key` in another library or is written so in dicts."""
    return next(
        (row.name for row in known.values() if key in (*row.facts.get("old", "").split(), row.key)), None
    )


@contextmanager
def prefixed(where: str) -> Iterator[None]:
    """Put `where` in front of the message of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from error


def section(section_class: type[S], value: object, where: str) -> S:
    """Return a nested section, an instance of `section_class` or a dict of its fields."""
    return (
        value
        if isinstance(value, section_class)
        else section_class(**section_values(section_class, value, where))
    )


def section_values(section_class: type[Any], value: object, where: str) -> dict[str, Any]:
    """Return the keyword arguments for a nested section that is given as a dict."""
    switch = "enabled" in table(section_class)
    if switch and isinstance(value, bool):
        return {"enabled": value}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"config[{where!r}]: {type(value).__name__}, expected a dict; write {where}={{...}}"
        )
    return known_values(
        section_class, {"enabled": True, **value} if switch else value, f"config[{where!r}]: "
    )


def known_values(
    config_class: type[Any],
    given: Mapping[Any, Any],
    where: str = "config: ",
    *,
    python_names: bool = False,
) -> dict[str, Any]:
    """Return the values of a config's settings by the names of their fields; refuse or warn of others."""
    known = table(config_class)
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = field_name(key, known)
        if name not in known or (name != key and name in given):
            refuse_or_warn(key, value, known, where, python_names=python_names)
        else:
            values[name] = value
    return values


def refuse_or_warn(
    key: Any, value: object, known: Mapping[str, Setting], where: str, *, python_names: bool = False
) -> None:
    """Warn once of a key without meaning in menv, accept a value that is menv's behavior anyway, refuse other keys.

    Suggestions are fields with `python_names`, else classic keys.
    """
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
    if advice is None:
        names = sorted(known) if python_names else [row.key for _, row in sorted(known.items())]
        near = [name for name in names if name.startswith(f"{key}")] or difflib.get_close_matches(
            f"{key}", names, 1, _NEAR
        )
        advice = f"did you mean {near[0]!r}?" if near else "docs/reference/settings.md lists them"
    raise ConfigError(f"{where}unknown key {key!r:.60}, expected a known one; {advice}")


def setting_hint(key: str, known: Mapping[str, Setting]) -> str | None:
    """Return what to write instead of a setting that is not among the known ones."""
    if (name := renamed(key, known)) is not None:
        return f"it is called {name!r} here"
    for row in known.values():
        if row.section is not None and key in table(row.section):
            return f'it belongs into {row.name}: write {row.name}={{"{key}": ...}}'
    return hint("setting", key)


def _frames_of_menv() -> int:
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("menv."):
        frame, level = frame.f_back, level + 1
    return level


def by_name(config_class: type[S]) -> type[S]:
    """Make a dataclass explain unknown keywords; a decorator above `dataclass`.

    Classic keys without meaning in menv warn once, as in a dict.
    """
    build: Any = vars(config_class)["__init__"]

    @functools.wraps(build)
    def init(self: S, **given: Any) -> None:
        # A name such as "lambda" is not a Python keyword argument, but `**settings` can contain it.
        where = f"{config_class.__name__}: "
        build(self, **known_values(config_class, given, where, python_names=True))

    type.__setattr__(config_class, "__init__", init)
    type.__setattr__(config_class, "__setattr__", _stay)
    return config_class


def _stay(self: object, name: str, value: object) -> None:
    known = table(type(self))
    here = name if name in known else renamed(name, known)
    advice = f"call dataclasses.replace(config, {here or 'name'}=...), which returns a changed copy"
    if here is None:
        advice = setting_hint(name, known) or hint("ignored setting", name) or advice
    raise FrozenInstanceError(
        f"{type(self).__name__}: {name} cannot be assigned, because settings are frozen; {advice}"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
