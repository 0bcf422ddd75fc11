"""`menv check ENV`, also `python -m menv.checking ENV`: prints the findings; exit status 1 if one is an error."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from menv.checking.check import ENV_STEPS, check_env
from menv.cli.arguments import Parser, json_settings, option, parsed, print_text, switch


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
    option(parser, "name", "a registered name, a gymnasium id, or package.module:Class")
    option(parser, "--config", "env_config as a JSON object", type=json_settings, action="append", default=[])
    switch(parser, "--json", "print the findings as one JSON list")
    option(parser, "--ignore", "codes to ignore, such as ME006,ME049", type=_codes, default=[])
    option(parser, "--seed", "seed of resets and random actions", type=int, default=0)
    option(parser, "--steps", "number of env steps to run", type=int, default=ENV_STEPS)
    return parser


def _codes(text: str) -> list[str]:
    return [code.strip() for code in text.split(",") if code.strip()]
