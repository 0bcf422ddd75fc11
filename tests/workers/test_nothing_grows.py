"""Memory and files stay where they are while agents churn, environments crash and workers are killed."""

from __future__ import annotations

import pytest

from tests.workers.churn import churn, growth


def check(seconds: float, most_mb: float) -> None:
    sizes, result = churn(seconds)
    grown = growth(sizes)
    # What it is about has happened.
    assert result["num_worker_restarts"] >= 2
    assert result["faulty_episodes_total"] > result["num_worker_restarts"]
    assert grown.driver < most_mb, sizes[:: max(1, len(sizes) // 20)]
    assert grown.worker < most_mb, sizes[:: max(1, len(sizes) // 20)]
    assert grown.files <= 2


@pytest.mark.slow
def test_a_minute_of_churn_leaves_nothing_behind() -> None:
    check(60.0, 8.0)


@pytest.mark.soak
def test_half_an_hour_of_churn_leaves_nothing_behind() -> None:
    check(1800.0, 8.0)
