"""The loss of Q-learning: how far the worth of what was done is from what came of it.

`dqn_learner` calls it with Q-values in which illegal choices hold a very low number already. It knows neither
networks nor where rows came from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class DQNTerms(NamedTuple):
    """The loss and what it was made of.

    Attributes:
        loss: [] weighted mean of the rows' losses.
        q_taken: [B] worth of the actions that were taken.
        td_errors: [B] `q_taken` minus its target, without a gradient.
    """

    loss: Tensor
    q_taken: Tensor
    td_errors: Tensor


def td_targets(returns: Tensor, discounts: Tensor, target_next: Tensor, online_next: Tensor | None) -> Tensor:
    """Return the [B] targets.

    Args:
        returns: [B] discounted rewards up to the next observation.
        discounts: [B] of what follows; 0 where nothing does.
        target_next: [B, n] Q-values of the next observation by the target network, masked.
        online_next: [B, n] by the network that learns, masked, or None; see `best_worth`.
    """
    return returns + discounts * best_worth(target_next, online_next)


def best_worth(target_next: Tensor, online_next: Tensor | None) -> Tensor:
    """Return what the best of n choices is worth.

    Args:
        target_next: [..., n] Q-values by the target network, masked.
        online_next: [..., n] by the network that learns, masked: its best choice is the one that counts (van
            Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning", eq. 4); None takes the
            best of `target_next` (Mnih et al. 2015).
    """
    if online_next is None:
        return target_next.amax(-1)
    return target_next.gather(-1, online_next.argmax(-1, keepdim=True))[..., 0]


def dqn_loss(
    q_values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None, knee: float | None = 1.0
) -> DQNTerms:
    """Return half the squared error of each row, linear beyond the knee (Huber, as in Mnih et al. 2015).

    Args:
        q_values: [B, n].
        actions: [B] int64 choices that were taken.
        targets: [B], without a gradient.
        weights: [B] importance of the rows; None weighs all alike.
        knee: The error from which on the loss is linear; None squares all errors.
    """
    return td_loss(q_values.gather(1, actions[:, None])[:, 0], targets, weights, knee)


def td_loss(q_taken: Tensor, targets: Tensor, weights: Tensor | None, knee: float | None) -> DQNTerms:
    """Return the loss of the Q-values [B] of the actions taken; other arguments as for `dqn_loss`."""
    if knee is None:
        losses = 0.5 * torch.nn.functional.mse_loss(q_taken, targets, reduction="none")
    else:
        losses = torch.nn.functional.huber_loss(q_taken, targets, reduction="none", delta=knee)
    loss = losses.mean() if weights is None else (weights * losses).mean()
    return DQNTerms(loss, q_taken.detach(), q_taken.detach() - targets)
