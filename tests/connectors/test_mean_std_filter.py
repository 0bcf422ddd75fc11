"""The filter of means: the same statistics in whatever blocks rows come, frozen in evaluation, merged exactly."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.connectors import AgentConnectorDataType, ConnectorContext, MeanStdObservationFilterAgentConnector
from menv.connectors.connector import AgentRows
from menv.connectors.mean_std_filter import RunningMean
from menv.errors import ConfigError
from menv.sample_batch import SampleBatch
from menv.spaces import OutsideSpaceError

Rows = npt.NDArray[Any]
CTX = ConnectorContext()


def seen(filter_: MeanStdObservationFilterAgentConnector, rows: Rows, learning: bool = True) -> Rows:
    batch = AgentRows(rows.astype(np.float32), learning=learning)
    filter_.over_rows(batch)
    out: Rows = batch.obs
    return out


def draws(count: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).normal([3, -50, 1e4], [1, 20, 0.5], (count, 3)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=12))
def test_statistics_do_not_depend_on_the_blocks_in_which_rows_come(sizes: list[int]) -> None:
    rows = draws(sum(sizes))
    filter_ = MeanStdObservationFilterAgentConnector(CTX)
    start = 0
    for size in sizes:
        seen(filter_, rows[start : start + size])
        start += size
    filter_.settle()
    wide = rows.astype(np.float64)
    assert filter_.statistics.count == len(rows)
    np.testing.assert_allclose(filter_.statistics.mean, wide.mean(0), rtol=1e-6)
    np.testing.assert_allclose(
        filter_.statistics.squares, ((wide - wide.mean(0)) ** 2).sum(0), rtol=1e-4, atol=1e-6
    )


def test_rows_come_out_with_mean_zero_and_variance_one() -> None:
    filter_ = MeanStdObservationFilterAgentConnector(CTX)
    seen(filter_, draws(4000))
    out = seen(filter_, draws(4000, 1), learning=False)
    np.testing.assert_allclose(out.mean(0), 0, atol=0.1)
    np.testing.assert_allclose(out.std(0), 1, atol=0.1)
    assert out.dtype == np.float32


def test_statistics_are_frozen_in_evaluation_and_for_rows_that_are_not_sampled() -> None:
    filter_ = MeanStdObservationFilterAgentConnector(CTX)
    seen(filter_, draws(10))
    state = filter_.to_state()
    seen(filter_, draws(99, 1), learning=False)
    filter_.in_eval()
    seen(filter_, draws(99, 2))
    assert filter_.to_state() == state
    filter_.in_training()
    seen(filter_, draws(99, 2))
    assert filter_.to_state() != state


def test_what_two_processes_have_seen_is_merged_and_handed_back() -> None:
    rows = draws(900)
    alone = MeanStdObservationFilterAgentConnector(CTX)
    seen(alone, rows)
    driver = MeanStdObservationFilterAgentConnector(CTX)
    workers = [driver.copy(), driver.copy()]
    for part in np.split(rows, 3):
        for worker, own in zip(workers, np.array_split(part, 2), strict=True):
            seen(worker, own)
            driver.apply_changes(worker)
        for worker in workers:
            worker.sync(driver)
            worker.reset_state()
    for filter_ in (driver, *workers):
        assert filter_.statistics.count == 900
        np.testing.assert_allclose(filter_.statistics.mean, alone.statistics.mean, rtol=1e-6)
        np.testing.assert_allclose(filter_.statistics.squares, alone.statistics.squares, rtol=1e-3)
    assert (
        seen(driver, rows[:5], learning=False).tolist() == seen(workers[0], rows[:5], learning=False).tolist()
    )


def test_a_copy_is_independent_and_a_deep_copy_shares_the_statistics() -> None:
    filter_ = MeanStdObservationFilterAgentConnector(CTX)
    seen(filter_, draws(10))
    own, shared = filter_.copy(), copy.deepcopy(filter_)
    shared.in_eval()
    assert filter_.is_training
    seen(filter_, draws(90, 1))
    filter_.settle()
    assert (own.statistics.count, shared.statistics.count) == (10, 100)


def test_a_state_is_the_same_bit_for_bit_after_json() -> None:
    filter_ = MeanStdObservationFilterAgentConnector(CTX, demean=True, destd=False, clip=None)
    seen(filter_, draws(77))
    name, params = json.loads(json.dumps(filter_.to_state(), allow_nan=False))
    again = MeanStdObservationFilterAgentConnector.from_state(CTX, params)
    assert again.to_state() == filter_.to_state()
    assert name == "MeanStdObservationFilterAgentConnector"
    probe = draws(5, 3)
    assert seen(again, probe, learning=False).tolist() == seen(filter_, probe, learning=False).tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"count": -1}, {"count": 1.5}, {"mean": [1]}, {"squares": [-1, 0, 0]}, {"mean": [float("nan"), 0, 0]},
        {"mean": "abc"},
    ],
)  # fmt: skip
def test_impossible_statistics_are_refused(change: dict[str, Any]) -> None:
    good = RunningMean(3, np.zeros(3), np.ones(3)).to_state()
    with pytest.raises(ConfigError, match="statistics"):
        RunningMean.from_state({**good, **change})


def test_a_number_that_is_not_finite_is_named_and_spoils_nothing() -> None:
    filter_ = MeanStdObservationFilterAgentConnector(CTX)
    seen(filter_, draws(10))
    state = filter_.to_state()
    for bad in (np.nan, np.inf):
        rows = draws(4)
        rows[2, 1] = bad
        with pytest.raises(OutsideSpaceError) as caught:
            seen(filter_, rows)
        assert caught.value.row == 2
    assert filter_.to_state() == state


def test_one_agent_at_a_time_gives_what_a_batch_gives() -> None:
    one, many = (MeanStdObservationFilterAgentConnector(CTX) for _ in range(2))
    rows = draws(50)
    for row in rows:
        one([AgentConnectorDataType(0, 0, {SampleBatch.NEXT_OBS: row})])
    seen(many, rows)
    one.settle()
    np.testing.assert_allclose(one.statistics.mean, many.statistics.mean, rtol=1e-6)
