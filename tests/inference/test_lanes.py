"""Rows of several policies: wherever they are computed, they are answered as by each policy alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from menv.algorithms.networks.stock_spec import StockSpec
from menv.errors import ConfigError
from menv.inference.action_heads import ActionHead
from menv.inference.onnx_backend import OnnxBackend
from tests.inference.lively import lively_weights
from tests.inference.test_onnx_backend import backend, check_each_alone, random_rows


@pytest.mark.each_value
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


def test_policies_that_do_not_fit_leave_the_others_as_they_were() -> None:
    spec = StockSpec(4, ActionHead("categorical", (3,)))
    acting = backend(spec)
    with pytest.raises(ConfigError, match=r"expected \(4, 64\)"):
        acting.add_policy(lively_weights(StockSpec(5, spec.head), 1))
    assert acting.policies == 1
    check_each_alone(acting, random_rows(spec, 16), np.zeros(16, np.int64))


def test_a_back_end_that_travelled_takes_policies_and_goes_on_travelling() -> None:
    spec = StockSpec(3, ActionHead("categorical", (4,)), (5,))
    weights = [spec.first_weights(seed) for seed in range(4)]
    here = OnnxBackend(spec.graphs({}), spec.head, weights[:2])
    there: OnnxBackend = pickle.loads(pickle.dumps(here))
    for one_of_both in (here, there):
        for one in weights[2:]:
            one_of_both.add_policy(one)
    back: OnnxBackend = pickle.loads(pickle.dumps(there))
    obs, which = np.random.default_rng(0).random((12, 3), np.float32), np.arange(12) % 4
    mask = np.ones((12, 4), np.bool_)
    wanted = here.decide(obs, mask, None, which).dist_inputs
    for travelled in (there, back):
        np.testing.assert_array_equal(travelled.decide(obs, mask, None, which).dist_inputs, wanted)
        assert travelled.policies == 4
