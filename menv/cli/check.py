"""`menv check ENV`, also `python -m menv.checking ENV`: prints the findings; exit status 1 if one is an error."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from menv.checking.check import ENV_STEPS, check_env
from menv.cli.arguments import Parser, json_settings, parsed, print_text, take_imports


def main(arguments: Sequence[str] | None = None, program: str = "python -m menv.checking") -> int:
    """Check the environment of the arguments and return the exit status."""
    args = parsed(_parser(program), arguments)
    findings = check_env(args.name, args.config, ignore=args.ignore, seed=args.seed, env_steps=args.steps)
    if args.json:
        lines = [json.dumps([dataclasses.asdict(finding) for finding in findings])]
    else:
        lines = [str(finding) for finding in findings] or [f"{args.name}: nothing found"]
    print_text("\n".join(lines), program)
    return int(any(finding.severity == "error" for finding in findings))


def _parser(program: str) -> argparse.ArgumentParser:
    parser = Parser(prog=program, description="Find errors in an environment.")
    parser.add_argument("name", help="a registered name, a gymnasium id, or package.module:Class")
    parser.add_argument(
        "--config", type=json_settings, action="append", default=[], help="env_config as a JSON object"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON list")
    parser.add_argument("--ignore", type=_codes, default=[], help="codes to ignore, such as ME006,ME049")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of resets and random actions (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=ENV_STEPS, help="number of env steps to run (default: %(default)s)"
    )
    take_imports(parser)
    return parser


def _codes(text: str) -> list[str]:
    return [code.strip() for code in text.split(",") if code.strip()]
