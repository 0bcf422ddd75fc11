"""Log-probability, entropy and divergence against numbers worked out by hand or by sampling."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from menv.inference.heads.categorical import Categorical
from menv.inference.heads.gaussian import Gaussian
from menv.inference.heads.mixed import Mixed
from menv.inference.heads.squashed_gaussian import SquashedGaussian

THREE = Categorical((3,))
PLANE = Gaussian((2,))
CAR = Mixed((0, 3))
SQUASHED = SquashedGaussian((2,))


def logs(*chances: float) -> list[float]:
    return [math.log(chance) for chance in chances]


def test_categorical_numbers_worked_out_by_hand() -> None:
    new = torch.tensor([logs(0.5, 0.25, 0.25)]) + 7.0
    old = torch.tensor([logs(0.25, 0.5, 0.25)]) - 2.0
    assert THREE.log_prob(THREE.standard(new), torch.tensor([2])).item() == pytest.approx(
        math.log(0.25), rel=1e-6
    )
    assert THREE.entropy(THREE.standard(new)).item() == pytest.approx(1.5 * math.log(2.0), rel=1e-6)
    # 0.25 log(0.25 / 0.5) + 0.5 log(0.5 / 0.25) + 0 = 0.25 log 2
    assert THREE.kl(THREE.standard(old), THREE.standard(new)).item() == pytest.approx(
        0.25 * math.log(2.0), rel=1e-5
    )


def test_gaussian_numbers_worked_out_by_hand() -> None:
    new = torch.tensor([[0.0, 1.0, math.log(2.0), 0.0]])
    old = torch.tensor([[1.0, 1.0, math.log(1.0), 0.0]])
    # z = (1, 2): -(1 + 4) / 2 - log 2 - log(2 pi)
    logp = PLANE.log_prob(PLANE.standard(new), torch.tensor([[2.0, 3.0]])).item()
    assert logp == pytest.approx(-2.5 - math.log(2.0) - math.log(2.0 * math.pi), rel=1e-6)
    # log 2 + 2 * (1 + log(2 pi)) / 2
    entropy = PLANE.entropy(PLANE.standard(new)).item()
    assert entropy == pytest.approx(math.log(2.0) + 1.0 + math.log(2.0 * math.pi), rel=1e-6)
    # log(2 / 1) + (1 + 1) / (2 * 4) - 1 / 2 in the first dimension, 0 in the second
    assert PLANE.kl(PLANE.standard(old), PLANE.standard(new)).item() == pytest.approx(
        math.log(2.0) - 0.25, rel=1e-5
    )


def test_choices_and_numbers_of_a_mixed_action_add_up() -> None:
    new = torch.tensor([[*logs(0.5, 0.25, 0.25), 1.0, math.log(2.0)]])
    old = torch.tensor([[*logs(0.25, 0.5, 0.25), 3.0, 0.0]])
    half = 0.5 * math.log(2.0 * math.pi)
    # The choice 2, and a number one deviation above the mean.
    logp = CAR.log_prob(CAR.standard(new), torch.tensor([[3.0, 2.0]])).item()
    assert logp == pytest.approx(math.log(0.25) - 0.5 - math.log(2.0) - half, rel=1e-6)
    entropy = CAR.entropy(CAR.standard(new)).item()
    assert entropy == pytest.approx(1.5 * math.log(2.0) + math.log(2.0) + 0.5 + half, rel=1e-6)
    # Of the choice 0.25 log 2; of the number log(2 / 1) + (1 + 2 ** 2) / (2 * 4) - 1 / 2.
    divergence = CAR.kl(CAR.standard(old), CAR.standard(new)).item()
    assert divergence == pytest.approx(0.25 * math.log(2.0) + math.log(2.0) + 0.125, rel=1e-5)


def test_masked_choices_add_nothing_to_entropy_divergence_and_gradients() -> None:
    old = torch.tensor([[0.0, 0.0, -1e9]])
    new = torch.tensor([[math.log(3.0), 0.0, -1e9]], requires_grad=True)
    entropy = THREE.entropy(THREE.standard(new))
    kl = THREE.kl(THREE.standard(old), THREE.standard(new))
    assert entropy.item() == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), rel=1e-5)
    assert kl.item() == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25), rel=1e-5)
    (gradient,) = torch.autograd.grad((entropy + kl).sum(), new)
    assert torch.isfinite(gradient).all()
    assert gradient[0, 2] == 0.0


def test_a_squashed_gaussian_has_the_density_of_torchs_transformed_distribution() -> None:
    rng = np.random.default_rng(0)
    means, log_stds, noise = (rng.standard_normal((50, 2), np.float32) for _ in range(3))
    inputs = torch.from_numpy(np.concatenate((means, log_stds), 1))
    actions, logp = SQUASHED.sampled(inputs, torch.from_numpy(noise))
    normal = Normal(torch.from_numpy(means).double(), torch.from_numpy(log_stds).double().exp())
    before = normal.loc + normal.scale * torch.from_numpy(noise)
    squashed = TransformedDistribution(normal, TanhTransform(cache_size=1))
    # The cache knows what the tangent rounds to 1.
    expected: torch.Tensor = squashed.log_prob(squashed.transforms[0](before)).sum(-1).float()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logp, expected, rtol=1e-4, atol=1e-4)
    # From the action alone, as far as float32 does not round it to a bound.
    inner = (actions.abs() < 0.999).all(-1)
    found = SQUASHED.log_prob(inputs, actions)
    torch.testing.assert_close(found[inner], expected[inner], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(SQUASHED.logp(inputs.numpy(), actions.numpy())[inner], found[inner], atol=1e-3)


def test_the_density_of_a_squashed_action_worked_out_by_hand() -> None:
    # One deviation of 0.5 above 0, where the slope of the tangent is 1 - tanh(0.5)^2.
    head, inputs = SquashedGaussian((1,)), torch.tensor([[0.0, math.log(0.5)]])
    normal = -0.5 + math.log(2.0) - 0.5 * math.log(2.0 * math.pi)
    expected = pytest.approx(normal - math.log(1.0 - math.tanh(0.5) ** 2), rel=1e-5)
    assert head.log_prob(inputs, torch.tensor([[math.tanh(0.5)]])).item() == expected
    action, logp = head.sampled(inputs, torch.tensor([[1.0]]))
    assert action.item() == pytest.approx(math.tanh(0.5), rel=1e-6)
    assert logp.item() == expected


def test_the_density_of_a_squashed_action_is_finite_at_the_bounds() -> None:
    inputs = torch.tensor([[9.0, -9.0, 2.0, -20.0]])
    assert torch.isfinite(SQUASHED.log_prob(inputs, torch.tensor([[1.0, -1.0]]))).all()
    assert torch.isfinite(SQUASHED.sampled(inputs, torch.tensor([[3.0, -3.0]]))[1]).all()
