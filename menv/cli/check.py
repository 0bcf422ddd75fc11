"""`python -m menv.checking NAME`: one line for each finding; exit status 1 if one of them is an error.

For shells and continuous integration. `NAME` is what `check_env` takes as a string.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from menv.checking.check import ENV_STEPS, check_env
from menv.cli.command_line import Parser, ends, tell
from menv.errors import ConfigError
from menv.registry import and_how_to_import, import_first, json_settings, take_imports


def main(arguments: Sequence[str] | None = None, program: str = "python -m menv.checking") -> int:
    """Check the environment that the arguments name.

    Args:
        arguments: Those of the command line by default.
        program: What the usage calls this.

    Returns:
        0 without an error among the findings, 1 with one, 130 after Ctrl-C.

    Raises:
        SystemExit: With status 2, if the arguments are wrong; 1, if nothing takes what is printed.
    """
    parser = _parser(program)
    given = parser.parse_args(arguments)
    return ends(program, lambda: _check(parser, given))


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    try:
        import_first(given.modules)
        findings = check_env(
            given.name, given.config, ignore=given.ignore, seed=given.seed, env_steps=given.steps
        )
    except ConfigError as error:
        parser.error(and_how_to_import(error))
    if given.json:
        lines = [json.dumps([dataclasses.asdict(finding) for finding in findings])]
    else:
        lines = [str(finding) for finding in findings] or [f"{given.name}: nothing found"]
    tell("\n".join(lines), parser.prog)
    return int(any(finding.severity == "error" for finding in findings))


def _parser(program: str) -> argparse.ArgumentParser:
    parser = Parser(prog=program, description="Check an environment.")
    parser.add_argument("name", help="a registered name, a gymnasium id, or package.module:Class")
    parser.add_argument("--config", type=json_settings, default={}, help="the env_config, a JSON object")
    parser.add_argument("--json", action="store_true", help="print one JSON list of findings")
    parser.add_argument("--ignore", type=_codes, default=[], help="codes to leave out, such as ME012,ME013")
    parser.add_argument("--seed", type=int, default=0, help="of resets and random actions (%(default)s)")
    parser.add_argument("--steps", type=int, default=ENV_STEPS, help="env steps to play (%(default)s)")
    take_imports(parser)
    return parser


def _codes(text: str) -> list[str]:
    return [code.strip() for code in text.split(",") if code.strip()]


if __name__ == "__main__":
    sys.exit(main())
