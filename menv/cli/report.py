"""`menv report`: writes one HTML file about one or several runs."""

from __future__ import annotations

from collections.abc import Sequence

from menv.cli.arguments import Parser, print_text
from menv.tracking.report import write_report


def main(arguments: Sequence[str] | None = None, program: str = "menv report") -> int:
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
    args = parser.parse_args(arguments)
    print_text(f"wrote {write_report(args.runs, args.output)}", program)
    return 0
