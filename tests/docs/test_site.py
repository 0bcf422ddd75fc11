"""The documentation site: it builds strictly, works offline, and its reference has every public name."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from menv.cli.main import main
from tests.browser import Browser
from tests.doc_blocks import blocks, run_python
from tests.docs.options_page import PAGE as OPTIONS
from tests.docs.options_page import page as options_page
from tests.house.public_names import PACKAGES, exported
from tests.house.sources import ROOT

FETCHED = re.compile(
    r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\bhref=\"?(?:https?:)?//"
)
"""Something that a browser loads from the web when it shows a page; plain links are fine."""

FOUND_FIRST = {
    "MAPPO": "how_to/mappo",
    "CTDE": "how_to/mappo",
    "IPPO": "how_to/ippo",
    "parameter sharing": "how_to/parameter_sharing",
    "action masking": "how_to/action_masks",
    "resume": "how_to/resume",
    "deploy": "tutorials/deploy_onnx",
    "export": "how_to/deploying",
    "checkpoint": "how_to/resume",
    "QMIX": "how_to/mappo",
    "self-play": "how_to/self_play",
    "zero-sum": "tutorials/card_game",
    "turn-based": "tutorials/card_game",
    "AEC": "tutorials/card_game",
    "hyperparameter": "how_to/sweeps",
    "RLlib": "tutorials/from_rllib",
    "PettingZoo": "how_to/environments",
    "MARL": "index",
}
"""What readers search for, and the first page of the results."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_the_web(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert {page.name for page in pages if FETCHED.search(page.read_text("utf-8"))} == set()


@pytest.mark.slow
def test_one_offline_search_finds_the_page_that_a_reader_wants(site: Path) -> None:
    found = {}
    with Browser() as browser:
        for words in FOUND_FIRST:
            browser.open(f"{(site / 'index.html').as_uri()}?q={quote(words)}")
            link = browser.wait_for("document.querySelector('.md-search-result__item a')?.href")
            found[words] = (
                Path(link.partition("?")[0].partition("#")[0]).relative_to(site.as_uri()).as_posix()
            )
    assert found == {words: f"{page}.html" for words, page in FOUND_FIRST.items()}


def test_the_reference_has_every_public_name_once() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    shown = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    assert len(shown) == len(set(shown))
    names: dict[str, set[object]] = {"here": set(), "there": set()}
    for package in PACKAGES:
        for name, value in exported(package).items():
            names["here" if f"{package}.{name}" in shown else "there"].add(value)
    assert names["there"] <= names["here"]
    assert len(shown) == len(names["here"])


def test_the_page_of_options_is_the_one_that_the_parsers_make() -> None:
    assert OPTIONS.read_text("utf-8") == options_page(), "run python -m tests.docs.options_page"


@pytest.mark.slow
def test_the_first_page_trains_and_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("4\n"))
    for line in (
        "".join(blocks("docs/index.md", "sh")).replace("time_total_s=20", "time_total_s=1").splitlines()
    ):
        program, *arguments = line.split()
        assert (program, main(arguments)) == ("menv", 0)


@pytest.mark.slow_unless("poll_and_send", "rewards")
@pytest.mark.parametrize(
    "page", ["poll_and_send", "rewards", "trajectories", "acting_graphs", "reproducibility"]
)
def test_the_blocks_of_a_concept_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
    document = f"docs/concepts/{page}.md"
    printed = run_python(tmp_path / "page.py", "".join(blocks(document, "python")))
    assert printed == "".join(blocks(document, "text")).splitlines()
    for line in "".join(blocks(document, "sh")).splitlines():
        program, *arguments = line.split()
        assert (program, main(arguments)) == ("menv", 0)
