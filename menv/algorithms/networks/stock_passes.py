"""Two fully connected networks, policy and value, forwards and backwards without autograd.

`ppo_by_hand` calls it, where a minibatch takes so little arithmetic that autograd's bookkeeping, its copies into the
flat gradient and the libraries' slow cases show. Both networks lie in one block of memory a layer; gradients are
written where the optimizer reads them. It knows no losses; outputs are [D, N], a column a row of the batch, because
losses over a few choices are quick that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from menv.algorithms.networks.slopes import SLOPES, Slope
from menv.algorithms.networks.stock import ROLES, Layer, StockSpec

# Of whole minibatches and of a batch's last one.
_WORKSPACES = 2


class _Affine(NamedTuple):
    """A layer's weights [in, out] and bias [out], and where their gradients belong."""

    weight: Tensor
    bias: Tensor
    by_weight: Tensor
    by_bias: Tensor

    @classmethod
    def of(cls, params: Mapping[str, Tensor], layer: Layer) -> _Affine:
        weight, bias = params[f"{layer.name}.weight"], params[f"{layer.name}.bias"]
        assert weight.grad is not None and bias.grad is not None, "parameters of an optimizer have gradients"
        return cls(weight.detach(), bias.detach(), weight.grad, bias.grad)


class _Block(NamedTuple):
    """One hidden layer of both networks: [2, N, width] each, and the same as a tensor a network."""

    before: Tensor
    after: Tensor
    slope: Tensor
    befores: Sequence[Tensor]
    afters: Sequence[Tensor]
    slopes: Sequence[Tensor]

    @classmethod
    def empty(cls, rows: int, width: int, keeps_inputs: bool) -> _Block:
        before, slope = torch.empty(2, 2, rows, width).unbind(0)
        after = torch.empty_like(before) if keeps_inputs else before
        return cls(before, after, slope, before.unbind(0), after.unbind(0), slope.unbind(0))


class _Workspace(NamedTuple):
    """Memory for the passes of N rows."""

    blocks: Sequence[_Block]
    outputs: Tensor


class StockPasses:
    """The networks of `spec` over parameters that have gradients.

    Args:
        spec: Layers that `can_pass` approves of.
        params: A leaf tensor for each name, whose `grad` is written and never replaced.
    """

    def __init__(self, spec: StockSpec, params: Mapping[str, Tensor]) -> None:
        self._hidden = [
            [_Affine.of(params, layer) for layer in layers]
            for layers in zip(*(spec.hidden_layers(role) for role in ROLES), strict=True)
        ]
        self._widths = spec.hiddens
        self._slope: Slope | None = SLOPES.get(spec.activation)
        self._policy_out, self._value_out = (_Affine.of(params, spec.out_layer(role)) for role in ROLES)
        self._by_policy_out = torch.empty(self._policy_out.weight.shape[::-1])
        self._workspaces: dict[int, _Workspace] = {}
        self._seen: tuple[Tensor, Tensor] | None = None

    def forward(self, obs: Tensor, value_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return [D, N] the policy's outputs and [N] values; the next call overwrites the former.

        Args:
            obs: [N, F] what the policy network sees.
            value_obs: [N, C] what the value network sees.
        """
        space = self._workspace(len(obs))
        self._seen = obs, value_obs
        x: Sequence[Tensor] = self._seen
        for layers, block in zip(self._hidden, space.blocks, strict=True):
            for layer, seen, found in zip(layers, x, block.befores, strict=True):
                torch.addmm(layer.bias, seen, layer.weight, out=found)
            if self._slope is not None:
                self._slope.forward(block.before, block.after)
            x = block.afters
        out, value = self._policy_out, self._value_out
        torch.addmm(out.bias, x[0], out.weight, out=space.outputs.t())
        return space.outputs, torch.addmv(value.bias, x[1], value.weight.view(-1))

    def backward(self, by_outputs: Tensor, by_values: Tensor) -> None:
        """Write the gradients of all weights, after the forward pass that they belong to.

        Args:
            by_outputs: [D, N] slopes of the loss in the outputs.
            by_values: [N] those in the values.
        """
        assert self._seen is not None, "backward comes after forward"
        space = self._workspace(len(by_values))
        x: list[Sequence[Tensor]] = [self._seen, *(block.afters for block in space.blocks)]
        out, value = self._policy_out, self._value_out
        # The product of these shapes is several times as quick with its result turned round.
        out.by_weight.copy_(torch.mm(by_outputs, x[-1][0], out=self._by_policy_out).t())
        torch.sum(by_outputs, 1, out=out.by_bias)
        torch.mv(x[-1][1].t(), by_values, out=value.by_weight.view(-1))
        torch.sum(by_values, 0, keepdim=True, out=value.by_bias)
        if space.blocks:
            top = space.blocks[-1].slopes
            torch.mm(by_outputs.t(), out.weight.t(), out=top[0])
            torch.mul(by_values[:, None], value.weight.view(-1), out=top[1])
        for number in reversed(range(len(space.blocks))):
            block = space.blocks[number]
            if self._slope is not None:
                self._slope.backward(block.slope, block.before, block.after)
            for role, layer in enumerate(self._hidden[number]):
                torch.mm(x[number][role].t(), block.slopes[role], out=layer.by_weight)
                torch.sum(block.slopes[role], 0, out=layer.by_bias)
                if number:
                    torch.mm(block.slopes[role], layer.weight.t(), out=space.blocks[number - 1].slopes[role])

    def _workspace(self, rows: int) -> _Workspace:
        found = self._workspaces.get(rows)
        if found is None:
            if len(self._workspaces) >= _WORKSPACES:
                self._workspaces.clear()
            keeps = self._slope is not None and self._slope.keeps_inputs
            found = self._workspaces[rows] = _Workspace(
                [_Block.empty(rows, width, keeps) for width in self._widths],
                torch.empty(len(self._policy_out.bias), rows),
            )
        return found


def can_pass(spec: object) -> bool:
    """Return whether a network is two separate ones of nothing but fully connected layers over numbers."""
    return (
        isinstance(spec, StockSpec)
        and len(spec.trunks) == 2
        and not (spec.cell or spec.conv or spec.pixels or spec.dueling)
    )
