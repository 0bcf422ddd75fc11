"""The tables of `menv/zoo`: each scores more than the defaults, which is why it is there."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.learning.__main__ import measured
from benchmarks.learning.tables import DEFAULTS, groups


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_a_table_of_the_zoo_scores_more_than_the_defaults_over_three_seeds(env: str, tmp_path: Path) -> None:
    experiments = {one.table: one for group in groups() for one in group.experiments if one.env == env}
    table, defaults = (
        statistics.fmean(
            measured(experiments[name], seed, tmp_path / f"{name}-{seed}")[0]["score"] for seed in range(3)
        )
        for name in ("PPO", f"PPO{DEFAULTS}")
    )
    assert table > defaults
