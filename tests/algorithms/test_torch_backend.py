"""Acting with torch: equal to acting with ONNX Runtime, and the check that tells when it is not."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from menv.algorithms.networks.stock_graphs import StockGraphs
from menv.algorithms.networks.stock_spec import Activation, StockSpec
from menv.algorithms.networks.torch_stock import TorchStock
from menv.algorithms.torch_backend import TorchBackend, check_against
from menv.errors import ConfigError
from menv.inference.action_heads import ActionHead
from menv.inference.backend import ActingBackend
from menv.inference.onnx_backend import OnnxBackend
from tests.inference.lively import lively_weights

HEADS = [
    ActionHead("categorical", (5,)),
    ActionHead("multi_categorical", (3, 2, 4)),
    ActionHead("multi_categorical", (2, 2)),
    ActionHead("gaussian", (3,)),
    ActionHead("gaussian", (1,)),
    ActionHead("q_values", (2,)),
    ActionHead("q_values", (5,)),
    ActionHead("multi_categorical", (2,)),
    ActionHead("categorical", (2,)),
    ActionHead("mixed", (0, 3, 0, 2)),
    ActionHead("mixed", (2, 0)),
]


def spec_of(obs_size: int, head: ActionHead, **settings: Any) -> StockSpec:
    """Q-values of more than two choices are dueling, so that both ways are met."""
    return StockSpec(obs_size, head, dueling=head.kind == "q_values" and head.sizes[0] > 2, **settings)


def both_backends(spec: StockSpec, policies: int = 1) -> tuple[OnnxBackend, TorchBackend]:
    weights = [lively_weights(spec, seed) for seed in range(policies)]
    return (
        OnnxBackend(StockGraphs(spec), spec.head, weights),
        TorchBackend(partial(TorchStock, spec), spec.head, weights),
    )


def random_rows(spec: StockSpec, rows: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(rows)
    head = spec.head
    obs = rng.standard_normal((rows, spec.obs_size), np.float32)
    if head.kind == "gaussian":
        return obs, None, rng.standard_normal((rows, head.noise_width), np.float32)
    mask = rng.random((rows, head.mask_width)) < 0.5
    mask[:, np.cumsum((0, *head.choices[:-1]))] = True
    return obs, mask, head.sample_noise(rng, rows)


@pytest.mark.slow_unless("*-tanh-*", "*-head0", "*-head5")
@pytest.mark.each_value
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu", "elu", "linear"])
@pytest.mark.parametrize("share", [False, True])
def test_torch_and_onnx_agree_on_everything(head: ActionHead, activation: Activation, share: bool) -> None:
    spec = spec_of(6, head, hiddens=(32, 24), activation=activation, vf_share_layers=share)
    onnx, torch = both_backends(spec)
    obs, mask, noise = random_rows(spec, 100)
    for allowed in (mask, None):
        actions = onnx.decide(obs, allowed, noise).actions
        np.testing.assert_allclose(torch.decide(obs, allowed, noise).actions, actions, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            torch.decide(obs, allowed, None).actions,
            onnx.decide(obs, allowed, None).actions,
            rtol=1e-5,
            atol=1e-5,
        )
        for mine, theirs in zip(
            torch.evaluate(0, obs, allowed, actions), onnx.evaluate(0, obs, allowed, actions), strict=True
        ):
            assert mine.dtype == theirs.dtype == np.float32
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(torch.values(0, obs), onnx.values(0, obs), rtol=1e-5, atol=1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_rows_of_several_policies_are_answered_by_their_own(head: ActionHead, rows: int) -> None:
    spec = spec_of(6, head)
    onnx, torch = both_backends(spec, policies=3)
    obs, mask, noise = random_rows(spec, rows)
    which = np.random.default_rng(0).integers(0, 3, rows)
    for mine, theirs in (
        (torch.decide(obs, mask, noise, which).actions, onnx.decide(obs, mask, noise, which).actions),
        (torch.decide(obs, mask, None, which).actions, onnx.decide(obs, mask, None, which).actions),
    ):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("policy.out.bias", "distribution inputs"),
        ("value.1.weight", "values"),
        ("policy.log_std", "distribution"),
    ],
)
def test_the_check_names_what_differs_and_for_which_policy(name: str, what: str) -> None:
    spec = StockSpec(6, HEADS[3])
    onnx, torch = both_backends(spec, policies=2)
    changed = onnx.get_weights(1)
    changed[name] += 0.01
    onnx.set_weights(1, changed)
    backend: ActingBackend = onnx
    with pytest.raises(ConfigError, match=f'{what}.* of policy 1 differ by .* set inference="torch"'):
        check_against(backend, torch, np.random.default_rng(0))


def test_outputs_that_are_no_numbers_do_not_pass_the_check() -> None:
    onnx, torch = both_backends(StockSpec(6, HEADS[3]))
    broken = onnx.get_weights(0)
    broken["value.out.bias"][:] = np.nan
    onnx.set_weights(0, broken)
    with pytest.raises(ConfigError, match="values of policy 0 differ by nan"):
        check_against(onnx, torch, np.random.default_rng(0))
