"""`menv table`: the final scores of runs as a table for a paper."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence

import numpy as np

from menv.algorithms.algorithm import Algorithm
from menv.cli.arguments import Parser, count, parsed, print_text, take_imports
from menv.cli.reopen import take_trust
from menv.cli.train import from_checkpoint
from menv.errors import ConfigError
from menv.tracking.report import STEPS, TIME, Group, groups_of, interval, runs_of
from menv.tracking.run_folder import Run

_HEAD = ("algorithm", "seeds", "score", "95 % interval", "env steps", "minutes")
_ESCAPED = str.maketrans({one: rf"\{one}" for one in "&%$#_{}"} | {"\\": r"\textbackslash{}"})


def main(arguments: Sequence[str] | None = None, program: str = "menv table") -> int:
    """Evaluate the runs of the arguments, print their table and return the exit status."""
    parser = Parser(
        prog=program,
        description="Evaluate the last policies of runs of one environment. Runs that differ by their seed alone are "
        "one row: the mean score over seeds, its 95 % bootstrap interval, env steps and minutes.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folders")
    parser.add_argument(
        "--format", choices=("markdown", "latex", "csv"), default="markdown", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--episodes", type=count, default=100, help="number of episodes of each run (default: %(default)s)"
    )
    parser.add_argument("--env", help="the environment, as for train, if the checkpoints cannot name it")
    take_trust(parser)
    take_imports(parser)
    args = parsed(parser, arguments)
    rows = [_row(args, group) for group in groups_of(runs_of(args.runs))]
    print_text(_table(rows, args.format), program)
    return 0


def _row(args: argparse.Namespace, group: Group) -> list[str]:
    scores = np.array([_score(args, run) for run in group.runs])
    low, high = interval(scores)
    steps, seconds = (np.mean([table[key][-1] for table in group.tables]) for key in (STEPS, TIME))
    figures = f"{scores.mean():.4g}", f"{low:.4g} to {high:.4g}", f"{steps:,.0f}", f"{seconds / 60:.1f}"
    return [group.name, str(len(scores)), *figures]


def _score(args: argparse.Namespace, run: Run) -> float:
    """Return the mean return of the last policies of a run."""
    config = {
        "evaluation_duration": args.episodes,
        "evaluation_duration_unit": "episodes",
        "num_workers": 0,
    }
    with from_checkpoint(Algorithm, args, str(run.path), config, learns=False) as algo:
        score = algo.evaluate()["evaluation"]["episode_reward_mean"]
    if score is None:
        raise ConfigError(
            f"{run.path}: no episode was completed, expected {args.episodes}; give more --episodes"
        )
    return float(score)


def _table(rows: Sequence[Sequence[str]], form: str) -> str:
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_HEAD, *rows])
        return text.getvalue().rstrip("\n")
    if form == "markdown":
        lines = [_HEAD, ("---", *["---:"] * (len(_HEAD) - 1)), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    body = [" & ".join(cell.translate(_ESCAPED) for cell in line) + r" \\" for line in (_HEAD, *rows)]
    body.insert(1, r"\midrule")
    columns = "l" + "r" * (len(_HEAD) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]
    )
