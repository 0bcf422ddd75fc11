"""Readers who follow a tutorial or a how-to page from top to bottom see what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doc_blocks import follow

PAGES = [
    "docs/tutorials/card_game.md",
    "docs/tutorials/cartpole.md",
    "docs/tutorials/from_rllib.md",
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_is_followed_shows_what_it_says(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path)
