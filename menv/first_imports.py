"""Modules that are imported first, because a person named them: they may call `register_env`.

The commands take them as `--import`, `verify_backends` as `modules`, and the processes that they start import them too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from menv.errors import ConfigError, MenvError, UnknownNameError

IMPORT = "--import"
"""The option of all commands."""


def take_imports(parser: argparse.ArgumentParser) -> None:
    """Let a command take modules that `import_first` is to import, as `modules`."""
    parser.add_argument(
        IMPORT, metavar="MODULE", dest="modules", action="append", default=[],
        help="a module or .py file to import first, which may call register_env",
    )  # fmt: skip


def json_settings(text: str) -> dict[str, Any]:
    """Return the object that an option of a command holds as JSON."""
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no JSON ({error}), expected an object with keys in double quotes"
        ) from None
    if not isinstance(settings, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return settings


def and_how_to_import(error: MenvError) -> str:
    """Return what a command says of an error; of a name that nobody has registered, which option imports who does."""
    hint = f"; {IMPORT} MODULE imports a module that does" if isinstance(error, UnknownNameError) else ""
    return f"{error}{hint}"


def import_first(modules: Sequence[str], where: str = IMPORT) -> None:
    """Import modules, or files, whose folders come onto the path so that workers find them too.

    Args:
        modules: Names of modules, or paths of .py files.
        where: Begins messages.

    Raises:
        ConfigError: There is no such module or file. What it raises itself is raised as it is.
    """
    for name in modules:
        path = Path(name)
        if path.suffix == ".py":
            if not path.is_file():
                raise ConfigError(
                    f"{where} {name}: no such file, expected a module or a .py file; check the path"
                )
            folder = str(path.resolve().parent)
            if folder not in sys.path:
                sys.path.append(folder)
            name = path.stem
        import_named(name, f"{where} {name}")


def import_named(name: str, where: str) -> Any:
    """Return a module that a person named.

    Args:
        name: Of the module, with dots.
        where: Begins the message.

    Raises:
        ConfigError: There is no such module. What it raises itself is raised as it is.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"{where}: there is no module {name}, expected one on the path, which ends with {os.getcwd()}; check the "
            "name, or go to the folder that it lies in"
        ) from None
