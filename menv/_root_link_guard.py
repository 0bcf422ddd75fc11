"""Refuses `import wrappers` and `import algorithms`, which the links at the root would make possible.

Called first in `menv/wrappers/__init__.py` and `menv/algorithms/__init__.py`. A package that is imported
under two names exists twice, so that `isinstance` and `except` fail between the two copies.
"""

from __future__ import annotations


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
