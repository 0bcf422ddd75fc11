"""Names that a package fetches when they are first used, so that importing it imports nothing heavy (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from opcode import opmap
from typing import Any

from menv.migration_hints import hint


def names_on_demand(
    package: str, homes: Mapping[str, str], packages: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        package: Its name.
        homes: The module below it in which each name lives.
        packages: Those below it that `import package` is enough for.

    Raises:
        AttributeError: From the former: the package has no such name; with a hint where it is an old one.
        ImportError: From the former, likewise, for `from package import name`, which would drop the hint.
    """
    names = sorted([*homes, *packages])

    def fetch(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        advice, caller = hint("import", name) or _elsewhere(name), sys._getframe(1)
        if advice and caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]:
            raise ImportError(f"{package} has no {name!r}; {advice}", name=package)
        what_to_do = f"; {advice}" if advice else ""
        raise AttributeError(
            f"module {package!r} has no attribute {name!r}, expected one of {names}{what_to_do}"
        )

    return fetch, lambda: names


def _elsewhere(name: str) -> str | None:
    """Return the hint for a class that another package has; lower names may be modules, which are imported often."""
    if not name[:1].isupper():
        return None
    for package in (
        "menv",
        "menv.algorithms",
        "menv.connectors",
        "menv.envs",
        "menv.serving",
        "menv.wrappers",
    ):
        if name in import_module(package).__all__:
            return f"write from {package} import {name}"
    return None


# SEAM menv._root_link_guard
# Refuses `import wrappers` and `import algorithms`, which the links at the root would make possible.
#
# Called first in `menv/wrappers/__init__.py` and `menv/algorithms/__init__.py`. A package that is imported
# under two names exists twice, so that `isinstance` and `except` fail between the two copies.


def refuse_root_import(module_name: str) -> None:
    """Raise if a package of menv is being imported through its link at the root.

    Args:
        module_name: The `__name__` of the package that is being imported.

    Raises:
        ImportError: The name does not begin with `menv.`.
    """
    if not module_name.startswith("menv."):
        raise ImportError(
            f"import {module_name}: got the link at the root, expected the package menv.{module_name}; "
            f"write `import menv.{module_name}`",
            name=module_name,
        )
