"""`menv plot`: draws one result key of one or several runs over env steps as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from menv.cli.arguments import Parser, print_text
from menv.tracking.report import plot_runs


def main(arguments: Sequence[str] | None = None, program: str = "menv plot") -> int:
    """Draw the picture of the arguments and return the exit status."""
    parser = Parser(prog=program, description="Draw a curve of each policy of runs of one environment.")
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="run folders; seeds of the same settings are one curve"
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="a .png or .svg file")
    parser.add_argument(
        "--key", default="policy_reward_mean", help="a result key, a column of progress.csv (%(default)s)"
    )
    args = parser.parse_args(arguments)
    path = plot_runs(args.runs, args.output, args.key)
    print_text(f"wrote {path}", program)
    return 0
