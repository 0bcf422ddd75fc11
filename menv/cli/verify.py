"""`menv verify ENV`, also `python -m menv.verify ENV`: checks that an environment behaves the same in all back-ends.

The exit status is 0 if all back-ends agree, 1 if one differs or the environment fails in one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from menv.cli.arguments import Parser, json_settings, option, parsed, print_text, switch
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
    option(parser, "env", "a built-in name, a gymnasium id, or package.module:Class")
    option(
        parser, "--config", "settings of an algorithm as a JSON object", type=json_settings, action="append", default=[]
    )  # fmt: skip
    option(parser, "--envs", "total number of environments", type=int, default=NUM_ENVS)
    option(parser, "--steps", "total number of env steps", type=int, default=ENV_STEPS)
    option(parser, "--seed", "seed of resets, sampled actions and weights", type=int, default=0)
    switch(parser, "--ray", "also run workers on Ray, which is started")
    return parser
