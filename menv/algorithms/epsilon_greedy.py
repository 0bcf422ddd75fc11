"""Choosing by Q-values: the best choice, but for a share epsilon of uniformly drawn legal ones.

The torch acting back-end calls it; `networks.graphs` holds the same as a graph. Nothing here knows where
Q-values or epsilon come from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from menv.acting.action_head import LEAST_CHANCE


def draw(q_values: Tensor, mask: Tensor | None, epsilon: Tensor, noise: Tensor) -> Tensor:
    """Return [N] choices, none of them illegal.

    Args:
        q_values: [N, n] after masking.
        mask: [N, n] True where allowed; None allows everything.
        epsilon: [1] share of rows that explore.
        noise: [N, 2] uniforms of 23 bits: whether to explore, and what to take then.
    """
    numbers = _legal(q_values, mask).cumsum(-1)
    # Below the last number in float32, whatever the draw, so that a legal choice is always beyond it.
    beyond = numbers > noise[:, 1:] * numbers[:, -1:]
    explores = noise[:, 0] < epsilon
    return torch.where(explores, beyond.to(torch.uint8).argmax(-1), q_values.argmax(-1))


def logp(q_values: Tensor, mask: Tensor | None, epsilon: Tensor, actions: Tensor) -> Tensor:
    """Return the [N] log-probability of each row's action; arguments as for `draw`."""
    legal = _legal(q_values, mask)
    share = epsilon * legal.gather(1, actions[:, None])[:, 0] / legal.sum(-1).clamp(min=1.0)
    best = (actions == q_values.argmax(-1)).to(torch.float32)
    return (share + best * (1.0 - epsilon)).clamp(min=LEAST_CHANCE).log()


def _legal(q_values: Tensor, mask: Tensor | None) -> Tensor:
    return torch.ones_like(q_values) if mask is None else mask.to(torch.float32)
