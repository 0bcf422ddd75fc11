"""The network of a group of agents as bare torch operations on parameters that somebody else owns.

The learner and the torch acting back-end build it from a `GroupSpec`. It knows rows of numbers, not agents.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import elu

from menv.algorithms.networks.torch_stock import TorchStock
from menv.algorithms.qmix.network import GroupSpec


class TorchGroup:
    """The network of `spec` over `params`, whose current values every call reads.

    Args:
        spec: The layers.
        params: A tensor for each name in `spec.weight_shapes()`.

    It has no memory; the `state` of a `TorchNetwork` is None.

    Attributes:
        obs_size: F, numbers in the group's flat observation.
    """

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
        """Return [N, C * n] Q-values of all members after masking, from obs [N, F] and mask [N, C * n]."""
        row = torch.cat((obs, self._zero_one.expand(len(obs), 2)), 1).index_select(1, self._inputs)
        seen = row.reshape(-1, self._width)
        allowed = None if mask is None else mask.reshape(-1, self._choices)
        return self._member.dist_inputs(seen, allowed).reshape(-1, self._members * self._choices)

    def by_member(self, obs: Tensor, mask: Tensor | None) -> Tensor:
        """Return [N, C, n] of what `dist_inputs` does."""
        return self.dist_inputs(obs, mask).reshape(-1, self._members, self._choices)

    def values(self, obs: Tensor, state: Tensor | None = None) -> Tensor:
        """Return [N] sums of the members' highest Q-values; the mixing network has no say."""
        return self.by_member(obs, None).amax(-1).sum(-1)

    def both(self, obs: Tensor, mask: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and values."""
        return self.dist_inputs(obs, mask), self.values(obs)

    def mixed(self, worth: Tensor, obs: Tensor) -> Tensor:
        """Return what the members' choices are worth to the group.

        Args:
            worth: [N, C] one Q-value of each member.
            obs: [N, F] observations that they belong to.

        Returns:
            [N], monotonic in each member's; without a mixer `worth` itself.
        """
        if self._mixer is None:
            return worth
        if self._mixer == "vdn":
            return worth.sum(-1)
        state = obs.index_select(1, self._state)
        weight, bias, out_weight, out_bias = (_affine(layer, state) for layer in self._layers[:4])
        weight = weight.abs().reshape(-1, self._members, self._embed_dim)
        hidden = elu(torch.bmm(worth[:, None], weight)[:, 0] + bias)
        return (hidden * out_weight.abs()).sum(-1) + _affine(self._layers[4], out_bias.relu())[:, 0]


def _affine(layer: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    weight, bias = layer
    return torch.addmm(bias, x, weight)
