"""Readers who follow the tutorials with Node.js see what these show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doc_blocks import follow


@pytest.mark.slow
def test_the_simulator_in_node_learns_over_http(node_modules: Path, tmp_path: Path) -> None:
    follow("docs/tutorials/nodejs_simulator.md", tmp_path, {"30_000": "4_000"})
