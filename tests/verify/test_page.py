"""The page about runs that can be compared says what is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from menv.verify.verify import BACKENDS
from tests.doc_blocks import blocks, run_python
from tests.house.sources import ROOT


@pytest.mark.slow
def test_the_blocks_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    digests, careless = blocks("docs/how_to/verifying.md", "python")
    assert run_python(tmp_path / "digests.py", digests) == ["equal digests: True"]
    assert run_python(tmp_path / "careless.py", careless) == ["same: False", "first: 0 5 'agent0' obs[1]"]


def test_every_back_end_is_in_the_table() -> None:
    text = (ROOT / "docs/how_to/verifying.md").read_text("utf-8")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert ", ".join(rows[1:]).split(", ") == [backend.name for backend in BACKENDS]
