"""The losses of SAC worked out by hand, and what its learner learns from a few rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from menv.algorithms import SACConfig
from menv.algorithms.sac.learner import SACLearner, actor_loss, soft_targets, temperature_loss
from menv.algorithms.sac.network import LOG_ALPHA, SACSpec
from menv.algorithms.sac.sac import SACRecipe
from menv.inference.heads.squashed_gaussian import SquashedGaussian
from menv.inference.onnx_backend import OnnxBackend
from tests.algorithms.test_dqn_learner import one_step_pieces

SPEC = SACSpec(1, SquashedGaussian((1,)), (16,), "relu")
FEW: dict[str, Any] = {
    "train_batch_size": 32, "training_intensity": 32.0, "num_steps_sampled_before_learning_starts": 0, "lr": 5e-3,
}  # fmt: skip


def learner(**settings: Any) -> SACLearner:
    return SACLearner(SPEC, SACConfig(**{**FEW, **settings}), SPEC.first_weights(1), 0)


def targets_at_the_best(count: int) -> Any:
    """Return single timesteps whose reward is highest for the action 0.5."""
    rng = np.random.default_rng(0)
    obs, actions = np.ones((count, 1)), rng.uniform(-1.0, 1.0, (count, 1)).astype(np.float32)
    batch = one_step_pieces(obs, actions[:, 0], -((actions[:, 0] - 0.5) ** 2), obs, True)
    batch["actions"] = actions
    return batch


def test_a_target_takes_the_lower_q_value_and_what_the_entropy_is_worth() -> None:
    next_q = torch.tensor([[3.0, 5.0], [4.0, 2.0]])
    found = soft_targets(
        torch.tensor([1.0, 1.0]),
        torch.tensor([0.5, 0.0]),
        next_q,
        torch.tensor([-2.0, 1.0]),
        torch.tensor([0.1]),
    )
    # 1 + 0.5 * (3 + 0.1 * 2), and only the reward after a termination.
    torch.testing.assert_close(found, torch.tensor([2.6, 1.0]))


def test_the_policy_is_to_raise_the_lower_q_value_and_its_entropy() -> None:
    q_values, logp = torch.tensor([[3.0, 5.0], [4.0, 2.0]]), torch.tensor([-2.0, 1.0])
    # The mean of 0.5 * -2 - 3 and 0.5 * 1 - 2.
    assert actor_loss(q_values, logp, torch.tensor([0.5])).item() == pytest.approx(-2.75)


def test_the_temperature_rises_while_the_entropy_is_below_its_target() -> None:
    log_alpha = torch.tensor([0.2], requires_grad=True)
    # Entropies of 0 and 1, 1.5 below the target of 2 on average.
    loss = temperature_loss(log_alpha, torch.tensor([0.0, -1.0]), 2.0)
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(-0.2 * 1.5)
    assert log_alpha.grad is not None
    assert log_alpha.grad.item() == pytest.approx(-1.5)


def test_the_critics_get_no_gradient_from_the_policys_loss() -> None:
    params = {name: torch.tensor(value, requires_grad=True) for name, value in SPEC.first_weights(0).items()}
    network: Any = SPEC.torch_network(params)
    obs = torch.ones(4, 1)
    actions, _ = SPEC.head.sampled(network.dist_inputs(obs, None), torch.zeros(4, 1))  # type: ignore[attr-defined]
    torch.autograd.backward(network.q_values(obs, actions, fixed=True).sum())
    with_gradient = {name.partition(".")[0] for name, param in params.items() if param.grad is not None}
    assert with_gradient == {"policy"}


@pytest.mark.slow
def test_the_policy_finds_the_best_action_and_the_critics_its_worth() -> None:
    one = learner()
    batch = targets_at_the_best(256)
    for number in range(8):
        stats = one.learn(batch, number)
    weights = one.weights()
    acting = OnnxBackend(SPEC.graphs({}), SPEC.head, [weights])
    obs = np.ones((1, 1), np.float32)
    assert acting.decide(obs, None, None).actions.item() == pytest.approx(0.5, abs=0.1)
    assert acting.values(0, obs).item() == pytest.approx(0.0, abs=0.05)
    assert stats["alpha"] < 0.1
    assert stats["entropy"] == pytest.approx(-1.0, abs=0.5)


@pytest.mark.slow
def test_the_entropy_goes_to_its_target() -> None:
    one = learner(target_entropy=0.3)
    batch = targets_at_the_best(256)
    entropies = [one.learn(batch, number)["entropy"] for number in range(10)]
    assert entropies[-1] == pytest.approx(0.3, abs=0.2)


@pytest.mark.parametrize("factor", [2.0**-10, 2.0**10])
def test_rewards_of_any_size_teach_the_same_policy(factor: float) -> None:
    ends = []
    for times in (1.0, factor):
        one, batch = learner(), targets_at_the_best(64)
        one.has_first_weights = True
        batch["rewards"] = batch["rewards"] * times
        stats = one.learn(batch, 0)
        ends.append((one.weights(), stats["alpha"] / times))
    (first, alpha), (second, other) = ends
    assert alpha == other
    for name, value in first.items():
        scaled = (
            times if name.endswith(("q1.out.weight", "q1.out.bias", "q2.out.weight", "q2.out.bias")) else 1.0
        )
        np.testing.assert_array_equal(second[name], value * np.float32(scaled))


def test_first_weights_have_two_different_critics_and_the_given_temperature() -> None:
    weights = SPEC.first_weights(3)
    assert not np.array_equal(weights["q1.0.weight"], weights["q2.0.weight"])
    assert weights["q1.0.weight"].shape == (2, 16)
    found = SACRecipe().first_weights(SPEC, SACConfig(initial_alpha=0.5), 0)[LOG_ALPHA]
    assert found.item() == pytest.approx(math.log(0.5))
