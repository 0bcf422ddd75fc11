"""A picture of learning curves: lines over an axis, with ticks and a legend, as a PNG.

Examples call `plot_curves`. Needs Pillow, which comes with tensorboard, when a picture is drawn; knows no results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias

from menv.errors import ConfigError, MissingExtraError

Points: TypeAlias = Sequence[tuple[float, float | None]]

COLOURS = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (90, 90, 90),
)
"""Red, green and blue of the lines, in order; distinct for the colour-blind too (Okabe & Ito 2008)."""

_SIZE = (960, 560)
_INK, _GRID, _PAPER = (40, 40, 40), (225, 225, 225), (255, 255, 255)
# Drawn larger and scaled down, because Pillow's lines have jagged edges.
_SCALE = 2
_LINE, _TEXT, _GAP = 3, 15, 12


def plot_curves(
    path: str | PathLike[str],
    series: Mapping[str, Points],
    *,
    title: str = "",
    x_label: str = "env steps",
    y_label: str = "",
) -> None:
    """Draw a line for each series and write the picture.

    Args:
        path: The file; a PNG, whatever its name.
        series: Points (x, y) by name. Points that are None or not finite are left out.
        title: Above the lines.
        x_label: Below them.
        y_label: Above the axis of y.

    Raises:
        ConfigError: There is no point at all.
        MissingExtraError: Pillow is not installed.
    """
    lines = {name: _finite(points) for name, points in series.items()}
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ConfigError(
            f"plot_curves: {len(series)} series without a finite point, expected at least one point; train longer"
        )
    canvas = _Canvas()
    texts = (title, x_label, y_label)
    frame = _Frame.around(points, canvas, legend=max(canvas.width(name) for name in lines))
    _draw_axes(canvas, frame, texts)
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        canvas.curve([frame.place(point) for point in line], colour)
        across, down = frame.right + _GAP, frame.top + _TEXT / 2 + number * (_TEXT + _GAP)
        canvas.curve([(across, down), (across + 2 * _GAP, down)], colour)
        canvas.text((across + 3 * _GAP, down), name, "lm")
    canvas.save(path)


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round numbers in [low, high], at most `most`: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if y is not None and math.isfinite(x) and math.isfinite(y)]


def _draw_axes(canvas: _Canvas, frame: _Frame, texts: tuple[str, str, str]) -> None:
    title, x_label, y_label = texts
    for value in ticks(*frame.ys):
        _, down = frame.place((frame.xs[0], value))
        canvas.line((frame.left, down), (frame.right, down), _GRID)
        canvas.text((frame.left - _GAP / 2, down), _number(value), "rm")
    for value in ticks(*frame.xs):
        across, _ = frame.place((value, frame.ys[0]))
        canvas.line((across, frame.top), (across, frame.bottom), _GRID)
        canvas.text((across, frame.bottom + _GAP / 2), _number(value), "mt")
    canvas.line((frame.left, frame.top), (frame.left, frame.bottom), _INK)
    canvas.line((frame.left, frame.bottom), (frame.right, frame.bottom), _INK)
    middle = (frame.left + frame.right) / 2
    canvas.text((middle, _GAP), title, "mt")
    canvas.text((middle, frame.bottom + 2 * _GAP + _TEXT / 2), x_label, "mt")
    canvas.text((_GAP, frame.top - _GAP), y_label, "lb")


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    # A level line or a single point is centred.
    return (low, high) if high > low else (low - max(1.0, abs(low)) / 2, high + max(1.0, abs(high)) / 2)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the lines are, in pixels, and what the axes hold."""

    left: float
    right: float
    top: float
    bottom: float
    xs: tuple[float, float]
    ys: tuple[float, float]

    @classmethod
    def around(cls, points: Sequence[tuple[float, float]], canvas: _Canvas, legend: float) -> _Frame:
        """Return the frame for points that leaves room for the numbers and a legend of some width."""
        xs, ys = _range([x for x, _ in points]), _range([y for _, y in points])
        left = max(canvas.width(_number(value)) for value in ticks(*ys)) + 2 * _GAP
        right = max(_SIZE[0] / 2, _SIZE[0] - legend - 5 * _GAP)
        return cls(left, right, 3 * _GAP + _TEXT, _SIZE[1] - 3 * _GAP - 2 * _TEXT, xs, ys)

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        """Return the pixel of a point."""
        along = (point[0] - self.xs[0]) / (self.xs[1] - self.xs[0])
        above = (point[1] - self.ys[0]) / (self.ys[1] - self.ys[0])
        return self.left + along * (self.right - self.left), self.bottom - above * (self.bottom - self.top)


class _Canvas:
    """A sheet that is drawn on in pixels of the finished picture."""

    def __init__(self) -> None:
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError as error:
            raise MissingExtraError(
                "plot_curves: the package pillow is not installed, expected it; run: pip install 'menv[train]', or "
                "leave the picture out"
            ) from error
        self._image = Image.new("RGB", (_SIZE[0] * _SCALE, _SIZE[1] * _SCALE), _PAPER)
        self._draw = ImageDraw.Draw(self._image)
        self._font: Any = ImageFont.load_default(_TEXT * _SCALE)

    def width(self, text: str) -> float:
        """Return how wide a text is."""
        return float(self._draw.textlength(_line(text), self._font)) / _SCALE

    def text(self, at: tuple[float, float], text: str, anchor: str) -> None:
        """Write at a place that is the text's `anchor`, as Pillow calls it."""
        self._draw.text(_scaled(at), _line(text), _INK, self._font, anchor)

    def line(
        self, start: tuple[float, float], end: tuple[float, float], colour: tuple[int, int, int]
    ) -> None:
        """Draw a thin straight line."""
        self._draw.line([_scaled(start), _scaled(end)], colour, _SCALE)

    def curve(self, points: Sequence[tuple[float, float]], colour: tuple[int, int, int]) -> None:
        """Draw a line through points; one alone is a dot."""
        places = [_scaled(point) for point in points]
        self._draw.line(places, colour, _LINE * _SCALE, "curve")
        for across, down in places if len(places) == 1 else []:
            size = _LINE * _SCALE
            self._draw.ellipse((across - size, down - size, across + size, down + size), colour)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture."""
        self._image.reduce(_SCALE).save(path, "PNG")


def _line(text: str) -> str:
    """Return a text as one line: Pillow measures no other, and names of agents and runs may hold anything."""
    return " ".join(text.splitlines())


def _scaled(point: tuple[float, float]) -> tuple[float, float]:
    return point[0] * _SCALE, point[1] * _SCALE
