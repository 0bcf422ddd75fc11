"""`menv doctor`: the versions of menv, of Python and of each extra's packages, and the GPUs that torch finds."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Sequence

import menv
from menv.algorithms.training.torch_threads import gpu_names
from menv.cli.arguments import Parser, print_text

_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*extra\s*==\s*[\"']([\w-]+)[\"'])?")


def main(arguments: Sequence[str] | None = None, program: str = "menv doctor") -> int:
    """Print the report and return 0."""
    parser = Parser(
        prog=program, description="Show the versions of this installation and its missing extras."
    )
    parser.parse_args(arguments)
    extras = _extras()
    gpus = gpu_names() if _version("torch") else []
    missing = [extra for extra, packages in extras.items() if extra and None in packages.values()]
    lines = [
        f"menv {menv.__version__}, Python {platform.python_version()} ({sys.executable}), {platform.platform()}",
        f"{'GPUs':<12}{', '.join(gpus) or 'none that torch finds'}",
        *(f"{extra or 'packages':<12}{_listed(own)}" for extra, own in extras.items()),
        *(f"missing     extra {extra}: pip install 'menv-rl[{extra}]'" for extra in missing),
    ]
    print_text("\n".join(lines), program)
    return 0


def _extras() -> dict[str, dict[str, str | None]]:
    """Return the packages of each extra ("" for none) with their versions, None for one that is missing."""
    found: dict[str, dict[str, str | None]] = {"": {}}
    for line in importlib.metadata.requires("menv-rl") or []:
        named = _REQUIREMENT.match(line)
        if named is not None and named[2] != "all":
            found.setdefault(named[2] or "", {})[named[1]] = _version(named[1])
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _listed(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or '(missing)'}" for name, version in packages.items())
