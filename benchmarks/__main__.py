"""The benchmarks as a command; `make bench` runs it.

    python -m benchmarks [--json] [--only NAME ...] [--quick] [--repeats N]
    python -m benchmarks --against COMMIT [--only PREFIX ...]

Every rate is compared with the bare environment loop of the same run, each the median of interleaved repeats.
With `--json` the last line is one JSON object and the table goes to standard error.

`--against` compares the working tree with a commit instead and exits with 1 if a line is slower.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch

from benchmarks.against import compare
from benchmarks.report import COLUMNS, as_json, line, machine
from benchmarks.rows import Effort
from benchmarks.workloads import ROWS


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for row in ROWS]
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--against", metavar="COMMIT", help="compare the working tree with this commit")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"some of: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="hardly any steps: see that it runs")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    args = parser.parse_args()
    if args.against:
        sys.exit(bool(compare(args.against, args.only or [""])))
    if unknown := set(args.only or ()) - set(names):
        parser.error(f"--only: unknown {', '.join(sorted(unknown))}, expected some of {', '.join(names)}")
    effort = Effort(repeats=args.repeats)
    if args.quick:
        effort = Effort(repeats=min(2, args.repeats), seconds=0.01, quick=True)
    # What PPO does by default; here already, so that the first line of the report tells.
    torch.set_num_threads(1)
    about = machine()
    table = sys.stderr if args.json else sys.stdout
    print(", ".join(f"{name} {value}" for name, value in about.items()), file=table)
    print(COLUMNS, file=table, flush=True)
    found = []
    for row in ROWS:
        if args.only is None or row.name in args.only:
            finding = row.measure(effort)
            found.append(as_json(row, finding))
            print(line(row, finding), file=table, flush=True)
    if args.json:
        print(json.dumps({**about, "quick": args.quick, "repeats": effort.repeats, "rows": found}))


if __name__ == "__main__":
    main()
