"""Weights of many policies side by side: what a policy costs that comes to many others."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from menv.algorithms.networks.stock_spec import StockSpec
from menv.errors import ConfigError
from menv.inference.action_heads import ActionHead
from menv.inference.onnx_backend import OnnxBackend, WeightStacks


def test_policies_that_come_one_by_one_seldom_move_the_others_and_change_none() -> None:
    def weights(number: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        return {"a": np.full((3, 2), number, np.float32), "b": np.full(1, -number, np.float32)}

    stacks = WeightStacks([weights(0)])
    places = set()
    for number in range(1, 200):
        stacks.append([weights(number)])
        places.add(stacks["a"].ctypes.data)
    assert len(places) < 12
    assert stacks["a"].shape == (200, 3, 2)
    np.testing.assert_array_equal(stacks["a"][:, 0, 0], np.arange(200))
    np.testing.assert_array_equal(stacks["b"][:, 0], -np.arange(200))
    stacks.put(7, weights(1000))
    assert stacks.of(7)["b"].tolist() == [-1000.0]
    assert stacks["a"][7, 2, 1] == 1000.0


def test_policies_that_do_not_fit_leave_the_others_as_they_were() -> None:
    stacks = WeightStacks([{"a": np.zeros(2, np.float32)}])
    fits, other = {"a": np.ones(2, np.float32)}, {"a": np.ones(3, np.float32)}
    with pytest.raises(ConfigError, match=r"'a' of shape \(3,\), expected \(2,\)"):
        stacks.append([fits, other])
    assert stacks.policies == 1
    assert stacks["a"].tolist() == [[0.0, 0.0]]


def test_a_back_end_that_travelled_takes_policies_and_goes_on_travelling() -> None:
    spec = StockSpec(3, ActionHead("categorical", (4,)), (5,))
    weights = [spec.first_weights(seed) for seed in range(4)]
    here = OnnxBackend(spec.graphs({}), spec.head, weights[:2])
    there: OnnxBackend = pickle.loads(pickle.dumps(here))
    for backend in (here, there):
        for one in weights[2:]:
            backend.add_policy(one)
    back: OnnxBackend = pickle.loads(pickle.dumps(there))
    obs, which = np.random.default_rng(0).random((12, 3), np.float32), np.arange(12) % 4
    mask = np.ones((12, 4), np.bool_)
    wanted = here.decide(obs, mask, None, which).dist_inputs
    for backend in (there, back):
        np.testing.assert_array_equal(backend.decide(obs, mask, None, which).dist_inputs, wanted)
        assert backend.policies == 4
