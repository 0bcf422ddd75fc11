"""The picture of learning curves, read back pixel by pixel."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from menv.algorithms import plot_curves
from menv.errors import ConfigError
from menv.tracking.curves import COLOURS, ticks
from tests.bad_input.broken_envs import checked


def drawn(tmp_path: Path, series: Any, **texts: Any) -> npt.NDArray[np.uint8]:
    """Return the pixels [H, W, 3] of a picture."""
    path = tmp_path / "curves.png"
    plot_curves(path, series, **texts)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def where(pixels: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.int64]:
    """Return the places [N, (row, column)] of the pixels that have the colour of a line."""
    return np.argwhere((pixels == COLOURS[number]).all(-1))


def test_each_line_is_there_in_its_colour_and_once_more_in_the_legend(tmp_path: Path) -> None:
    rising = [(float(x), float(x)) for x in range(50)]
    falling = [(float(x), 49.0 - x) for x in range(50)]
    pixels = drawn(tmp_path, {"up": rising, "down": falling})
    for number in (0, 1):
        places = where(pixels, number)
        line = places[places[:, 1] < 700]
        # From one corner of the frame to the other one.
        assert line[:, 1].max() - line[:, 1].min() > 500
        assert line[:, 0].max() - line[:, 0].min() > 350
        left, right = line[line[:, 1].argmin(), 0], line[line[:, 1].argmax(), 0]
        assert (left > right) == (number == 0)
    legends = [where(pixels, number)[where(pixels, number)[:, 1] > 880] for number in (0, 1)]
    assert 0 < legends[0][:, 0].mean() < legends[1][:, 0].mean()
    assert len(where(pixels, 2)) == 0


def test_a_higher_value_is_drawn_higher_and_a_later_one_further_right(tmp_path: Path) -> None:
    series = {"low": [(0.0, 1.0)], "high": [(0.0, 9.0)], "late": [(50.0, 1.0)], "last": [(100.0, 5.0)]}
    pixels = drawn(tmp_path, series)
    dots = [where(pixels, number) for number in range(3)]
    rows = [dot[dot[:, 1] < 800][:, 0].mean() for dot in dots]
    columns = [dot[dot[:, 1] < 800][:, 1].mean() for dot in dots]
    assert rows[1] < rows[0] == pytest.approx(rows[2])
    assert columns[2] > columns[1] == pytest.approx(columns[0])


def test_texts_leave_ink(tmp_path: Path) -> None:
    series = {"a": [(0.0, 0.0), (1.0, 1.0)]}
    plain, told = drawn(tmp_path, series), drawn(tmp_path, series, title="Points", y_label="points of ten")
    assert (plain[:50] != told[:50]).any()
    assert (drawn(tmp_path, series, x_label="") != plain)[500:].any()


@pytest.mark.parametrize(
    "points", [[(5.0, 3.0)], [(0.0, 2.0), (10.0, 2.0)], [(0.0, 0.0), (1.0, 0.0)], [(7.0, 1.0), (7.0, -1e9)]]
)
def test_level_lines_and_single_points_have_axes_too(tmp_path: Path, points: Any) -> None:
    assert len(where(drawn(tmp_path, {"a": points}), 0)) > 20


def test_names_of_several_lines_are_drawn_in_one(tmp_path: Path) -> None:
    drawn = []
    for number, between in enumerate((" ", "\n")):
        path = tmp_path / f"{number}.png"
        name = f"agent{between}0"
        plot_curves(path, {name: [(0, 1.0), (1, 2.0)]}, title=name, x_label=name, y_label=name)
        drawn.append(path.read_bytes())
    assert drawn[0] == drawn[1]


def test_points_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    good = [(0.0, 1.0), (2.0, 3.0)]
    bad: list[Any] = [(0.5, None), (1.0, math.nan), (1.5, math.inf), (math.nan, 1.0)]
    with_bad = [good[0], *bad, good[1]]
    assert (drawn(tmp_path, {"a": good}) == drawn(tmp_path, {"a": with_bad})).all()


def test_more_lines_than_colours_begin_again(tmp_path: Path) -> None:
    series = {f"line {number}": [(0.0, float(number)), (1.0, float(number))] for number in range(9)}
    pixels = drawn(tmp_path, series)
    assert len(where(pixels, 0)) > 1.5 * len(where(pixels, 3))


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (-2, 9, [-2, 0, 2, 4, 6, 8]), (0, 131072, [0, 50_000, 100_000]),
     (3.2, 3.9, [3.2, 3.4, 3.6, 3.8]), (1e-5, 2e-5, [1e-5, 1.2e-5, 1.4e-5, 1.6e-5, 1.8e-5, 2e-5])],
)  # fmt: skip
def test_the_numbers_at_the_axes_are_round(low: float, high: float, wanted: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(wanted)


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(1.0, None)], "b": [(math.nan, 1.0)]}])
def test_a_picture_of_nothing_is_refused(tmp_path: Path, series: Any) -> None:
    with pytest.raises(ConfigError, match=r"plot_curves: \d series without a finite point") as caught:
        plot_curves(tmp_path / "curves.png", series)
    checked(str(caught.value))
    assert list(tmp_path.iterdir()) == []


def test_a_band_is_a_lighter_area_around_its_line(tmp_path: Path) -> None:
    line = {"a": [(0.0, 5.0), (10.0, 5.0)]}
    bands = {"a": [(0.0, 0.0, 10.0), (10.0, 0.0, 10.0)]}
    plot_curves(tmp_path / "curves.png", line, bands=bands)
    with Image.open(tmp_path / "curves.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    lighter = [round(255 - (255 - value) * 0.2) for value in COLOURS[0]]
    assert (np.abs(pixels.astype(int) - lighter).max(-1) <= 2).sum() > 100_000


def test_an_svg_has_the_same_lines_and_texts(tmp_path: Path) -> None:
    name = "<b>\x00\ud800&"
    points = [(0.0, 0.0), (1.0, 1.0)]
    plot_curves(
        tmp_path / "curves.svg", {name: points, "dot": [(0.5, 0.5)]}, bands={name: [(0, 0, 1), (1, 0, 1)]}
    )
    root = ElementTree.parse(tmp_path / "curves.svg").getroot()
    kinds = [element.tag.rpartition("}")[2] for element in root.iter()]
    colours = [element.get("stroke") for element in root.iter() if element.get("stroke-width")]
    assert colours == [f"rgb{COLOURS[0]}"] * 2 + [f"rgb{COLOURS[1]}"] * 2
    assert kinds.count("polygon") == 1
    texts = [element.text for element in root.iter() if element.text and element.text.strip()]
    assert {"<b>\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}&", "dot", "env steps"} <= set(texts)
