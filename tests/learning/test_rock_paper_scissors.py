"""What a feed-forward policy learns of rock-paper-scissors when it sees the opponent's last hand alone."""

from __future__ import annotations

import statistics

import pytest

from tests.test_examples import outcome_of

BOTH = ("always_same", "beat_last_move")


def median_points(*opponents: str) -> dict[str, float]:
    """Return the median of three seeds' points against each opponent."""
    outcomes = [
        outcome_of("rock_paper_scissors", "--opponents", *opponents, seconds="8", seed=seed)[0]["points"]
        for seed in range(3)
    ]
    return {name: statistics.median(points[name] for points in outcomes) for name in opponents}


@pytest.mark.slow
def test_it_beats_one_that_always_shows_the_same_hand() -> None:
    assert median_points("always_same")["always_same"] >= 7.0


@pytest.mark.slow
def test_it_cannot_beat_one_that_beats_its_last_hand() -> None:
    assert -1.0 <= median_points("beat_last_move")["beat_last_move"] <= 1.0


@pytest.mark.slow
def test_it_beats_only_the_one_of_them_when_it_meets_both() -> None:
    points = median_points(*BOTH)
    assert points["always_same"] >= 7.0
    assert points["beat_last_move"] <= 1.0
