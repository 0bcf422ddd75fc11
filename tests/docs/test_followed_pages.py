"""Readers who follow a tutorial or a how-to page from top to bottom see what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doc_blocks import follow

PAGES = [
    "how_to/action_masks",
    "how_to/appearing_agents",
    "how_to/clusters",
    "how_to/crashes",
    "how_to/docker",
    "how_to/external",
    "how_to/gpus",
    "how_to/hierarchy",
    "how_to/ippo",
    "how_to/lstm",
    "how_to/mappo",
    "how_to/not_learning",
    "how_to/offline",
    "how_to/paper_figure",
    "how_to/parameter_sharing",
    "how_to/resume",
    "how_to/self_play",
    "how_to/several_algorithms",
    "how_to/slow",
    "how_to/sweeps",
    "how_to/trackers",
    "reference/settings",
    "tutorials/card_game",
    "tutorials/cartpole",
    "tutorials/from_rllib",
]
"""Those with Node.js are followed in tests/node."""

SHORTER = {
    "how_to/clusters": {'"engine": "ray"': '"engine": "process"'},
    "how_to/mappo": {
        f"--run {run}": f"--run {run} --stop training_iteration=1" for run in ("MAPPO", "QMIX", "VDN")
    },
    "how_to/paper_figure": {"100_000": "1_000"},
    "how_to/sweeps": {
        "seeds = 2": "seeds = 1",
        "seeds = 3": "seeds = 1",
        "--seeds 5": "--seeds 2",
        "=20000": "=500",
        "100_000": "100",
    },
}


@pytest.mark.slow_unless("*/parameter_sharing")
@pytest.mark.parametrize("page", PAGES)
def test_a_followed_page_prints_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Data sets would land in the user's folder.
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    follow(f"docs/{page}.md", tmp_path, SHORTER.get(page))
