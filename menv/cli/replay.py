"""`menv replay CAPSULE`: repeats the episode in which an environment failed, from its crash capsule.

The exit status is 0 if the fault is the same, else 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from menv.cli.arguments import Parser, json_settings, option, parsed, print_text
from menv.verify.replay import SAME, replay


def main(arguments: Sequence[str], program: str) -> int:
    """Replay the capsule of the arguments and return the exit status."""
    parser = Parser(prog=program, description="Repeat the episode in which an environment failed.")
    option(parser, "capsule", "the file that the error message names", metavar="CAPSULE")
    option(parser, "--env", "the environment, if its name is not known here", metavar="ENV")
    option(
        parser, "--env-config", "settings over the capsule's env_config, such as secrets, which are left out of it",
        type=json_settings, default={}, metavar="JSON",
    )  # fmt: skip
    args = parsed(parser, arguments)
    report = replay(args.capsule, args.env, args.env_config, modules=args.modules)
    print_text(str(report), program)
    return int(report.verdict != SAME)
