"""Modules that are imported when a test first uses them, because every process of a run collects all tests."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """A module, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # pytest asks every object of a file for some attributes of its own.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
