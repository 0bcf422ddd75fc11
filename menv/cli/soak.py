"""`menv soak ENV`: runs an environment for minutes and reports what grows.

The exit status is 1 if memory, files, threads or processes grow, or a fault ended the soak.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from menv.cli.arguments import (
    Parser,
    count,
    parsed,
    print_text,
    seed,
    take_imports,
    take_settings,
    with_objects,
)
from menv.verify.soak import soak


def main(arguments: Sequence[str], program: str) -> int:
    """Soak the environment of the arguments and return the exit status."""
    parser = Parser(prog=program, description="Run an environment for minutes and report what grows.")
    parser.add_argument("env", metavar="ENV", help="a built-in name, a gymnasium id, or package.module:Class")
    take_settings(parser)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (%(default)s)")
    parser.add_argument("--envs", type=count, default=2, help="environments in each process (%(default)s)")
    parser.add_argument(
        "--workers", type=seed, default=0, metavar="N",
        help="processes with more environments; one is killed 12 times (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=seed, default=0, help="seed of resets and actions (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the report as a JSON object")
    take_imports(parser)
    args = parsed(parser, arguments)
    report = soak(
        args.env, with_objects(args.config), seconds=60 * args.minutes, num_envs=args.envs, workers=args.workers,
        seed=args.seed, modules=args.modules,
    )  # fmt: skip
    print_text(json.dumps(dataclasses.asdict(report)) if args.json else str(report), program)
    return int(not report.passed)
