"""SpecConfig: what a `PolicySpec` says about its policy, as the policy's `config`.

`Policy` makes one; those of an algorithm's policies look into its settings as well. It knows none of them itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any


class SpecConfig(dict[str, Any]):
    """A dict of the spec's items, which says where all others are.

    Args:
        own: The spec's items.
        settings: Answers for keys that are not among them, if there is anything that does.
    """

    def __init__(self, own: Mapping[str, Any], settings: Any = None) -> None:
        super().__init__(own)
        self._settings = settings

    def __reduce__(self) -> Any:
        # Settings hold whatever users give an algorithm, which need not travel; who needs them elsewhere brings them.
        return SpecConfig, (dict(self),)

    def __missing__(self, key: str) -> Any:
        """Return what the settings have; policies of the classic kind were given all of them.

        Raises:
            KeyError: There is nothing of this name.
        """
        if self._settings is not None:
            return self._settings[key]
        raise KeyError(
            f"policy config: no {key!r}, expected one of {sorted(self, key=str)}, which is what the PolicySpec says; "
            "add it there, or read algorithm.config in callbacks"
        )

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (self._settings is not None and key in self._settings)

    def get(self, key: str, default: Any = None) -> Any:
        """Return an item or a setting, `default` if there is none of this name."""
        with suppress(KeyError):
            return self[key]
        return default
