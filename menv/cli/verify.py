"""`menv verify ENV`, also `python -m menv.verify ENV`: checks that an environment behaves the same in all back-ends.

The exit status is 0 if all back-ends agree, 1 if one differs or the environment fails in one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from menv.cli.arguments import Parser, json_settings, parsed, print_text, take_imports
from menv.verify.verify import ENV_STEPS, NUM_ENVS, verify_backends


def main(arguments: Sequence[str] | None = None, program: str = "python -m menv.verify") -> int:
    """Compare the back-ends for the environment of the arguments and return the exit status."""
    args = parsed(_parser(program), arguments)
    report = verify_backends(
        args.env, args.config, num_envs=args.envs, env_steps=args.steps, seed=args.seed,
        ray=args.ray or None, modules=args.modules,
    )  # fmt: skip
    print_text(str(report), program)
    return int(not report.same)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = Parser(prog=program, description="Check that an environment is reproducible across back-ends.")
    parser.add_argument("env", help="a built-in name, a gymnasium id, or package.module:Class")
    parser.add_argument(
        "--config", type=json_settings, action="append", default=[],
        help="settings of an algorithm as a JSON object",
    )  # fmt: skip
    parser.add_argument(
        "--envs", type=int, default=NUM_ENVS, help="total number of environments (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=ENV_STEPS, help="total number of env steps (default: %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of resets, sampled actions and weights (default: %(default)s)",
    )
    parser.add_argument("--ray", action="store_true", help="also run workers on Ray, which is started")
    take_imports(parser)
    return parser
