"""`menv plot`: draws one result key of one or several runs over env steps as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from menv.cli.arguments import Parser, print_text
from menv.errors import ConfigError
from menv.serialization import writing
from menv.tracking.curves import plot_curves
from menv.tracking.report import curves_of_key, groups_of, line_of, output_path, runs_of


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
    path = output_path("plot", args.output)
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(
            f"plot: {path.name!r:.80}, expected a name that ends with .png or .svg; write -o curves.png"
        )
    groups = groups_of(runs_of(args.runs))
    lines, bands = {}, {}
    for name, curves in curves_of_key(groups, args.key):
        line = line_of(name, curves)
        lines[name] = list(zip(line["x"], line["mean"], strict=True))
        if len(curves) > 1:
            bands[name] = list(zip(line["x"], line["low"], line["high"], strict=True))
    title = str(groups[0].runs[0].config.get("env"))
    with writing("plot", f"the picture {path}"):
        plot_curves(path, lines, bands=bands, title=title, y_label=args.key)
    print_text(f"wrote {path}", program)
    return 0
