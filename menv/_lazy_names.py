"""Lazy imports of packages (PEP 562): a name is imported when it is first used, so that `import menv` stays light.

The imports under `if TYPE_CHECKING:` in a package's `__init__.py` are the only list of its names: type checkers and
`lazy_names` read the same lines.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from opcode import opmap
from typing import Any

from menv.migration_hints import hint

_PACKAGES = ("menv", "menv.algorithms", "menv.connectors", "menv.envs", "menv.serving", "menv.wrappers")


def lazy_names(
    package: str, subpackages: Sequence[str] = ()
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__all__`, `__getattr__` and `__dir__` of a package.

    `__getattr__` raises an AttributeError for an unknown name, with a hint for an old one. In a
    `from` import it raises an ImportError instead, because Python would drop the hint.
    """
    modules = {
        alias.name: statement.module
        for block in ast.parse(inspect.getsource(sys.modules[package])).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
    names = sorted([*modules, *subpackages])

    def fetch(name: str) -> Any:
        if name in subpackages:
            return import_module(f"{package}.{name}")
        if name in modules:
            return getattr(import_module(modules[name]), name)
        advice, caller = hint("import", name) or _elsewhere(name), sys._getframe(1)
        if advice and caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]:
            raise ImportError(f"{package} has no {name!r}; {advice}", name=package)
        what_to_do = f"; {advice}" if advice else ""
        raise AttributeError(
            f"module {package!r} has no attribute {name!r}, expected one of {names}{what_to_do}"
        )

    return sorted(modules), fetch, lambda: names


def _elsewhere(name: str) -> str | None:
    """Return the hint for a class of another package; lower-case names may be modules, which are looked up often."""
    for package in _PACKAGES if name[:1].isupper() else ():
        if name in import_module(package).__all__:
            return f"write from {package} import {name}"
    return None


def refuse_root_import(module_name: str) -> None:
    """Raise an ImportError if a package is imported through its link at the root, as `import wrappers`.

    A package that is imported under two names exists twice, so that `isinstance` and `except` fail between the copies.
    """
    if not module_name.startswith("menv."):
        raise ImportError(
            f"import {module_name}: got the link at the root, expected the package menv.{module_name}; "
            f"write `import menv.{module_name}`",
            name=module_name,
        )
