"""The public names of menv with their parameters and defaults, one line each, and the options of the command `menv`.

`tests/house/public_names.txt` holds them, so that a change of a public name is a deliberate one.

python -m tests.house.public_names --write    writes that file
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from tests.house.sources import ROOT

PAGE = Path(__file__).with_suffix(".txt")
PACKAGES = (
    "menv",
    "menv.algorithms",
    "menv.connectors",
    "menv.wrappers",
    "menv.envs",
    "menv.offline",
    "menv.serving",
    "menv.checking",
    "menv.tune",
    "menv.verify",
)
PUBLIC = re.compile("[^_].*|__(call|contains|delitem|enter|exit|getitem|iter|len|next|setitem)__")
"""Names without an underscore in front, and special methods that users call through syntax."""


def page() -> str:
    """Return the whole file."""
    names = {line for package in PACKAGES for line in package_lines(package)}
    return "\n".join([*sorted(names), *command_lines()]) + "\n"


def package_lines(package: str) -> Iterator[str]:
    """Yield a line for each name that `package` exports and for each public member of its classes."""
    for name, value in exported(package).items():
        where = f"{package}.{name}"
        yield where + (_parameters(value) if callable(value) else "")
        if isinstance(value, type):
            yield from (f"{where}.{line}" for line in member_lines(value))


def exported(package: str) -> dict[str, Any]:
    """Return what `package` exports, by name."""
    module = import_module(package)
    return {name: getattr(module, name) for name in getattr(module, "__all__", ())}


def member_lines(owner: type[Any]) -> list[str]:
    """Return a line for each public member of a class of menv."""
    return [name + _member(value) for name, value in members(owner).items()]


def members(owner: type[Any]) -> dict[str, Any]:
    """Return the public members that a class of menv has from itself or from other classes of menv."""
    defined: dict[str, Any] = {}
    for base in reversed(_own(owner)):
        defined |= dict.fromkeys([*inspect.get_annotations(base), *_documented(base)])
        defined |= vars(base)
    # A name that its class refuses to give only says what to use instead.
    return {
        name: value
        for name, value in defined.items()
        if PUBLIC.fullmatch(name) and (value is None or hasattr(owner, name))
    }


def _own(owner: type[Any]) -> list[type[Any]]:
    """Return a class and its bases as far as they are classes of menv."""
    return [base for base in owner.__mro__ if base.__module__.split(".")[0] == "menv"]


def _documented(owner: type[Any]) -> list[str]:
    """Return the names below `Attributes:` in a class's own docstring."""
    text = inspect.cleandoc(vars(owner).get("__doc__") or "")
    _, _, attributes = text.partition("\nAttributes:\n")
    return re.findall(r"^ {4}(\w+)(?: \(.*?\))?:", re.split(r"\n(?=\S)", attributes)[0], re.M)


def _member(value: Any) -> str:
    if isinstance(value, classmethod | staticmethod):
        return f"{_parameters(value.__func__)} {type(value).__name__}"
    if isinstance(value, property):
        return "" if value.fset is None else " settable"
    return _parameters(value) if inspect.isroutine(value) else ""


def _parameters(target: Callable[..., Any]) -> str:
    if isinstance(target, type) and not any(
        "__init__" in vars(base) or "__new__" in vars(base) for base in _own(target)
    ):
        return ""
    signature = inspect.signature(target)
    kept = [
        one.replace(annotation=one.empty, default=_Default(one.default) if one.default is not one.empty else one.empty)
        for one in signature.parameters.values()
    ]  # fmt: skip
    return str(signature.replace(parameters=kept, return_annotation=signature.empty))


class _Default:
    """A default, printed without the modules of classes and the addresses of objects."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        value = self.value
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, type):
            return value.__name__
        parts = value if isinstance(value, tuple) else [value]
        plain = all(one is None or type(one) in (bool, int, float, str) for one in parts)
        return repr(value) if plain or value == {} else "..."


class _Asked(BaseException):
    """A command has built its parser and would read its arguments."""


def command_lines() -> Iterator[str]:
    """Yield a line for each argument of each command of `menv`."""
    for command, parser in parsers().items():
        for action in arguments_of(parser):
            yield f"menv {command} {argument(action)}"


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command of `menv`."""
    owned = {command: (parser, _parser(command)) for command, parser in _commands(_parser("--help")).items()}
    return {command: parser if _commands(own) else own for command, (parser, own) in owned.items()}


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in arguments_of(parser) if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def argument(action: argparse.Action) -> str:
    """Return the names, the values and the default of an argument."""
    values = "" if action.nargs == 0 else action.metavar or action.dest.upper()
    choices = "" if action.choices is None else f" {{{','.join(action.choices)}}}"
    default = "" if action.default in (None, argparse.SUPPRESS) else f" = {action.default!r}"
    return " ".join([*action.option_strings, str(values)]).strip() + choices + default


def _parser(argument: str) -> argparse.ArgumentParser:
    """Return the parser that the program builds for this first argument."""
    built: list[argparse.ArgumentParser] = []

    def ask(self: argparse.ArgumentParser, *args: Any) -> NoReturn:
        built.append(self)
        raise _Asked

    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    module, _, main = scripts["menv"].partition(":")
    with mock.patch("argparse.ArgumentParser.parse_args", ask), contextlib.suppress(_Asked):
        getattr(import_module(module), main)([argument])
    (parser,) = built
    return parser


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), "utf-8")
    else:
        sys.exit("usage: python -m tests.house.public_names --write")
