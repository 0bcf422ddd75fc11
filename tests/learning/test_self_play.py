"""Connect four learned against former selves."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.test_examples import outcome_of


@pytest.mark.slow
@pytest.mark.alone
def test_the_learner_wins_95_of_100_games_against_a_random_player(tmp_path: Path) -> None:
    outcomes = [outcome_of("self_play", folder=tmp_path, seconds="60", seed=seed) for seed in range(3)]
    assert statistics.median(outcome["won"] for outcome in outcomes) >= 0.95
    assert all(outcome["members"] > 3 for outcome in outcomes)
