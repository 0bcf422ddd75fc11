"""Own environments, classes and functions of a run: shown, and imported only with `--trust`.

A run folder and its checkpoints hold names, no code, and reading them imports nothing. With `--trust` `reopened`
imports these names, so that they do not have to be typed again.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from menv.algorithms.config.stored_config import NamedOnlyError, named_objects, stored_setting
from menv.algorithms.recipe import recipe_named
from menv.callbacks import DefaultCallbacks
from menv.cli.arguments import IMPORT, import_modules, option, print_error, switch, with_objects
from menv.errors import ConfigError, UnknownNameError
from menv.inference.checkpoint_folder import LEVELS, find_checkpoint, read_manifest
from menv.registry import names_module
from menv.serialization import shell_line, shell_word
from menv.tracking.run_folder import Run

T = TypeVar("T")
Missing = tuple[tuple[Any, ...], str]
"""The path of a setting, and what it was."""

_NAME = re.compile(r"(class |function )?((?:[\w.]+|[^:]+\.py):[\w./(),=-]+|[\w.]+\.\w+)")
_MODULE = re.compile(r"[\w.]+|.+\.py")
_SERVED = "an instance of menv.cli.serve:ServedPolicies"
_DEEPEST = 2
"""Maximum number of keys in a path that `--config` can set, below `evaluation_config` one more."""


def take_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option `--trust`."""
    switch(parser, "--trust", "import the environment, classes and functions that the run names")


def take_env(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that open a run: `--env` and `--trust`."""
    option(parser, "--env", "the environment, as for train, if the run cannot name it", metavar="ENV")
    take_trust(parser)


def take_level(parser: argparse._ActionsContainer) -> None:
    """Add the option `--level`."""
    option(parser, "--level", "how strong the policies are, by the ratings of the league", choices=LEVELS)


def reopened(args: argparse.Namespace, run: str, load: Callable[[], T], *, learns: bool = False) -> T:
    """Return what `load` makes of a run, with the objects that the run names if `--trust` lets it import them.

    Args:
        args: Of `parsed`, with `trust`.
        run: The run folder, or a checkpoint.
        load: Reads the run; called again after the imports.
        learns: Whether callbacks are needed. Otherwise callbacks that are not imported are left out.

    Raises:
        ConfigError: Names are missing; it says which, and the command that imports them.
    """
    known: dict[str, Any] = {_SERVED: "sampler"}
    algorithm = _algorithm_of(Path(run))
    if args.trust and algorithm is not None:
        print_error(f"importing {algorithm}, which the run names")
        recipe_named(algorithm, "--run")
    try:
        with named_objects(known):
            return load()
    except UnknownNameError:
        if args.trust or algorithm is None:
            raise
        raise ConfigError(
            f"{run}: the run's algorithm is {algorithm}, which a run folder holds by name only; add --trust to import "
            f"it: {shell_line(args.typed)} --trust"
        ) from None
    except NamedOnlyError as error:
        missing = sorted(error.missing, key=lambda one: one[0] != ("env",))
    spare = [] if learns else [one for one in missing if one[0][-1] == "callbacks"]
    needed = [one for one in missing if one not in spare]
    known |= {was: DefaultCallbacks for _, was in spare}
    imports, importable = [*_imports(Path(run))], _importable(missing)
    names = [*imports, *importable]
    if names and needed and not args.trust:
        raise ConfigError(_advice(args, needed, names))
    if names and args.trust:
        print_error(f"importing {', '.join(names)}, which the run names")
        import_modules([name for name in imports if name not in importable])
        known |= {was: _object(was) for was in importable.values()}
    try:
        with named_objects(known):
            return load()
    except NamedOnlyError as error:
        raise ConfigError(_advice(args, error.missing, [])) from None


def as_opened(run: Path) -> str:
    """Return a run folder as commands that open it write it, with `--trust` if they import something.

    Returns:
        The words, quoted; "" if no command can open the run because it names no environment.
    """
    stored = read_manifest(find_checkpoint(str(run)))["config"]
    imports = any(_imports(run)) or _algorithm_of(run) is not None
    try:
        with named_objects({_SERVED: "sampler"}):
            stored_setting({"config": stored}, "config")
    except NamedOnlyError:
        imports = True
    return "" if stored["env"] is None else shell_word(str(run)) + " --trust" * imports


def _imports(run: Path) -> Iterator[str]:
    """Yield the modules of `--import` in the commands of a run."""
    named = _options(run, IMPORT)
    yield from dict.fromkeys(name for name in named if name.isprintable() and _MODULE.fullmatch(name))


def _algorithm_of(run: Path) -> str | None:
    """Return the algorithm outside menv that `--run` named in the commands of a run."""
    named = _options(run, "--run")
    return next((name for name in named if name.isprintable() and names_module(name)), None)


def _options(run: Path, option: str) -> list[str]:
    """Return the values of an option in the commands of a run."""
    for folder in (run, *run.resolve().parents[:2]):
        with suppress(ConfigError, ValueError):
            words = shlex.split(" ".join(Run(folder).command.splitlines()))
            named = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
            return named + [name for word, name in pairwise(words) if word == option]
    return []


def _importable(missing: list[Missing]) -> dict[str, str]:
    """Return the names that can be imported, and what the checkpoint calls them."""
    found = {}
    for _, was in missing:
        named = _NAME.fullmatch(was)
        if named is not None and was.isprintable() and not named[2].startswith("__main__"):
            found[named[2]] = was
    return found


def _object(was: str) -> Any:
    """Return the object of a name in a checkpoint; a string is the setting itself."""
    kind, _, name = was.rpartition(" ")
    return with_objects(f"@{name}") if kind in ("class", "function") else was


def _advice(args: argparse.Namespace, missing: list[Missing], names: list[str]) -> str:
    by_name = {*_importable(missing).values()} if names else set()
    # What registers an environment is among the names.
    left = [(path, was) for path, was in missing if not (names and path == ("env",) and ":" not in was)]
    typed = dict.fromkeys(_as_argument(args, path, was) for path, was in left if was not in by_name)
    advice = " ".join(typed)
    if names:
        command = " ".join([shell_line(args.typed), "--trust", *typed])
        advice = f"--trust to import {', '.join(names)}: {command}"
    return f"{NamedOnlyError(missing).summary}; add {advice}"


def _as_argument(args: argparse.Namespace, path: tuple[Any, ...], was: str) -> str:
    if path == ("env",):
        return "--env module:name" if ":" in was else f"{IMPORT} and the module that registers {was!r}"
    if hasattr(args, "config"):
        deepest = _DEEPEST + (path[0] == "evaluation_config")
        return f"--config {'.'.join(map(str, path[:deepest]))}=@module:name"
    if path == ("multiagent", "policy_mapping_fn") and hasattr(args, "policies"):
        return "--policy AGENT=POLICY"
    return f"{path[0]} of menv.playing.Game, in Python"
