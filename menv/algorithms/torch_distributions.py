"""Log-probability, entropy and KL divergence of the action distributions, as bare torch operations.

The losses call it. `menv.inference.action_heads` defines the distributions; a new one begins there. The choices and
the numbers of mixed actions are independent of each other, so all three are sums over both. `dist_inputs` [N, D] are
what a network returns after masking; actions are as the acting back-ends return them. Functions named `standard_*`
take inputs that went through `standard` once, for callers that need several numbers of one distribution.

Several categorical components lie side by side in one row, so gathering and summing over the
row treats one and many alike. A masked choice has probability 0 and adds exactly 0 to every sum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from menv.inference.action_heads import ILLEGAL, ActionHead, ActionPart

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def standard(head: ActionHead, dist_inputs: Tensor) -> Tensor:
    """Return [N, D] log-probabilities of every choice; Gaussian inputs are unchanged."""
    if head.parts:
        return torch.cat([standard(part.head, dist_inputs[:, part.inputs]) for part in head.parts], -1)
    if head.kind == "categorical":
        return _log_softmax(dist_inputs)
    if head.kind == "gaussian":
        return dist_inputs
    return torch.cat([_log_softmax(part) for part in torch.split(dist_inputs, list(head.sizes), -1)], -1)


def logp(head: ActionHead, dist_inputs: Tensor, actions: Tensor) -> Tensor:
    """Return the [N] log-probability (density, for continuous actions) of each row's action."""
    return standard_logp(head, standard(head, dist_inputs), actions)


def entropy(head: ActionHead, dist_inputs: Tensor) -> Tensor:
    """Return the [N] entropy in nats; components are independent, so theirs add up."""
    return standard_entropy(head, standard(head, dist_inputs))


def kl(head: ActionHead, old_inputs: Tensor, new_inputs: Tensor) -> Tensor:
    """Return the [N] divergence KL(old || new) in nats."""
    return standard_kl(head, standard(head, old_inputs), standard(head, new_inputs))


def standard_logp(head: ActionHead, inputs: Tensor, actions: Tensor) -> Tensor:
    """Return what `logp` does, from standard inputs."""
    if head.parts:
        choices, numbers = (
            standard_logp(part.head, inputs[:, part.inputs], columns_of(part, actions)) for part in head.parts
        )
        return choices + numbers
    if head.kind == "categorical":
        return inputs.gather(1, actions[:, None]).squeeze(1)
    if head.kind == "multi_categorical":
        return inputs.gather(1, actions + _starts(head, actions.device)).sum(-1)
    mean, log_std = inputs.chunk(2, -1)
    z = (actions - mean) * torch.exp(-log_std)
    return -(0.5 * z * z + log_std).sum(-1) - head.sizes[0] * _HALF_LOG_TWO_PI


def standard_entropy(head: ActionHead, inputs: Tensor) -> Tensor:
    """Return what `entropy` does, from standard inputs."""
    if head.parts:
        choices, numbers = (standard_entropy(part.head, inputs[:, part.inputs]) for part in head.parts)
        return choices + numbers
    if head.kind == "gaussian":
        return inputs[:, head.sizes[0] :].sum(-1) + head.sizes[0] * (_HALF_LOG_TWO_PI + 0.5)
    return -(inputs.exp() * inputs).sum(-1)


def standard_kl(head: ActionHead, old: Tensor, new: Tensor) -> Tensor:
    """Return what `kl` does, from standard inputs."""
    if head.parts:
        choices, numbers = (
            standard_kl(part.head, old[:, part.inputs], new[:, part.inputs]) for part in head.parts
        )
        return choices + numbers
    if head.kind != "gaussian":
        return (old.exp() * (old - new)).sum(-1)
    old_mean, old_log_std = old.chunk(2, -1)
    mean, log_std = new.chunk(2, -1)
    variances = torch.exp(2.0 * (old_log_std - log_std))
    z = (old_mean - mean) * torch.exp(-log_std)
    return (log_std - old_log_std + 0.5 * (variances + z * z) - 0.5).sum(-1)


def masked(inputs: Tensor, mask: Tensor | None) -> Tensor:
    """Return distribution inputs [N, D] without the choices that mask [N, M] forbids; numbers follow the choices."""
    if mask is None:
        return inputs
    choices = mask.shape[1]
    if choices == inputs.shape[1]:
        return torch.where(mask, inputs, ILLEGAL)
    return torch.cat((torch.where(mask, inputs[:, :choices], ILLEGAL), inputs[:, choices:]), 1)


def columns_of(part: ActionPart, actions: Tensor) -> Tensor:
    """Return the columns of mixed actions [N, ...] that a part has, as its head takes them."""
    columns = actions.index_select(1, torch.from_numpy(part.columns).to(actions.device))
    return columns if part.head.numbers else columns.long()


def _log_softmax(logits: Tensor) -> Tensor:
    # Rows that fill no vector register are computed number by number; columns are not. With 9 choices that takes
    # half as long, with 16 twice.
    if 2 < logits.shape[-1] < 16:
        return logits.t().log_softmax(0).t()
    return logits.log_softmax(-1)


def _starts(head: ActionHead, device: torch.device) -> Tensor:
    return torch.tensor((0, *head.sizes[:-1]), device=device).cumsum(0)
