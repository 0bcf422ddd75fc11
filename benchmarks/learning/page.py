"""Writes the tables and curves of docs/benchmarks/learning.md from the CSV files."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.learning.tables import Experiment, Group, Row, groups, published
from menv.tracking.curves import plot_curves

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"
PAGE = DOCS / "learning.md"
PICTURES = DOCS / "learning"
AXES = {"env_steps": "env steps", "wall_s": "minutes"}
"""The columns of the curves that are drawn, and what the axis says."""
ALONE = 1.5
"""The load up to which a run had a processor for itself."""

_HEAD = """\
| environment | settings | seeds | env steps | score | published | wall time | CPU time |
|---|---|---|---|---|---|---|---|"""


def write_page() -> None:
    """Write the parts between the marks of the page, and its pictures."""
    text = PAGE.read_text("utf-8")
    for group in groups():
        mark = group.path.stem
        part = (
            f"<!-- {mark}: written by make benchmark-learning -->\n{section(group)}\n<!-- end of {mark} -->"
        )
        before, after = re.split(f"<!-- {mark}:.*<!-- end of {mark} -->", text, flags=re.DOTALL)
        text = before + part + after
    PAGE.write_text(text, "utf-8")
    draw_curves(PICTURES)


def section(group: Group) -> str:
    """Return the table and the pictures of a group."""
    rows = "\n".join(_row(group, experiment) for experiment in group.experiments)
    pictures = [
        f"![{env} over env steps](learning/{_file(env, 'env_steps')}) ![over minutes](learning/{_file(env, 'wall_s')})"
        for env, curves in _curves(group, "env_steps")
        if curves
    ]
    return "\n\n".join([f"{_HEAD}\n{rows}", *pictures])


def draw_curves(folder: Path) -> None:
    """Draw the curves of each environment over env steps and over minutes: the mean and the range of the seeds."""
    folder.mkdir(exist_ok=True)
    for group, (column, label) in product(groups(), AXES.items()):
        for env, curves in _curves(group, column):
            if curves:
                lines = {name: [(x, mean) for x, _, mean, _ in points] for name, points in curves.items()}
                bands = {
                    name: [(x, low, high) for x, low, _, high in points] for name, points in curves.items()
                }
                plot_curves(
                    folder / _file(env, column), lines, bands=bands, title=env, x_label=label, y_label="return",
                    width=6.4,
                )  # fmt: skip


def _row(group: Group, experiment: Experiment) -> str:
    results = group.results(experiment)
    known = published().get((experiment.env, experiment.table))
    other = "" if known is None else f"{_spread(known)} after {int(known['env_steps']):,} ({known['source']})"
    if not results:
        cells = [experiment.env, experiment.table, "0", "", "not measured yet", other, "", ""]
    else:
        steps = {f"{int(row['env_steps']):,}" for row in results}
        cells = [
            experiment.env,
            experiment.table,
            str(len(results)),
            " to ".join(
                sorted(steps, key=lambda text: int(text.replace(",", "")))[:: max(1, len(steps) - 1)]
            ),
            _scores(results),
            other,
            _seconds(results),
            f"{statistics.mean(float(row['cpu_s']) for row in results):,.0f} s",
        ]
    return f"| {' | '.join(cells)} |"


def _scores(results: list[Row]) -> str:
    scores = [float(row["score"]) for row in results]
    if len(scores) == 1:
        return _figure(scores[0])
    return f"{_figure(statistics.mean(scores))} ± {_figure(statistics.stdev(scores))}"


def _figure(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}"


def _spread(row: Row) -> str:
    score, std = (_figure(float(row[key])) if row[key] else "" for key in ("score", "score_std"))
    return f"{score} ± {std}" if std else score


def _seconds(results: list[Row]) -> str:
    """Return the mean, with a star where other processes ran at the same time."""
    busy = any(float(row["load"]) > ALONE for row in results)
    return f"{statistics.mean(float(row['wall_s']) for row in results):,.0f} s{'*' if busy else ''}"


def _curves(
    group: Group, column: str
) -> Iterator[tuple[str, dict[str, list[tuple[float, float, float, float]]]]]:
    """Yield each environment with the points (x, lowest, mean, highest) of its settings."""
    for env in dict.fromkeys(one.env for one in group.experiments):
        curves = {one.table: group.curves(one) for one in group.experiments if one.env == env}
        yield env, {table: _summary(list(seeds.values()), column) for table, seeds in curves.items() if seeds}


def _summary(seeds: list[list[Row]], column: str) -> list[tuple[float, float, float, float]]:
    unit = 60 if column == "wall_s" else 1
    lines = [np.array([[float(row[column]) / unit, float(row["score"])] for row in rows]).T for rows in seeds]
    first, last = max(line[0][0] for line in lines), min(line[0][-1] for line in lines)
    along = np.linspace(first, last, 50)
    values = np.array([np.interp(along, *line) for line in lines])
    return list(zip(along, values.min(0), values.mean(0), values.max(0), strict=True))


def _file(env: str, column: str) -> str:
    return re.sub(r"[^\w.]+", "-", env) + ("-minutes" if column == "wall_s" else "") + ".svg"
