"""Log-probability, entropy and divergence against numbers worked out by hand or by sampling."""

import math

import pytest
import torch

from menv.algorithms import torch_distributions
from menv.inference.action_heads import ActionHead

COIN_AND_DIE = ActionHead("multi_categorical", (2, 3))
THREE = ActionHead("categorical", (3,))
PLANE = ActionHead("gaussian", (2,))
CAR = ActionHead("mixed", (0, 3))


def logs(*chances: float) -> list[float]:
    return [math.log(chance) for chance in chances]


def test_categorical_numbers_worked_out_by_hand() -> None:
    new = torch.tensor([logs(0.5, 0.25, 0.25)]) + 7.0
    old = torch.tensor([logs(0.25, 0.5, 0.25)]) - 2.0
    assert torch_distributions.logp(THREE, new, torch.tensor([2])).item() == pytest.approx(
        math.log(0.25), rel=1e-6
    )
    assert torch_distributions.entropy(THREE, new).item() == pytest.approx(1.5 * math.log(2.0), rel=1e-6)
    # 0.25 log(0.25 / 0.5) + 0.5 log(0.5 / 0.25) + 0 = 0.25 log 2
    assert torch_distributions.kl(THREE, old, new).item() == pytest.approx(0.25 * math.log(2.0), rel=1e-5)


def test_components_of_a_multi_discrete_action_add_up() -> None:
    new = torch.tensor([logs(0.5, 0.5, 0.5, 0.25, 0.25)]) + 1.0
    old = torch.tensor([logs(0.5, 0.5, 0.25, 0.5, 0.25)])
    action = torch.tensor([[1, 2]])
    assert torch_distributions.logp(COIN_AND_DIE, new, action).item() == pytest.approx(
        math.log(0.125), rel=1e-6
    )
    assert torch_distributions.entropy(COIN_AND_DIE, new).item() == pytest.approx(
        2.5 * math.log(2.0), rel=1e-6
    )
    assert torch_distributions.kl(COIN_AND_DIE, old, new).item() == pytest.approx(
        0.25 * math.log(2.0), rel=1e-5
    )


def test_gaussian_numbers_worked_out_by_hand() -> None:
    new = torch.tensor([[0.0, 1.0, math.log(2.0), 0.0]])
    old = torch.tensor([[1.0, 1.0, math.log(1.0), 0.0]])
    # z = (1, 2): -(1 + 4) / 2 - log 2 - log(2 pi)
    logp = torch_distributions.logp(PLANE, new, torch.tensor([[2.0, 3.0]])).item()
    assert logp == pytest.approx(-2.5 - math.log(2.0) - math.log(2.0 * math.pi), rel=1e-6)
    # log 2 + 2 * (1 + log(2 pi)) / 2
    entropy = torch_distributions.entropy(PLANE, new).item()
    assert entropy == pytest.approx(math.log(2.0) + 1.0 + math.log(2.0 * math.pi), rel=1e-6)
    # log(2 / 1) + (1 + 1) / (2 * 4) - 1 / 2 in the first dimension, 0 in the second
    assert torch_distributions.kl(PLANE, old, new).item() == pytest.approx(math.log(2.0) - 0.25, rel=1e-5)


def test_of_a_mixed_action_the_choices_and_the_numbers_add_up() -> None:
    new = torch.tensor([[*logs(0.5, 0.25, 0.25), 1.0, math.log(2.0)]])
    old = torch.tensor([[*logs(0.25, 0.5, 0.25), 3.0, 0.0]])
    half = 0.5 * math.log(2.0 * math.pi)
    # The choice 2, and a number one deviation above the mean.
    logp = torch_distributions.logp(CAR, new, torch.tensor([[3.0, 2.0]])).item()
    assert logp == pytest.approx(math.log(0.25) - 0.5 - math.log(2.0) - half, rel=1e-6)
    entropy = torch_distributions.entropy(CAR, new).item()
    assert entropy == pytest.approx(1.5 * math.log(2.0) + math.log(2.0) + 0.5 + half, rel=1e-6)
    # Of the choice 0.25 log 2; of the number log(2 / 1) + (1 + 2 ** 2) / (2 * 4) - 1 / 2.
    divergence = torch_distributions.kl(CAR, old, new).item()
    assert divergence == pytest.approx(0.25 * math.log(2.0) + math.log(2.0) + 0.125, rel=1e-5)


def test_masked_choices_add_nothing_to_entropy_divergence_and_gradients() -> None:
    old = torch.tensor([[0.0, 0.0, -1e9]])
    new = torch.tensor([[math.log(3.0), 0.0, -1e9]], requires_grad=True)
    entropy = torch_distributions.entropy(THREE, new)
    kl = torch_distributions.kl(THREE, old, new)
    assert entropy.item() == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), rel=1e-5)
    assert kl.item() == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25), rel=1e-5)
    (gradient,) = torch.autograd.grad((entropy + kl).sum(), new)
    assert torch.isfinite(gradient).all()
    assert gradient[0, 2] == 0.0
