"""Short commands: `menv plot` and `report` show runs, `envs` lists names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from html import escape

from menv.cli.arguments import Parser, parsed, port, print_text, take_imports
from menv.errors import ConfigError
from menv.registry import env_names, unknown_name
from menv.tracking.local_page import LocalPage
from menv.tracking.report import page, plot_runs, runs_of, write_report

_PORT = 6007
_MORE = """\
Other names: package.module:Class, and path/to/file.py:Class. Environments of PettingZoo and OpenSpiel are listed if
these are installed: pip install 'menv-rl[pettingzoo]' open_spiel"""


def plot(arguments: Sequence[str], program: str) -> int:
    """Draw the picture of the arguments and return the exit status."""
    parser = Parser(prog=program, description="Draw a curve of each policy of runs of one environment.")
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="run folders; seeds of the same settings are one curve"
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="a .png or .svg file")
    parser.add_argument(
        "--key", help="a result key, a column of progress.csv (policy_reward_mean; of a league, the ratings)"
    )
    args = parser.parse_args(arguments)
    path = plot_runs(args.runs, args.output, args.key)
    print_text(f"wrote {path}", program)
    return 0


def report(arguments: Sequence[str], program: str) -> int:
    """Write the report of the arguments and return the exit status."""
    parser = Parser(
        prog=program,
        description="Write a report of runs of one environment as an HTML file that opens offline.",
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="run folders; seeds of the same settings are summarized"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file (RUN/report.html; report.html for several runs)"
    )
    parser.add_argument(
        "--serve", action="store_true", help="show the page to browsers on this machine, made again each time"
    )
    parser.add_argument(
        "--port", type=port, default=_PORT, help="of --serve, 0 for any free one (%(default)s)"
    )
    args = parser.parse_args(arguments)
    if not args.serve:
        print_text(f"wrote {write_report(args.runs, args.output)}", program)
        return 0
    runs_of(args.runs)
    server = LocalPage(args.port, lambda: _page(args.runs))
    print_text(f"{program}: open {server.url} in a browser; Ctrl-C ends", program)
    server.run()
    return 0


def _page(runs: Sequence[str]) -> str:
    try:
        return page(runs)
    except (ConfigError, OSError) as error:
        return f"<!doctype html><title>menv</title><pre>{escape(str(error))}</pre>"


def envs(arguments: Sequence[str], program: str) -> int:
    """Print the names, one on each line, and return the exit status."""
    parser = Parser(
        prog=program, description="List environments by name.", epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("word", nargs="?", default="", metavar="WORD", help="only names that contain it")
    take_imports(parser)
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
