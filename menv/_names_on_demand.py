"""Names that a package hands on when they are first used, so that importing it imports nothing heavy (PEP 562).

The `__init__.py` of each such package calls it. What type checkers are to know stands there, below `TYPE_CHECKING`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
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
            from menv.classic_imports import ELSEWHERE

            advice = ELSEWHERE.get(name)
            if advice is not None and sys._getframe(1).f_code.co_name == "_handle_fromlist":
                raise ImportError(f"{package} has no {name!r}; {advice}", name=package)
            what_to_do = "" if advice is None else f"; {advice}"
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}, expected one of {names}{what_to_do}"
            )
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return fetch, lambda: names
