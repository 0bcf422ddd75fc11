"""Settings, read as the nested dict that classic configs were.

A base class of `AlgorithmConfig`. Nothing is changed through it: `copy()` gives a dict of the caller's own, which an
algorithm takes as its config.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from menv.algorithms.config.keys import RENAMED, setting_hint

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
