"""PPO's loss against numbers worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from menv.algorithms.ppo.loss import (
    LossWeights,
    Minibatch,
    adapted_kl_coeff,
    clipped_ratio,
    ppo_loss,
    value_loss,
)
from menv.inference.heads.categorical import Categorical
from tests.contract.scripted import altered

COIN = Categorical((2,))
LOG_2 = math.log(2.0)


def coins(*heads: float) -> Tensor:
    """Log-probabilities of coins that show choice 0 with the given chances."""
    return torch.tensor([[math.log(chance), math.log(1.0 - chance)] for chance in heads])


def minibatch(advantages: list[float], targets: list[float]) -> Minibatch:
    """Choice 0 was taken in every row, by a fair coin."""
    rows = len(advantages)
    return Minibatch(
        obs=torch.zeros(rows, 1),
        mask=None,
        actions=torch.zeros(rows, dtype=torch.int64),
        old_logp=torch.full((rows,), -LOG_2),
        old_inputs=coins(*[0.5] * rows),
        advantages=torch.tensor(advantages),
        value_targets=torch.tensor(targets),
    )


def test_the_surrogate_is_clipped_only_where_that_lowers_it() -> None:
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1]).log()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    # r = 1.5: min(1.5, 1.2) and min(-1.5, -1.2); r = 0.5: min(0.5, 0.8) and min(-0.5, -0.8).
    found = clipped_ratio(log_ratio, advantages, 0.2) * advantages
    torch.testing.assert_close(found, torch.tensor([1.2, -1.5, 0.5, -0.8, 2.2]))


@pytest.mark.parametrize("clip_param", [0.2, 1.5])
def test_the_surrogate_is_the_minimum_of_the_two_products(clip_param: float) -> None:
    generator = torch.Generator().manual_seed(0)
    log_ratio, advantages = torch.randn(2, 1000, generator=generator)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_param, 1.0 + clip_param)
    wanted = torch.minimum(ratio * advantages, clipped * advantages)
    torch.testing.assert_close(clipped_ratio(log_ratio, advantages, clip_param) * advantages, wanted)


def test_a_clipped_row_has_no_gradient() -> None:
    log_ratio = torch.tensor([1.5, 1.5, 1.0]).log().requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 3.0])
    surrogate = clipped_ratio(log_ratio, advantages, 0.2) * advantages
    (gradient,) = torch.autograd.grad(surrogate.sum(), log_ratio)
    torch.testing.assert_close(gradient, torch.tensor([0.0, -1.5, 3.0]))


def test_the_value_error_is_squared_and_limited() -> None:
    values, targets = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.0])
    assert value_loss(values, targets, None).item() == 14.5
    assert value_loss(values, targets, 10.0).item() == 7.0


def test_the_total_is_the_weighted_sum_of_its_terms() -> None:
    # Ratios 1.5 (clipped to 1.2) and 0.5, advantages 1 and 1: policy loss -(1.2 + 0.5) / 2.
    weights = LossWeights(0.2, 10.0, vf_loss_coeff=0.5, entropy_coeff=0.1, kl_coeff=2.0)
    terms = ppo_loss(
        COIN, weights, minibatch([1.0, 1.0], [3.0, 0.0]), coins(0.75, 0.25), torch.tensor([1.0, 5.0])
    )
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    kl = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert terms.policy_loss.item() == pytest.approx(-0.85, rel=1e-6)
    assert terms.vf_loss.item() == pytest.approx(7.0, rel=1e-6)
    assert terms.entropy.item() == pytest.approx(entropy, rel=1e-6)
    assert terms.kl.item() == pytest.approx(kl, rel=1e-6)
    assert terms.total.item() == pytest.approx(-0.85 + 3.5 - 0.1 * entropy + 2.0 * kl, rel=1e-6)


@pytest.mark.parametrize(
    ("entropy_coeff", "kl_coeff", "wanted"),
    [
        # The old coin is fair, the new one shows 0 with chance p = 0.75; its logit moves p by p (1 - p).
        (0.0, 0.0, 0.0),
        # -dH/dp = log(p / (1 - p)) = log 3
        (1.0, 0.0, 0.75 * 0.25 * math.log(3.0)),
        # dKL/dp = -0.5 / p + 0.5 / (1 - p) = 4 / 3
        (0.0, 1.0, 0.75 * 0.25 * 4.0 / 3.0),
    ],
)
def test_terms_of_weight_zero_are_reported_but_move_nothing(
    entropy_coeff: float, kl_coeff: float, wanted: float
) -> None:
    inputs = coins(0.75).requires_grad_()
    weights = LossWeights(0.2, None, 1.0, entropy_coeff, kl_coeff)
    terms = ppo_loss(COIN, weights, minibatch([0.0], [0.0]), inputs, torch.zeros(1))
    (gradient,) = torch.autograd.grad(terms.total, inputs)
    assert gradient[0, 0].item() == pytest.approx(wanted, abs=1e-6)
    assert terms.entropy.item() > 0.5
    assert terms.kl.item() > 0.1


def test_the_weight_of_the_kl_term_follows_the_divergence() -> None:
    assert adapted_kl_coeff(0.2, kl=0.021, kl_target=0.01) == pytest.approx(0.3)
    assert adapted_kl_coeff(0.2, kl=0.004, kl_target=0.01) == pytest.approx(0.1)
    assert adapted_kl_coeff(0.2, kl=0.015, kl_target=0.01) == 0.2
    assert adapted_kl_coeff(0.0, kl=1.0, kl_target=0.01) == 0.0


def test_the_magnet_pulls_at_a_policy_in_proportion_to_their_divergence() -> None:
    # KL(fair || magnet) = 0.5 log(0.5 / 0.25) + 0.5 log(0.5 / 0.75) = 0.14384; its slopes are 0.5 (log 2 - 0.14384).
    logits = torch.zeros(2, 2, requires_grad=True)
    rows = altered(minibatch([0.0, 0.0], [0.0, 0.0]), magnet=coins(0.25, 0.25))
    weights = LossWeights(0.2, None, 1.0, 0.0, 0.0, magnet_coeff=3.0)
    terms = ppo_loss(COIN, weights, rows, logits, torch.zeros(2))
    torch.autograd.backward(terms.total)
    assert terms.magnet_kl is not None
    assert terms.magnet_kl.item() == pytest.approx(0.14384, abs=1e-5)
    assert terms.total.item() == pytest.approx(3.0 * 0.14384, abs=1e-5)
    slope = 3.0 * 0.5 * (LOG_2 - 0.14384) / 2.0
    torch.testing.assert_close(logits.grad, torch.tensor([[slope, -slope]] * 2), rtol=1e-4, atol=1e-5)
