"""`menv doctor`: reports versions, missing extras, conflicts, GPUs and processors of this installation."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import menv
from menv.algorithms.torch_threads import gpu_names
from menv.cli.arguments import Parser, print_text
from menv.tracking.run_folder import json_text

_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[[^]]*\])?\s*([^;]*)(?:;.*extra\s*==\s*[\"']([\w-]+)[\"'])?")
_BOUND = re.compile(r"(>=|<=|==|<|>)\s*(\d+(?:\.\d+)*)")
_ALL = "all"


def main(arguments: Sequence[str] | None = None, program: str = "menv doctor") -> int:
    """Print the report and return the exit status: 1 if a package is missing or has the wrong version."""
    parser = Parser(prog=program, description="Check this installation of menv.")
    parser.add_argument("--json", action="store_true", help="print the report as a JSON object")
    args = parser.parse_args(arguments)
    report = _report()
    print_text(json_text(report) if args.json else "\n".join(_lines(report)), program)
    return 1 if report["conflicts"] else 0


def _report() -> dict[str, Any]:
    packages: dict[str, dict[str, str | None]] = {}
    conflicts, missing = [], []
    for name, bounds, extra in _requirements():
        version = _version(name)
        packages.setdefault(extra, {})[name] = version
        if version is None and extra:
            missing.append(extra)
        elif version is None or not _fits(version, bounds):
            conflicts.append(f"{name} {version or 'is missing'}, menv needs {bounds or 'any version'}")
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "menv": menv.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpus": cpus,
        "gpus": gpu_names() if _version("torch") else [],
        "ray": _version("ray"),
        "packages": packages.pop("", {}),
        "extras": packages,
        "missing_extras": list(dict.fromkeys(missing)),
        "conflicts": conflicts,
    }


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Yield name, version bounds and extra ("" for none) of each requirement."""
    try:
        lines = importlib.metadata.requires("menv-rl") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        found = _REQUIREMENT.match(line)
        if found is not None and found[3] != _ALL:
            yield found[1], found[2].strip(), found[3] or ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _fits(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as `>=2.4,<3`; suffixes of versions do not count."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return numbers is None or all(
        _compare(_numbers(numbers[0]), sign, _numbers(bound)) for sign, bound in _BOUND.findall(bounds)
    )


def _numbers(version: str) -> list[int]:
    numbers = [int(part) for part in version.split(".")]
    while numbers[-1:] == [0]:
        numbers.pop()
    return numbers


def _compare(own: list[int], sign: str, bound: list[int]) -> bool:
    return {">=": own >= bound, "<=": own <= bound, "==": own == bound, "<": own < bound, ">": own > bound}[
        sign
    ]


def _lines(report: dict[str, Any]) -> list[str]:
    gpus = ", ".join(report["gpus"]) or (
        "none that torch finds" if _version("torch") else "unknown, torch is missing"
    )
    lines = [
        f"menv {report['menv']}, Python {report['python']} ({report['executable']}), {report['platform']}",
        f"processors  {report['cpus']}",
        f"GPUs        {gpus}",
        f"Ray         {report['ray'] or 'not installed'}",
        f"{'packages':<12}{_listed(report['packages'])}",
    ]
    lines += [f"{extra:<12}{_listed(own)}" for extra, own in report["extras"].items()]
    lines += [
        f"missing     extra {extra}: pip install 'menv-rl[{extra}]'" for extra in report["missing_extras"]
    ]
    lines += [f"conflict    {one}" for one in report["conflicts"]]
    complete = report["packages"] and not report["missing_extras"] and not report["conflicts"]
    return [*lines, "nothing is missing"] if complete else lines


def _listed(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or '(missing)'}" for name, version in packages.items()) or "unknown"
