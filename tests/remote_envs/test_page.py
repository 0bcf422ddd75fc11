"""The page about environments in other processes says what is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doc_blocks import blocks, run_python


@pytest.mark.slow
@pytest.mark.alone
def test_the_block_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    (script,) = blocks("docs/how_to/remote_environments.md", "python")
    assert run_python(tmp_path / "simulator.py", script) == [
        "env steps: 160",
        "faster than one after another: True",
    ]
