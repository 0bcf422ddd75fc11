"""The flat optimizer against torch's own, and its state."""

import numpy as np
import pytest
import torch
from torch import Tensor

from menv.algorithms.training.flat_adam import FlatAdam
from menv.errors import ConfigError

WEIGHTS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3) / 5.0,
    "b": np.array([0.5, -1.0, 2.0], np.float32),
}


def loss_of(params: dict[str, Tensor], step: int) -> Tensor:
    x = torch.tensor([[1.0, 0.3 * step], [0.5, -1.0]])
    return ((x @ params["a"] + params["b"]).tanh() - 0.1 * step).square().sum()


@pytest.mark.parametrize("grad_clip", [None, 0.5, 100.0])
def test_twenty_updates_equal_those_of_torch(grad_clip: float | None) -> None:
    flat = FlatAdam(WEIGHTS, 1e-2, grad_clip=grad_clip)
    theirs = {name: torch.tensor(value, requires_grad=True) for name, value in WEIGHTS.items()}
    adam = torch.optim.Adam(theirs.values(), lr=1e-2, eps=1e-5)
    for step in range(20):
        torch.autograd.backward(loss_of(flat.params, step))
        norm = flat.step()
        adam.zero_grad()
        torch.autograd.backward(loss_of(theirs, step))
        wanted = torch.nn.utils.clip_grad_norm_(theirs.values(), grad_clip or float("inf"))
        adam.step()
        torch.testing.assert_close(norm, wanted)
    for name, value in flat.weights().items():
        np.testing.assert_allclose(value, theirs[name].detach().numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(bad: float) -> None:
    flat, beside = FlatAdam(WEIGHTS, 1e-2, grad_clip=0.5), FlatAdam(WEIGHTS, 1e-2, grad_clip=0.5)
    for step in range(4):
        if step == 2:
            torch.autograd.backward((flat.params["a"] * bad).sum() * 4.0)
            flat.step()
        for adam in (flat, beside):
            torch.autograd.backward(loss_of(adam.params, step))
            adam.step()
    assert (flat.skipped, beside.skipped, flat.steps) == (1, 0, 4)
    for name, value in flat.weights().items():
        np.testing.assert_array_equal(value, beside.weights()[name])


def test_a_restored_optimizer_continues_as_if_it_had_never_stopped() -> None:
    whole = FlatAdam(WEIGHTS, 1e-2)
    torch.autograd.backward(loss_of(whole.params, 0) * torch.inf)
    whole.step()
    for step in range(3):
        torch.autograd.backward(loss_of(whole.params, step))
        whole.step()
    resumed = FlatAdam(whole.weights(), 1e-2)
    resumed.set_state(whole.state())
    assert resumed.skipped == 1
    for adam in (whole, resumed):
        torch.autograd.backward(loss_of(adam.params, 9))
        adam.step()
    for name, value in whole.weights().items():
        np.testing.assert_array_equal(value, resumed.weights()[name])


def test_weights_and_state_of_another_network_are_refused() -> None:
    adam = FlatAdam(WEIGHTS, 1e-2)
    with pytest.raises(ConfigError, match="'b'"):
        adam.set_weights({"a": WEIGHTS["a"], "b": np.zeros(2, np.float32)})
    other = FlatAdam({"b": WEIGHTS["b"]}, 1e-2)
    with pytest.raises(ConfigError, match=r"\(9,\)"):
        adam.set_state(other.state())
