"""A back-end of one's own answers as the one that it comes from, and neither notices the other's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.algorithms.torch_backend import TorchBackend
from menv.inference import onnx_backend
from menv.inference.onnx_backend import OnnxBackend
from tests.bundles.cases import CASES, Spaces, algorithm_of, observations


@pytest.mark.parametrize("kind", ["mlp", "continuous", "masked worth", "lstm", "picture"])
@pytest.mark.parametrize("inference", ["onnx", "torch"])
def test_a_back_end_alone_has_one_policy_and_weights_of_its_own(kind: str, inference: str) -> None:
    case = CASES[kind]
    config = {**case.settings, "inference": inference, "model": {"fcnet_hiddens": [8], **case.model}}
    shown = Spaces(case.observation_space, case.action_space)
    with case.algorithm(env=lambda context: shown, config=config) as algorithm:
        policy: Any = algorithm.get_policy()
        rows, mask = policy.networks.preprocess(observations(policy, 6))
        backend = policy.networks.backend
    assert isinstance(backend, OnnxBackend if inference == "onnx" else TorchBackend)
    other = {name: value * np.float32(0.5) for name, value in backend.get_weights(0).items()}
    second = backend.add_policy(other)
    alone = backend.extract_policy(second)
    assert (alone.policies, alone.obs_size, alone.state_size) == (1, backend.obs_size, backend.state_size)
    assert alone.weight_names == backend.weight_names
    rng = np.random.default_rng(0)
    noise = rng.random((6, backend.head.noise_width)).astype(np.float32)
    state = rng.random((6, backend.state_size), np.float32) if backend.state_size else None
    wanted = backend.decide(rows, mask, noise, second, state)
    for left, right in zip(wanted, alone.decide(rows, mask, noise, 0, state), strict=True):
        np.testing.assert_array_equal(left, right)
    alone.set_weights(0, backend.get_weights(0))
    backend.set_weights(second, {name: value * 0 for name, value in other.items()})
    first, alike = (one.evaluate(0, rows, mask, wanted.actions, state).logp for one in (backend, alone))
    np.testing.assert_array_equal(first, alike)
    still = backend.evaluate(second, rows, mask, wanted.actions, state).logp
    assert not np.array_equal(first, still)


def test_a_back_end_alone_opens_no_graph_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with algorithm_of("mlp") as algorithm:
        policy: Any = algorithm.get_policy()
        backend, rows = policy.networks.backend, np.zeros((2, 3), np.float32)
        before = backend.evaluate(0, rows, None, np.array([0, 1]))
        monkeypatch.delattr(onnx_backend, "open_session")
        after = backend.extract_policy(0).evaluate(0, rows, None, np.array([0, 1]))
        np.testing.assert_array_equal(before.logp, after.logp)
