"""The picture of learning curves: its lines, bands and texts, and what is refused."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from menv.algorithms import plot_curves
from menv.errors import ConfigError, MissingExtraError


def texts(path: Path) -> set[str]:
    return {str(one.text).strip() for one in ElementTree.parse(path).getroot().iter() if one.text}


def test_an_svg_has_a_line_in_its_colour_for_each_name_and_the_texts(tmp_path: Path) -> None:
    path = tmp_path / "curves.svg"
    names = ["<b>$x$&", "_hidden", "two\nlines", "half \ud800"]
    series = {name: [(0.0, float(at)), (1.0, 1.0)] for at, name in enumerate(names)}
    bands = {"two\nlines": [(0.0, 0.0, 1.0), (1.0, 0.0, 1.0)]}
    plot_curves(path, {**series, "dot": [(0.5, 0.5)]}, bands=bands, title="Points", y_label="of ten")
    shown = texts(path)
    assert {
        "Points",
        "of ten",
        "env steps",
        "<b>$x$&",
        "_hidden",
        "two lines",
        "half \N{REPLACEMENT CHARACTER}",
    } <= shown
    text = path.read_text()
    # A line and its entry in the legend have a colour, axes and their marks are grey.
    strokes = Counter(re.findall(r"stroke: #(\w{6})", text))
    assert sum(times >= 2 and colour[:2] != colour[2:4] for colour, times in strokes.items()) == 5
    assert text.count("fill-opacity: 0.2") + text.count("opacity: 0.2") >= 1


def test_other_names_are_png(tmp_path: Path) -> None:
    plot_curves(tmp_path / "curves.png", {"a": [(7.0, 1.0), (7.0, -1e9)], "b": [(5.0, 3.0)]})
    with Image.open(tmp_path / "curves.png") as image:
        assert (image.format, image.size) == ("PNG", (960, 560))


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(1.0, None)], "b": [(math.nan, 1.0)]}])
def test_an_empty_picture_is_refused(tmp_path: Path, series: Any) -> None:
    with pytest.raises(ConfigError, match="plot_curves"):
        plot_curves(tmp_path / "curves.png", series)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"menv-rl\[plot\]"):
        plot_curves(tmp_path / "curves.png", {"a": [(0.0, 1.0)]})
