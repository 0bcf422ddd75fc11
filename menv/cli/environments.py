"""Commands about environments, `envs`, `check`, `verify` and `replay`, and about this installation, `doctor`.

`check` is also `python -m menv.checking`, `verify` `python -m menv.verify`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Sequence

import menv
from menv.algorithms.training.torch_threads import gpu_names
from menv.cli.arguments import Parser, json_settings, option, parsed, print_text, switch
from menv.registry import env_names, unknown_name

_MORE = """\
Other names: package.module:Class, and path/to/file.py:Class. Environments of PettingZoo, OpenSpiel, Jumanji, Pgx,
JaxMARL and VMAS are listed if these are installed: pip install 'menv-rl[pettingzoo,jax]' open_spiel vmas"""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*extra\s*==\s*[\"']([\w-]+)[\"'])?")


def envs(arguments: Sequence[str], program: str) -> int:
    """Print the names, one on each line, and return the exit status."""
    parser = Parser(
        prog=program, description="List environments by name.", epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    option(parser, "word", "list only names that contain this word", nargs="?", default="", metavar="WORD")
    word = str(parsed(parser, arguments).word)
    lines = [
        f"{name:<44} {kind}"
        for kind, names in env_names().items()
        for name in names
        if word.lower() in name.lower() or word == kind
    ]
    if not lines:
        raise unknown_name(word)
    print_text("\n".join(lines), program)
    return 0


def check(arguments: Sequence[str] | None = None, program: str = "python -m menv.checking") -> int:
    """Print the findings about an environment; return 1 if one is an error, else 0."""
    from menv.checking.check import ENV_STEPS, check_env

    parser = Parser(prog=program, description="Find errors in an environment.")
    option(parser, "name", "a registered name, a gymnasium id, or package.module:Class")
    option(parser, "--config", "env_config as a JSON object", type=json_settings, action="append", default=[])
    switch(parser, "--json", "print the findings as one JSON list")
    option(parser, "--ignore", "codes to ignore, such as ME006,ME049", type=_codes, default=[])
    option(parser, "--seed", "seed of resets and random actions", type=int, default=0)
    option(parser, "--steps", "number of env steps to run", type=int, default=ENV_STEPS)
    args = parsed(parser, arguments)
    findings = check_env(args.name, args.config, ignore=args.ignore, seed=args.seed, env_steps=args.steps)
    if args.json:
        lines = [json.dumps([dataclasses.asdict(finding) for finding in findings])]
    else:
        lines = [str(finding) for finding in findings] or [f"{args.name}: nothing found"]
    print_text("\n".join(lines), program)
    return int(any(finding.severity == "error" for finding in findings))


def _codes(text: str) -> list[str]:
    return [code.strip() for code in text.split(",") if code.strip()]


def verify(arguments: Sequence[str] | None = None, program: str = "python -m menv.verify") -> int:
    """Compare the back-ends for the environment of the arguments; return 0 if all agree, else 1."""
    from menv.verify.verify import ENV_STEPS, NUM_ENVS, verify_backends

    parser = Parser(prog=program, description="Check that an environment is reproducible across back-ends.")
    option(parser, "env", "a built-in name, a gymnasium id, or package.module:Class")
    option(
        parser, "--config", "settings of an algorithm as a JSON object", type=json_settings, action="append", default=[]
    )  # fmt: skip
    option(parser, "--envs", "total number of environments", type=int, default=NUM_ENVS)
    option(parser, "--steps", "total number of env steps", type=int, default=ENV_STEPS)
    option(parser, "--seed", "seed of resets, sampled actions and weights", type=int, default=0)
    switch(parser, "--ray", "also run workers on Ray, which is started")
    args = parsed(parser, arguments)
    report = verify_backends(
        args.env, args.config, num_envs=args.envs, env_steps=args.steps, seed=args.seed,
        ray=args.ray or None, modules=args.modules,
    )  # fmt: skip
    print_text(str(report), program)
    return int(not report.same)


def replay(arguments: Sequence[str], program: str) -> int:
    """Repeat the episode of a crash capsule; return 0 if its fault is the same, else 1."""
    from menv.verify.replay import SAME
    from menv.verify.replay import replay as replayed

    parser = Parser(prog=program, description="Repeat the episode in which an environment failed.")
    option(parser, "capsule", "the file that the error message names", metavar="CAPSULE")
    option(parser, "--env", "the environment, if its name is not known here", metavar="ENV")
    option(
        parser, "--env-config", "settings over the capsule's env_config, such as secrets, which are left out of it",
        type=json_settings, default={}, metavar="JSON",
    )  # fmt: skip
    args = parsed(parser, arguments)
    report = replayed(args.capsule, args.env, args.env_config, modules=args.modules)
    print_text(str(report), program)
    return int(report.verdict != SAME)


def doctor(arguments: Sequence[str], program: str) -> int:
    """Print the versions of menv, Python and each extra's packages, and the GPUs that torch finds; return 0."""
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
