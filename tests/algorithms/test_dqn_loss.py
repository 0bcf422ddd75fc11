"""The loss of Q-learning, worked out by hand."""

import pytest
import torch

from menv.algorithms.dqn.learner import dqn_loss, td_targets
from menv.inference.action_heads import ILLEGAL

RETURNS = torch.tensor([1.0, 2.0, 3.0])
DISCOUNTS = torch.tensor([0.5, 0.5, 0.0])
TARGET_NEXT = torch.tensor([[4.0, 6.0], [8.0, -2.0], [100.0, 100.0]])


def test_the_best_choice_of_the_target_network_counts() -> None:
    assert td_targets(RETURNS, DISCOUNTS, TARGET_NEXT, None).tolist() == [4.0, 6.0, 3.0]


def test_with_double_q_the_choice_is_that_of_the_network_that_learns() -> None:
    online_next = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert td_targets(RETURNS, DISCOUNTS, TARGET_NEXT, online_next).tolist() == [3.0, 1.0, 3.0]


@pytest.mark.parametrize("double", [False, True])
def test_an_illegal_choice_never_counts_however_good_it_looks(double: bool) -> None:
    mask = torch.tensor([[True, False], [False, True], [False, True]])
    masked = torch.where(mask, TARGET_NEXT, ILLEGAL)
    online_next = torch.where(mask, torch.tensor([[0.0, 9.0], [9.0, 0.0], [9.0, 0.0]]), ILLEGAL)
    targets = td_targets(RETURNS, DISCOUNTS, masked, online_next if double else None)
    assert targets.tolist() == [3.0, 1.0, 3.0]


def test_the_loss_is_square_up_to_an_error_of_1_and_straight_beyond_and_rows_are_weighed() -> None:
    q_values = torch.tensor([[0.5, 9.0], [9.0, 4.0], [2.0, 9.0]])
    terms = dqn_loss(q_values, torch.tensor([0, 1, 0]), torch.tensor([0.0, 1.0, 2.0]), None)
    # Errors 0.5, 3 and 0: losses 0.125, 2.5 and 0.
    assert terms.td_errors.tolist() == [0.5, 3.0, 0.0]
    assert terms.q_taken.tolist() == [0.5, 4.0, 2.0]
    assert float(terms.loss) == pytest.approx((0.125 + 2.5) / 3)
    weights = torch.tensor([1.0, 0.2, 0.7])
    weighed = dqn_loss(q_values, torch.tensor([0, 1, 0]), torch.tensor([0.0, 1.0, 2.0]), weights)
    assert float(weighed.loss) == pytest.approx((0.125 + 0.5) / 3)
    assert weighed.td_errors.tolist() == [0.5, 3.0, 0.0]


def test_the_gradient_reaches_the_actions_that_were_taken_alone() -> None:
    q_values = torch.tensor([[0.5, 9.0], [9.0, 4.0]], requires_grad=True)
    terms = dqn_loss(q_values, torch.tensor([0, 1]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]))
    torch.autograd.backward(terms.loss)
    assert q_values.grad is not None
    assert q_values.grad.tolist() == [[0.25, 0.0], [0.0, 0.25]]
    assert not terms.td_errors.requires_grad
