"""`menv plot` draws runs, `menv report` writes or serves a page about them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from menv.cli.arguments import Parser, option, port, positive, print_text, repeated, switch
from menv.errors import ConfigError
from menv.tracking.local_page import LocalPage
from menv.tracking.report import page, plot_runs, runs_of, write_report

_PORT = 6007


def plot(arguments: Sequence[str], program: str) -> int:
    """Draw the picture of the arguments and return the exit status."""
    parser = Parser(
        prog=program,
        description="Draw learning curves of runs of one environment, the mean over seeds with a band.",
    )
    option(parser, "runs", "run folders; seeds of the same settings are one curve", metavar="RUN", nargs="+")
    option(parser, "-o --output", "a .png, .svg or .pdf file", metavar="FILE", required=True)
    option(
        parser,
        "--key",
        "a column of progress.csv (default: the return, or a league's ratings)",
        metavar="KEY",
    )
    option(
        parser, "--band",
        "around the mean over seeds: its 95 %% bootstrap interval (ci), or the quartiles of the seeds (iqr)",
        choices=("ci", "iqr"), default="ci",
    )  # fmt: skip
    option(parser, "--x", "env steps, or minutes of training", choices=("steps", "time"), default="steps")
    repeated(
        parser, "--label", "the name of a curve, in the order of the runs (default: what differs between them)",
        metavar="TEXT",
    )  # fmt: skip
    option(parser, "--title", "the title above the curves (default: the environment)", metavar="TEXT")
    option(
        parser,
        "--width",
        "the width; 3.3 is a column of a paper",
        metavar="INCHES",
        type=positive,
        default=9.6,
    )
    args = parser.parse_args(arguments)
    path = plot_runs(
        args.runs, args.output, args.key, band=args.band, x=args.x, labels=args.label, title=args.title,
        width=args.width,
    )  # fmt: skip
    print_text(f"wrote {path}", program)
    return 0


def report(arguments: Sequence[str], program: str) -> int:
    """Write the report of the arguments and return the exit status."""
    parser = Parser(
        prog=program,
        description="Write a report of runs of one environment as an HTML file that opens offline.",
    )
    option(parser, "runs", "run folders; seeds of the same settings are summarized", metavar="RUN", nargs="+")
    option(parser, "-o --output", "the file (default: report.html, of one run in its folder)", metavar="FILE")
    switch(parser, "--serve", "serve the page to browsers on this machine, and build it again at each visit")
    option(parser, "--port", "the port for --serve; 0 chooses a free one", type=port, default=_PORT)
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
