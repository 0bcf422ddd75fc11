"""The slopes of PPO's loss in what the networks return, worked out by hand.

`ppo_by_hand` calls it. The same loss as `ppo_loss`, whose symbols it uses: with the ratio r_t clipped, the loss of a
row has the slope -r_t A_t in the log-probability of its action, or 0 where the clip holds. A choice of probability p
adds (1 - p) times that to its own output and -p times to the others'.

Everything lies in columns, [D, B] for D numbers a row, because a handful of choices is quicker to add up down a column.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from menv.acting.action_head import ILLEGAL, ActionHead
from menv.algorithms.ppo_loss import LossWeights

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_NORMAL_ENTROPY = _HALF_LOG_TWO_PI + 0.5


class Columns(NamedTuple):
    """Rows of one gradient step, laid out in columns; see `Minibatch`.

    Attributes:
        forbidden: [D, B] choices that the mask does not allow, or None.
        actions: [components, B] the places of the chosen outputs; [k, B] numbers.
        old_logp: [B].
        losses: [B] -A_t.
        least: [B] of `clip_bounds`.
        most: [B] of `clip_bounds`.
        targets: [B].
        old_inputs: [D, B] in the standard form of `distributions`.
    """

    forbidden: Tensor | None
    actions: Tensor
    old_logp: Tensor
    losses: Tensor
    least: Tensor
    most: Tensor
    targets: Tensor
    old_inputs: Tensor


class Slopes(NamedTuple):
    """What the loss changes by.

    Attributes:
        outputs: [D, B] for each output of the policy network.
        values: [B] for each value.
        log_std: [k] for the logarithms of standard deviations; None for choices.
        terms: The loss and its parts as in `LossTerms`, if they are reported.
    """

    outputs: Tensor
    values: Tensor
    log_std: Tensor | None
    terms: tuple[Tensor, ...]


class _Policy(NamedTuple):
    """The policy's part of `Slopes`, and of the terms policy_loss, entropy and kl."""

    outputs: Tensor
    log_std: Tensor | None
    terms: tuple[Tensor, ...]


def ppo_slopes(
    head: ActionHead,
    weights: LossWeights,
    rows: Columns,
    outputs: Tensor,
    values: Tensor,
    log_std: Tensor | None,
    *,
    report: bool,
) -> Slopes:
    """Return the slopes of the loss that `ppo_loss` returns.

    Args:
        head: What the outputs mean.
        weights: Coefficients.
        rows: The minibatch.
        outputs: [D, B] of the policy network, before masking; may be overwritten.
        values: [B].
        log_std: [k] of a Gaussian head.
        report: Whether the terms are to be told.
    """
    if log_std is None:
        policy = _choices(head, weights, rows, outputs, report)
    else:
        policy = _numbers(weights, rows, outputs, log_std, report)
    errors = values - rows.targets
    limit, size = weights.vf_clip_param, len(errors)
    by_values = errors * (2.0 * weights.vf_loss_coeff / size)
    if limit is not None:
        by_values *= errors.square() <= limit
    if not report:
        return Slopes(policy.outputs, by_values, policy.log_std, ())
    squares = errors.square()
    vf_loss = (squares if limit is None else squares.clamp_(max=limit)).mean()
    policy_loss, entropy, kl = policy.terms
    total = policy_loss + weights.vf_loss_coeff * vf_loss
    # A weight of 0 leaves out terms that may be infinite.
    if weights.entropy_coeff:
        total -= weights.entropy_coeff * entropy
    if weights.kl_coeff:
        total += weights.kl_coeff * kl
    return Slopes(policy.outputs, by_values, policy.log_std, (total, policy_loss, vf_loss, entropy, kl))


def places(head: ActionHead, actions: Tensor) -> Tensor:
    """Return [components, N] the outputs that choices [N, ...] stand for; numbers [k, N] as they are."""
    columns = actions.reshape(len(actions), -1).t()
    if head.kind == "gaussian":
        return columns.contiguous()
    starts = torch.tensor([0, *itertools.accumulate(head.sizes[:-1])])
    return columns + starts[:, None]


def _by_logp(rows: Columns, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B] the loss of each row, -r_t A_t, and [B] its slope in the log-probability, times B."""
    clipped = log_ratio.clamp(rows.least, rows.most)
    within = clipped == log_ratio
    losses = clipped.exp_().mul_(rows.losses)
    return losses, losses * within


def _choices(head: ActionHead, weights: LossWeights, rows: Columns, outputs: Tensor, report: bool) -> _Policy:
    if rows.forbidden is not None:
        outputs.masked_fill_(rows.forbidden, ILLEGAL)
    sizes = list(head.sizes)
    one = len(sizes) == 1
    logp = (
        outputs.log_softmax(0) if one else torch.cat([part.log_softmax(0) for part in outputs.split(sizes)])
    )
    chosen = logp.gather(0, rows.actions)
    losses, push = _by_logp(rows, (chosen[0] if one else chosen.sum(0)) - rows.old_logp)
    share = 1.0 / len(push)
    push *= share
    chances = logp.exp()
    terms: tuple[Tensor, ...] = ()
    if report:
        entropy = (chances * logp).sum() * -share
        kl = (rows.old_inputs.exp() * (rows.old_inputs - logp)).sum() * share
        terms = losses.mean(), entropy, kl
    pull: Tensor = -push
    if weights.entropy_coeff:
        negentropy = [part.sum(0, keepdim=True).expand_as(part) for part in (chances * logp).split(sizes)]
        pull = pull + (logp - torch.cat(negentropy)) * (weights.entropy_coeff * share)
    if weights.kl_coeff:
        pull = pull + weights.kl_coeff * share
    slopes = chances.mul_(pull)
    if weights.kl_coeff:
        slopes.sub_(rows.old_inputs.exp(), alpha=weights.kl_coeff * share)
    slopes.scatter_add_(0, rows.actions, push.expand_as(rows.actions))
    if rows.forbidden is not None:
        slopes.masked_fill_(rows.forbidden, 0.0)
    return _Policy(slopes, None, terms)


def _numbers(weights: LossWeights, rows: Columns, means: Tensor, log_std: Tensor, report: bool) -> _Policy:
    shrink = log_std.neg().exp_()[:, None]
    scaled = (rows.actions - means).mul_(shrink)
    spread = log_std.sum()
    logp = scaled.square().sum(0).mul_(-0.5) - (spread + len(log_std) * _HALF_LOG_TWO_PI)
    losses, push = _by_logp(rows, logp - rows.old_logp)
    share = 1.0 / len(push)
    push *= share
    by_log_std = torch.mv(scaled.square().sub_(1.0), push)
    slopes = scaled.mul_(shrink).mul_(push)
    terms: tuple[Tensor, ...] = ()
    if report or weights.kl_coeff:
        old_means, old_log_std = rows.old_inputs.chunk(2)
        apart = (means - old_means).mul_(shrink)
        # The old variance and the squared distance, in units of the new variance.
        moment = (old_log_std - log_std[:, None]).mul_(2.0).exp_().addcmul_(apart, apart)
        if report:
            kl = (log_std[:, None] - old_log_std + 0.5 * moment - 0.5).sum() * share
            terms = losses.mean(), spread + len(log_std) * _NORMAL_ENTROPY, kl
        if weights.kl_coeff:
            slopes.add_(apart.mul_(shrink), alpha=weights.kl_coeff * share)
            by_log_std += (1.0 - moment.mean(1)) * weights.kl_coeff
    if weights.entropy_coeff:
        by_log_std -= weights.entropy_coeff
    return _Policy(slopes, by_log_std, terms)
