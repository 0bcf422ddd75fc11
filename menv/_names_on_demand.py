"""Names that a package hands on when they are first used, so that importing it imports nothing heavy (PEP 562).

The `__init__.py` of each such package calls it. What type checkers are to know stands there, below `TYPE_CHECKING`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from opcode import opmap
from typing import Any


def names_on_demand(
    package: str, homes: Mapping[str, str], packages: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        package: Its name.
        homes: The module below it in which each name lives.
        packages: Those below it that `import package` is enough for.

    Raises:
        AttributeError: From the former: the package has no such name.
        ImportError: From the former: `from menv import ...` asks for a classic name; of an AttributeError it would tell
            nothing.
    """
    names = sorted([*homes, *packages])

    def fetch(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise no_such_name(package, name, names)
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return fetch, lambda: names


def no_such_name(module: str, name: str, names: Sequence[str]) -> AttributeError | ImportError:
    """Return the error for a name that `module` does not have; for a classic name it says what to write instead.

    The `__getattr__` of a module raises it. `from module import name` replaces an AttributeError by one without advice,
    so that it gets an ImportError.
    """
    from menv.classic_imports import ELSEWHERE

    advice = ELSEWHERE.get(name)
    caller = sys._getframe(2)
    if advice is not None and caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]:
        return ImportError(f"{module} has no {name!r}; {advice}", name=module)
    what_to_do = "" if advice is None else f"; {advice}"
    return AttributeError(f"module {module!r} has no attribute {name!r}, expected one of {names}{what_to_do}")
