"""The command `menv`: `menv COMMAND ...` calls `main` of the module of that name, or a function (`_HOMES`).

Nothing heavy is imported before the command is known.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import menv
from menv.cli.arguments import Parser, run_command

COMMANDS = {
    "train": "train policies in an environment",
    "sweep": "search settings with Optuna",
    "evaluate": "evaluate trained policies",
    "watch": "show trained policies in the terminal, or as a GIF",
    "play": "play against trained policies",
    "match": "rate runs and snapshots by games against each other",
    "show": "show the contents of a run, a checkpoint or a policy",
    "plot": "draw curves of runs as a PNG, SVG or PDF picture",
    "table": "print the final scores of runs as Markdown, LaTeX or CSV",
    "report": "write an HTML report of runs, or serve it",
    "export": "copy each policy of a run into a folder",
    "serve": "answer external clients with the policies of a run",
    "doctor": "show versions, missing extras and GPUs",
    "envs": "list environments by name",
    "check": "find errors in an environment",
    "replay": "repeat the episode in which an environment failed",
    "verify": "check reproducibility across back-ends",
}
_HOMES = {
    **dict.fromkeys(("envs", "check", "verify", "replay", "doctor"), "environments"),
    **dict.fromkeys(("plot", "report"), "reports"),
    **dict.fromkeys(("watch", "play", "match"), "games"),
    "export": "show",
    "table": "evaluate",
}
"""Commands that share a module, in which each has the name of its function."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of the arguments and return the exit status."""
    # Unlike `python -m`, a console script does not have the working directory on the path.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] and given[0] in COMMANDS:
        name, program = given[0], f"menv {given[0]}"
        # Wrappers of environments log that one is compiled, which takes long.
        log, handler = logging.getLogger("menv.wrappers"), logging.StreamHandler()
        log.setLevel(logging.INFO)
        log.addHandler(handler)
        try:
            return run_command(program, lambda: _run(name, given[1:], program))
        finally:
            log.removeHandler(handler)
    _parser().parse_args(given)
    raise AssertionError("unreachable: the parser knows no other command")


def _run(name: str, arguments: Sequence[str], program: str) -> int:
    # An import may fail too, where an extra is missing.
    module = import_module(f"menv.cli.{_HOMES.get(name, name)}")
    return int(getattr(module, name if name in _HOMES else "main")(arguments, program))


def _parser() -> Parser:
    parser = Parser(
        prog="menv", description="Train agents in any environment; `menv COMMAND --help` shows the options."
    )
    parser.add_argument("--version", action="version", version=f"menv {menv.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary)
    return parser
