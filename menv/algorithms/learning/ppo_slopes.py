"""The slopes of PPO's loss in what the networks return, worked out by hand.

`ppo_by_hand` calls it. The same loss as `ppo_loss`, whose symbols it uses: with the ratio r_t clipped, the loss of a
row has the slope -r_t A_t in the log-probability of its action, or 0 where the clip holds. The output of the action
gets 1 - p times that, the output of every other choice -p times, p being the probability of the choice itself.

Everything lies in columns, [D, B] for D numbers a row, because a handful of choices is quicker to add up down a column.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from menv.acting.action_head import ILLEGAL, ActionHead
from menv.algorithms.learning.ppo_loss import LossWeights
from menv.algorithms.torch_device import constant

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_NORMAL_ENTROPY = _HALF_LOG_TWO_PI + 0.5


class MinibatchColumns(NamedTuple):
    """Rows of one gradient step, laid out in columns; see `Minibatch`.

    Attributes:
        forbidden: [D, B] choices that the mask does not allow, or None.
        actions: [components, B] the places of the chosen outputs; [k, B] numbers; [components + k, B] both.
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


class PolicySlopes(NamedTuple):
    """What the policy's part of the loss changes by.

    Attributes:
        outputs: [D, B] for each output of the policy network.
        log_std: [k] for the logarithms of standard deviations; None for choices.
        terms: policy_loss, entropy and kl, if they are reported.
    """

    outputs: Tensor
    log_std: Tensor | None
    terms: tuple[Tensor, ...]


def policy_slopes(
    head: ActionHead,
    weights: LossWeights,
    rows: MinibatchColumns,
    outputs: Tensor,
    log_std: Tensor | None,
    *,
    report: bool,
) -> PolicySlopes:
    """Return the slopes of policy_loss - entropy_coeff * entropy + kl_coeff * kl.

    Args:
        head: What the outputs mean.
        weights: Coefficients.
        rows: The minibatch.
        outputs: [D, B] of the policy network, before masking; may be overwritten.
        log_std: [k] of numbers.
        report: Whether the terms are to be told.
    """
    if log_std is None:
        return _choices(head, weights, rows, outputs, report)
    if head.parts:
        return _both(head, weights, rows, outputs, log_std, report)
    return _numbers(weights, rows, outputs, log_std, report)


def value_slopes(weights: LossWeights, rows: MinibatchColumns, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B] the slopes of vf_loss_coeff * vf_loss in `values` [B], and [B] the errors V - V_target."""
    errors = values - rows.targets
    slopes = errors * (2.0 * weights.vf_loss_coeff / len(errors))
    if weights.vf_clip_param is not None:
        slopes *= errors.square() <= weights.vf_clip_param
    return slopes, errors


def loss_terms(weights: LossWeights, policy: tuple[Tensor, ...], errors: Tensor) -> tuple[Tensor, ...]:
    """Return the terms of `LossTerms` from those of the policy and the errors [B] of the values."""
    policy_loss, entropy, kl = policy
    squares = errors.square()
    limit = weights.vf_clip_param
    vf_loss = (squares if limit is None else squares.clamp_(max=limit)).mean()
    total = policy_loss + weights.vf_loss_coeff * vf_loss
    # A weight of 0 leaves out terms that may be infinite.
    if weights.entropy_coeff:
        total = total - weights.entropy_coeff * entropy
    if weights.kl_coeff:
        total = total + weights.kl_coeff * kl
    return total, policy_loss, vf_loss, entropy, kl


def places(head: ActionHead, actions: Tensor) -> Tensor:
    """Return [columns, N] the outputs that choices [N, ...] stand for; numbers as they are."""
    columns = actions.reshape(len(actions), -1).t()
    if head.kind == "gaussian":
        return columns.contiguous()
    starts = [
        start if size else 0
        for size, start in zip(head.sizes, (0, *itertools.accumulate(head.sizes)), strict=False)
    ]
    return columns + torch.tensor(starts, device=actions.device)[:, None]


def _by_logp(rows: MinibatchColumns, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B] the loss of each row, -r_t A_t, and [B] its slope in the log-probability."""
    clipped = log_ratio.clamp(rows.least, rows.most)
    within = clipped == log_ratio
    losses = clipped.exp_().mul_(rows.losses)
    return losses, torch.where(within, losses, 0.0)


def _choices(
    head: ActionHead, weights: LossWeights, rows: MinibatchColumns, outputs: Tensor, report: bool
) -> PolicySlopes:
    if rows.forbidden is not None:
        outputs.masked_fill_(rows.forbidden, ILLEGAL)
    sizes = list(head.sizes)
    one = len(sizes) == 1
    logp = _log_chances(sizes, outputs)
    chosen = logp.gather(0, rows.actions)
    losses, push = _by_logp(rows, (chosen[0] if one else chosen.sum(0)) - rows.old_logp)
    share = 1.0 / len(push)
    chances = logp.exp()
    terms: tuple[Tensor, ...] = ()
    if report:
        entropy = (chances * logp).sum() * -share
        kl = (rows.old_inputs.exp() * (rows.old_inputs - logp)).sum() * share
        terms = losses.mean(), entropy, kl
    drift = _drift(sizes, weights, rows, logp, chances)
    less = constant(-1.0, chances.device)
    slopes = chances.scatter_add_(0, rows.actions, less.expand_as(rows.actions)).mul_(push.mul_(-share))
    if drift is not None:
        slopes.add_(drift, alpha=share)
    if rows.forbidden is not None:
        slopes.masked_fill_(rows.forbidden, 0.0)
    return PolicySlopes(slopes, None, terms)


def _log_chances(sizes: list[int], outputs: Tensor) -> Tensor:
    """Return [D, B] log-probabilities of all choices."""
    if len(sizes) == 1:
        return outputs.log_softmax(0)
    return torch.cat([part.log_softmax(0) for part in torch.split(outputs, sizes)])


def _drift(
    sizes: list[int], weights: LossWeights, rows: MinibatchColumns, logp: Tensor, chances: Tensor
) -> Tensor | None:
    """Return [D, B] the slopes of kl_coeff * kl - entropy_coeff * entropy of each row, None if both weigh nothing."""
    found: Tensor | None = None
    if weights.entropy_coeff:
        negentropy = [
            part.sum(0, keepdim=True).expand_as(part) for part in torch.split(chances * logp, sizes)
        ]
        found = (logp - torch.cat(negentropy)).mul_(chances).mul_(weights.entropy_coeff)
    if weights.kl_coeff:
        change = (chances - rows.old_inputs.exp()).mul_(weights.kl_coeff)
        found = change if found is None else found.add_(change)
    return found


def _both(
    head: ActionHead,
    weights: LossWeights,
    rows: MinibatchColumns,
    outputs: Tensor,
    log_std: Tensor,
    report: bool,
) -> PolicySlopes:
    """Return the slopes of choices and numbers: each part's are those of a head of its own, beside the other."""
    choices, numbers = head.parts
    cut = choices.inputs.stop
    logits, means = outputs[:cut], outputs[cut:]
    if rows.forbidden is not None:
        logits.masked_fill_(rows.forbidden, ILLEGAL)
    chosen = rows.actions[torch.from_numpy(choices.columns)].long()
    taken = rows.actions[torch.from_numpy(numbers.columns)]
    scaled = (taken - means).mul_(log_std.neg().exp_()[:, None])
    of_numbers = scaled.square_().sum(0).mul_(-0.5) - (log_std.sum() + len(log_std) * _HALF_LOG_TWO_PI)
    of_choices = _log_chances(list(choices.head.sizes), logits).gather(0, chosen).sum(0)
    # With what the other part adds on its side, the ratio of either is that of the whole action.
    one = rows._replace(actions=chosen, old_logp=rows.old_logp - of_numbers, old_inputs=rows.old_inputs[:cut])
    other = rows._replace(
        actions=taken, old_logp=rows.old_logp - of_choices, old_inputs=rows.old_inputs[cut:]
    )
    first = _choices(choices.head, weights, one, logits, report)
    second = _numbers(weights, other, means, log_std, report)
    terms: tuple[Tensor, ...] = ()
    if report:
        loss, entropy, kl = first.terms
        terms = loss, entropy + second.terms[1], kl + second.terms[2]
    return PolicySlopes(torch.cat((first.outputs, second.outputs)), second.log_std, terms)


def _numbers(
    weights: LossWeights, rows: MinibatchColumns, means: Tensor, log_std: Tensor, report: bool
) -> PolicySlopes:
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
    return PolicySlopes(slopes, by_log_std, terms)
