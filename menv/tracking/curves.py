"""A picture of learning curves by matplotlib. Examples and `menv plot` call `plot_curves`; it knows no results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from menv.errors import ConfigError, MissingExtraError

Points: TypeAlias = Sequence[tuple[float, float | None]]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5a5a5a")
"""Colours of the lines, in order; distinct for the colour-blind too (Okabe & Ito 2008)."""


def plot_curves(
    path: str | PathLike[str],
    series: Mapping[str, Points],
    *,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
    title: str = "",
    x_label: str = "env steps",
    y_label: str = "",
) -> None:
    """Draw a line for each series and write the picture.

    Args:
        path: The file: an SVG if its name ends with `.svg`, else a PNG.
        series: Points (x, y) by name. Points that are None or not finite are left out.
        bands: Areas (x, low, high) by the name of their line, such as quartiles over seeds.
        title: Above the lines.
        x_label: Below them.
        y_label: At the axis of y.

    Raises:
        ConfigError: There is no point at all.
        MissingExtraError: matplotlib is not installed.
    """
    lines = {
        name: [(x, y) for x, y in points if y is not None and math.isfinite(x) and math.isfinite(y)]
        for name, points in series.items()
    }
    if not any(lines.values()):
        raise ConfigError(
            f"plot_curves: {len(series)} series without a finite point, expected at least one point; train longer"
        )
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "plot: the package matplotlib is not installed; run: pip install 'menv-rl[plot]'"
        ) from error
    # Names are no formulas.
    with rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "menv"}):
        figure = Figure((9.6, 5.6), layout="constrained")
        axes = figure.subplots()
        for number, (name, line) in enumerate(lines.items()):
            colour = COLOURS[number % len(COLOURS)]
            # matplotlib leaves labels out that begin with "_".
            label = f" {name}" if name.startswith("_") else name
            kind = "-" if len(line) > 1 else "o"
            axes.plot([x for x, _ in line], [y for _, y in line], kind, color=colour, label=_line(label))
            if band := (bands or {}).get(name):
                x, low, high = zip(*band, strict=True)
                axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set(title=_line(title), xlabel=_line(x_label), ylabel=_line(y_label))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        # The same curves are the same file.
        if Path(path).suffix == ".svg":
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        else:
            figure.savefig(path, format="png")


def _line(text: str) -> str:
    """Return one line without control characters and halves of characters, which neither a font nor XML has."""
    return "".join(
        one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in " ".join(text.splitlines())
    )
