"""A picture of learning curves: lines over an axis, with ticks, bands and a legend, as a PNG or SVG.

Examples and `menv plot` call `plot_curves`. A PNG needs Pillow, which comes with tensorboard; knows no results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias

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
_OPACITY = 0.2


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
        y_label: Above the axis of y.

    Raises:
        ConfigError: There is no point at all.
        MissingExtraError: Pillow is not installed, for a PNG.
    """
    lines = {name: _finite(points) for name, points in series.items()}
    areas = {name: band for name, band in (bands or {}).items() if band and lines.get(name)}
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ConfigError(
            f"plot_curves: {len(series)} series without a finite point, expected at least one point; train longer"
        )
    points += [(x, y) for band in areas.values() for x, *ends in band for y in ends]
    canvas: _Canvas = _Svg() if Path(path).suffix == ".svg" else _Picture()
    texts = (title, x_label, y_label)
    frame = _Frame.around(points, canvas, legend=max(canvas.width(name) for name in lines))
    _draw_axes(canvas, frame, texts)
    for number, name in enumerate(lines):
        if band := areas.get(name):
            edge = [(x, low) for x, low, _ in band] + [(x, high) for x, _, high in reversed(band)]
            canvas.area([frame.place(point) for point in edge], COLOURS[number % len(COLOURS)])
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


_Place: TypeAlias = tuple[float, float]
_Colour: TypeAlias = tuple[int, int, int]


class _Canvas(Protocol):
    """A sheet that is drawn on in pixels of the finished picture."""

    def width(self, text: str) -> float:
        """Return how wide a text is."""

    def text(self, at: _Place, text: str, anchor: str) -> None:
        """Write at a place that is the text's `anchor`, as Pillow calls it."""

    def line(self, start: _Place, end: _Place, colour: _Colour) -> None:
        """Draw a thin straight line."""

    def curve(self, points: Sequence[_Place], colour: _Colour) -> None:
        """Draw a line through points; one alone is a dot."""

    def area(self, points: Sequence[_Place], colour: _Colour) -> None:
        """Fill a polygon, lightly."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture."""


class _Picture:
    """A PNG."""

    def __init__(self) -> None:
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError as error:
            raise MissingExtraError(
                "plot_curves: the package pillow is not installed, expected it; run: pip install 'menv-rl[train]', or "
                "leave the picture out"
            ) from error
        self._image = Image.new("RGB", (_SIZE[0] * _SCALE, _SIZE[1] * _SCALE), _PAPER)
        self._draw = ImageDraw.Draw(self._image)
        # Unlike the other one, it mixes a colour with the colours below.
        self._glaze = ImageDraw.Draw(self._image, "RGBA")
        self._font: Any = ImageFont.load_default(_TEXT * _SCALE)

    def width(self, text: str) -> float:
        return float(self._draw.textlength(_line(text), self._font)) / _SCALE

    def text(self, at: _Place, text: str, anchor: str) -> None:
        self._draw.text(_scaled(at), _line(text), _INK, self._font, anchor)

    def line(self, start: _Place, end: _Place, colour: _Colour) -> None:
        self._draw.line([_scaled(start), _scaled(end)], colour, _SCALE)

    def curve(self, points: Sequence[_Place], colour: _Colour) -> None:
        places = [_scaled(point) for point in points]
        self._draw.line(places, colour, _LINE * _SCALE, "curve")
        for across, down in places if len(places) == 1 else []:
            size = _LINE * _SCALE
            self._draw.ellipse((across - size, down - size, across + size, down + size), colour)

    def area(self, points: Sequence[_Place], colour: _Colour) -> None:
        self._glaze.polygon([_scaled(point) for point in points], (*colour, round(255 * _OPACITY)))

    def save(self, path: str | PathLike[str]) -> None:
        self._image.reduce(_SCALE).save(path, "PNG")


class _Svg:
    """An SVG."""

    _ANCHORS: Mapping[str, tuple[str, str]] = {
        "lm": ("start", "0.35em"), "rm": ("end", "0.35em"), "mt": ("middle", "0.8em"), "lb": ("start", "-0.25em")
    }  # fmt: skip

    def __init__(self) -> None:
        size = f'width="{_SIZE[0]}" height="{_SIZE[1]}" viewBox="0 0 {_SIZE[0]} {_SIZE[1]}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{_TEXT}">',
            f'<rect width="100%" height="100%" fill="rgb{_PAPER}"/>',
        ]

    def width(self, text: str) -> float:
        # The font is the reader's; most letters are narrower.
        return len(_line(text)) * _TEXT * 0.6

    def text(self, at: _Place, text: str, anchor: str) -> None:
        side, shift = self._ANCHORS[anchor]
        place = f'x="{at[0]:.1f}" y="{at[1]:.1f}" dy="{shift}" text-anchor="{side}" fill="rgb{_INK}"'
        # XML has no control characters and no halves of characters.
        shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in _line(text))
        self._parts.append(f"<text {place}>{escape(shown)}</text>")

    def line(self, start: _Place, end: _Place, colour: _Colour) -> None:
        self._shape("polyline", [start, end], f'stroke="rgb{colour}"')

    def curve(self, points: Sequence[_Place], colour: _Colour) -> None:
        # Round ends make a dot of a single point.
        style = f'stroke="rgb{colour}" stroke-width="{_LINE}" stroke-linejoin="round" stroke-linecap="round"'
        self._shape("polyline", points if len(points) > 1 else [*points, *points], style)

    def area(self, points: Sequence[_Place], colour: _Colour) -> None:
        self._shape("polygon", points, f'fill="rgb{colour}" fill-opacity="{_OPACITY}"')

    def save(self, path: str | PathLike[str]) -> None:
        Path(path).write_text("\n".join([*self._parts, "</svg>\n"]), "utf-8")

    def _shape(self, kind: str, points: Sequence[_Place], style: str) -> None:
        places = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        fill = "" if "fill=" in style else 'fill="none" '
        self._parts.append(f'<{kind} points="{places}" {fill}{style}/>')


def _line(text: str) -> str:
    """Return a text as one line: Pillow measures no other, and names of agents and runs may hold anything."""
    return " ".join(text.splitlines())


def _scaled(point: tuple[float, float]) -> tuple[float, float]:
    return point[0] * _SCALE, point[1] * _SCALE
