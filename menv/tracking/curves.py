"""Pictures by matplotlib: learning curves, and the heat map of a match. Nothing here knows results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

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
    width: float = 9.6,
) -> None:
    """Draw a line for each series and write the picture.

    Args:
        path: The file: an SVG or a PDF if its name ends with `.svg` or `.pdf`, else a PNG.
        series: Points (x, y) by name. Points that are None or not finite are left out.
        bands: Areas (x, low, high) by the name of their line, such as quartiles over seeds.
        title: Above the lines.
        x_label: Below them.
        y_label: At the axis of y.
        width: Of the picture, in inches; it is 7/12 of that high.

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
            f"plot_curves: {len(series)} series without a finite value, expected at least one; train longer"
        )
    with _picture(path, width, width * 7 / 12) as axes:
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


def plot_points(path: str | PathLike[str], players: Sequence[str], points: npt.NDArray[np.float64]) -> None:
    """Draw the points of each player against each other one as a heat map, and write the picture.

    Args:
        path: As of `plot_curves`.
        players: The names of P players.
        points: From 0 to 1, float64 [P, P]; NaN where two did not meet.
    """
    names, size = [_line(name) for name in players], 2.4 + 0.8 * len(players)
    with _picture(path, size + 0.06 * max(map(len, names)), size) as axes:
        axes.imshow(points, cmap="RdBu", vmin=0.0, vmax=1.0)
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), names)
        axes.set(title="points of the row against the column")
        for (row, column), share in np.ndenumerate(points):
            if math.isfinite(share):
                colour = "white" if abs(share - 0.5) > 0.3 else "black"
                axes.text(column, row, f"{share:.0%}", ha="center", va="center", color=colour)


@contextmanager
def _picture(path: str | PathLike[str], width: float, height: float) -> Iterator[Any]:
    """Give the axes of a picture, in inches, and write it."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "plot: the package matplotlib is not installed; run: pip install 'menv-rl[plot]'"
        ) from error
    # Names are not formulas.
    with rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "menv"}):
        figure = Figure((width, height), layout="constrained")
        yield figure.subplots()
        # The same curves are the same file.
        undated = {".svg": ("Date", "Creator"), ".pdf": ("CreationDate", "Creator", "Producer"), ".png": ()}
        suffix = Path(path).suffix if Path(path).suffix in undated else ".png"
        metadata = dict.fromkeys(undated[suffix])
        figure.savefig(path, format=suffix[1:], dpi=300 if width < 6 else "figure", metadata=metadata)


def _line(text: str) -> str:
    """Return one line without control characters and halves of characters, which neither a font nor XML has."""
    return "".join(
        one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in " ".join(text.splitlines())
    )
