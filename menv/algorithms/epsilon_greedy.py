"""Choosing by Q-values: the best choice, but for a share epsilon of uniformly drawn legal ones.

The torch acting back-end calls it; `networks.graph_tails` holds the same as a graph. Several components of a row
choose apart from each other. Nothing here knows where Q-values or epsilon come from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from menv.acting.action_head import LEAST_CHANCE, ActionHead


def best(head: ActionHead, q_values: Tensor) -> Tensor:
    """Return [N, *head.action_shape] the choices of the highest worth.

    Args:
        head: Of Q-values.
        q_values: [N, D] after masking.
    """
    return _by_row(head, _by_component(head, q_values).argmax(-1))


def draw(head: ActionHead, q_values: Tensor, mask: Tensor | None, epsilon: Tensor, noise: Tensor) -> Tensor:
    """Return [N, *head.action_shape] choices, none of them illegal.

    Args:
        head: Of Q-values.
        q_values: [N, D] after masking.
        mask: [N, D] True where allowed; None allows everything.
        epsilon: [1] share of choices that explore.
        noise: [N, head.noise_width] uniforms of 23 bits: whether a component explores, and what it takes
            then; these two for each component.
    """
    worth, pairs = _by_component(head, q_values), noise.reshape(-1, 2)
    numbers = _legal(head, q_values, mask).cumsum(-1)
    # Below the last number in float32, whatever the draw, so that a legal choice is always beyond it.
    beyond = numbers > pairs[:, 1:] * numbers[:, -1:]
    explores = pairs[:, 0] < epsilon
    return _by_row(head, torch.where(explores, beyond.to(torch.uint8).argmax(-1), worth.argmax(-1)))


def logp(head: ActionHead, q_values: Tensor, mask: Tensor | None, epsilon: Tensor, actions: Tensor) -> Tensor:
    """Return the [N] log-probability of each row's action; arguments as for `draw`."""
    worth, legal, taken = _by_component(head, q_values), _legal(head, q_values, mask), actions.reshape(-1)
    share = epsilon * legal.gather(1, taken[:, None])[:, 0] / legal.sum(-1).clamp(min=1.0)
    is_best = (taken == worth.argmax(-1)).to(torch.float32)
    logs = (share + is_best * (1.0 - epsilon)).clamp(min=LEAST_CHANCE).log()
    return logs.reshape(-1, len(head.sizes)).sum(-1)


def _by_component(head: ActionHead, row: Tensor) -> Tensor:
    """Return [N * components, n] of [N, D]."""
    return row.reshape(-1, head.sizes[0])


def _by_row(head: ActionHead, choices: Tensor) -> Tensor:
    """Return [N, *head.action_shape] of [N * components]."""
    return choices.reshape(-1, *head.action_shape)


def _legal(head: ActionHead, q_values: Tensor, mask: Tensor | None) -> Tensor:
    """Return [N * components, n] 1 where allowed and 0 elsewhere."""
    allowed = torch.ones_like(q_values) if mask is None else mask.to(torch.float32)
    return _by_component(head, allowed)
