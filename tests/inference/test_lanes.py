"""Rows of several policies: wherever they are computed, they are answered as by each policy alone."""

from __future__ import annotations

import numpy as np
import pytest

from menv.algorithms.networks.stock_spec import StockSpec
from menv.inference.action_heads import ActionHead
from menv.inference.onnx_backend import PolicyBatchLayout
from tests.inference.lively import lively_weights
from tests.inference.test_onnx_backend import backend, check_each_alone, random_rows


@pytest.mark.parametrize("policies", [2, 9, 40])
@pytest.mark.parametrize("rows", [2, 3, 16, 64, 257, 1000])
def test_rows_of_any_number_of_policies_are_answered_alike_wherever_they_lie(
    policies: int, rows: int
) -> None:
    spec = StockSpec(4, ActionHead("categorical", (3,)))
    acting = backend(spec, policies)
    rng = np.random.default_rng(rows * policies)
    shares = [
        np.arange(rows) % policies,
        np.sort(rng.integers(0, policies, rows)),
        np.full(rows, policies - 1),
        np.where(rng.random(rows) < 0.9, 1, rng.integers(0, policies, rows)),
    ]
    for which in shares:
        which.flags.writeable = False
    # Each comes once, then again and again, then they take turns.
    for which in (*shares, *[one for one in shares for _ in range(3)], *shares):
        check_each_alone(acting, random_rows(spec, rows, int(rng.integers(1000))), which)


@pytest.mark.parametrize("rows", [4, 16, 40, 100])
@pytest.mark.parametrize("asked", [1, 2, 5])
def test_policies_that_are_not_asked_are_not_computed(rows: int, asked: int) -> None:
    policies, spare_rows = 500, 100
    plan = PolicyBatchLayout(policies, spare_rows)
    which = np.random.default_rng(rows).integers(policies - asked, policies, rows)
    for _ in range(5):
        lanes = plan.lanes_of(which)
        computed = rows if lanes is None else policies * (lanes.depth or rows)
        # Two runs are what it costs to sort rows.
        assert computed <= rows + spare_rows * (asked + 1)


def test_few_rows_of_all_policies_are_computed_together() -> None:
    lanes = PolicyBatchLayout(20, 100).lanes_of(np.arange(40) % 20)
    assert lanes is not None


def test_rows_in_lanes_are_answered_with_new_weights_and_beside_a_new_policy() -> None:
    spec = StockSpec(4, ActionHead("categorical", (3,)))
    acting = backend(spec, policies=2)
    which = np.arange(16) % 2
    which.flags.writeable = False
    for change in (
        lambda: None,
        lambda: None,
        lambda: acting.set_weights(1, lively_weights(spec, 7)),
        lambda: acting.add_policy(lively_weights(spec, 8)),
        lambda: None,
    ):
        change()
        check_each_alone(acting, random_rows(spec, 16), which)
    other = np.arange(16) % 3
    check_each_alone(acting, random_rows(spec, 16), other)
