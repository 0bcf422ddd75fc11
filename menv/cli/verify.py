"""`python -m menv.verify ENV`: whether an environment lives the same lives wherever it is put.

For shells and continuous integration: exit status 0 if all back-ends agree, 1 if one differs or the environment
fails in one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from menv.cli.command_line import Parser, ends, tell
from menv.errors import ConfigError
from menv.registry import and_how_to_import, import_first, json_settings, take_imports
from menv.verify.backends import ROWS, play_here
from menv.verify.task import Task
from menv.verify.verify import ENV_STEPS, NUM_ENVS, verify_backends


def main(arguments: Sequence[str] | None = None, program: str = "python -m menv.verify") -> int:
    """Compare the back-ends for the environment that the arguments name.

    Args:
        arguments: Those of the command line by default.
        program: What the usage calls this.

    Returns:
        0 if all are the same, 1 if one differs or the environment fails, 130 after Ctrl-C.

    Raises:
        SystemExit: With status 2, if the arguments are wrong; 1, if nothing takes what is printed.
    """
    parser = _parser(program)
    given = parser.parse_args(arguments)
    return ends(program, lambda: _verify(parser, given))


def _verify(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    try:
        import_first(given.modules)
        if given.rows is not None:
            play_here(Task(given.env, given.config, given.envs, given.steps, given.seed)).save(given.rows)
            return 0
        report = verify_backends(
            given.env, given.config, num_envs=given.envs, env_steps=given.steps, seed=given.seed,
            ray=given.ray or None, modules=given.modules,
        )  # fmt: skip
    except ConfigError as error:
        parser.error(and_how_to_import(error))
    tell(str(report), parser.prog)
    return int(not report.same)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = Parser(prog=program, description="Compare an environment in all back-ends that can host it.")
    parser.add_argument("env", help="a built-in name, a gymnasium id, or package.module:Class")
    parser.add_argument(
        "--config", type=json_settings, default={}, help="settings of an algorithm, a JSON object"
    )
    parser.add_argument("--envs", type=int, default=NUM_ENVS, help="environments in all (%(default)s)")
    parser.add_argument(
        "--steps", type=int, default=ENV_STEPS, help="env steps of all together (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of resets, draws and weights (%(default)s)")
    parser.add_argument("--ray", action="store_true", help="also in workers on Ray, which is started")
    take_imports(parser)
    parser.add_argument(ROWS, type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
