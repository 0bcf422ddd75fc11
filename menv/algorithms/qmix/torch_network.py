"""The network of a group as torch operations on parameters that the caller owns.

The learner and the torch acting back-end build it from a `GroupSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import elu

from menv.algorithms.networks.torch_stock import TorchStock
from menv.algorithms.qmix.network import GroupSpec


class TorchGroup:
    """A feed-forward `TorchNetwork` of `spec` over `params`, whose current values every call reads."""

    def __init__(self, spec: GroupSpec, params: Mapping[str, Tensor]) -> None:
        self.obs_size = spec.obs_size
        self._mixer, self._embed_dim = spec.mixer, spec.embed_dim
        self._members, self._choices = len(spec.layout.members), spec.layout.choices
        self._member = TorchStock(spec.member, params)
        self._width = spec.member.obs_size
        device = next(iter(params.values())).device
        self._inputs = torch.tensor(spec.inputs, device=device)
        self._state = torch.tensor(spec.layout.state, device=device)
        self._zero_one = torch.tensor([[0.0, 1.0]], device=device, dtype=torch.float32)
        self._layers = [
            (params[f"{layer.name}.weight"], params[f"{layer.name}.bias"]) for layer in spec.mixing_layers()
        ]

    def dist_inputs(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> Tensor:
        """Return masked Q-values of all members [N, C * n] from obs [N, F] and mask [N, C * n]."""
        row = torch.cat((obs, self._zero_one.expand(len(obs), 2)), 1).index_select(1, self._inputs)
        seen = row.reshape(-1, self._width)
        allowed = None if mask is None else mask.reshape(-1, self._choices)
        return self._member.dist_inputs(seen, allowed).reshape(-1, self._members * self._choices)

    def by_member(self, obs: Tensor, mask: Tensor | None) -> Tensor:
        """Return `dist_inputs` as [N, C, n]."""
        return self.dist_inputs(obs, mask).reshape(-1, self._members, self._choices)

    def values(self, obs: Tensor, state: Tensor | None = None) -> Tensor:
        """Return the sums of the members' highest Q-values [N], without the mixing network."""
        return self.by_member(obs, None).amax(-1).sum(-1)

    def both(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and values."""
        return self.dist_inputs(obs, mask), self.values(obs)

    def mixed(self, q_values: Tensor, obs: Tensor) -> Tensor:
        """Return the group's Q-values [N] from one Q-value of each member [N, C], unchanged without a mixer."""
        if self._mixer is None:
            return q_values
        if self._mixer == "vdn":
            return q_values.sum(-1)
        state = obs.index_select(1, self._state)
        weight, bias, out_weight, out_bias = (_affine(layer, state) for layer in self._layers[:4])
        weight = weight.abs().reshape(-1, self._members, self._embed_dim)
        hidden = elu(torch.bmm(q_values[:, None], weight)[:, 0] + bias)
        return (hidden * out_weight.abs()).sum(-1) + _affine(self._layers[4], out_bias.relu())[:, 0]


def _affine(layer: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    weight, bias = layer
    return torch.addmm(bias, x, weight)
