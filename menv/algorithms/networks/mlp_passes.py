"""A fully connected network forwards and backwards without autograd.

`ppo_by_hand` calls it, where a minibatch takes so little arithmetic that autograd's bookkeeping, its copies into the
flat gradient and the libraries' slow cases show. Gradients are written where the optimizer reads them. It knows no
losses; outputs are [D, N], a column a row of the batch, because losses over a few choices are quick that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from menv.algorithms.networks.slopes import SLOPES, Slope
from menv.algorithms.networks.stock import Layer, Role, StockSpec
from menv.algorithms.torch_device import CPU


class _Affine(NamedTuple):
    """A layer's weights [in, out] and bias [out], and where their gradients belong."""

    weight: Tensor
    bias: Tensor
    by_weight: Tensor
    by_bias: Tensor

    @classmethod
    def of(cls, params: Mapping[str, Tensor], layer: Layer) -> _Affine:
        weight, bias = params[f"{layer.name}.weight"], params[f"{layer.name}.bias"]
        by_weight, by_bias = weight.grad, bias.grad
        assert by_weight is not None, "parameters of an optimizer have gradients"
        assert by_bias is not None, "parameters of an optimizer have gradients"
        return cls(weight.detach(), bias.detach(), by_weight, by_bias)


class _Block(NamedTuple):
    """Memory for one hidden layer, [N, width] each: what goes into the activation, comes out, and its slopes."""

    before: Tensor
    after: Tensor
    slope: Tensor


class Workspace:
    """Memory for the passes of networks of equal widths, one after the other; a processor's cache holds that of one.

    Args:
        spec: The networks.
        device: Where it is.
    """

    def __init__(self, spec: StockSpec, device: torch.device = CPU) -> None:
        self._widths = spec.hiddens
        self._device = device
        self.slope: Slope | None = SLOPES.get(spec.activation)
        self._blocks: dict[int, Sequence[_Block]] = {}

    def blocks(self, rows: int) -> Sequence[_Block]:
        """Return the memory for so many rows, the same each time until it is freed."""
        found = self._blocks.get(rows)
        if found is None:
            found = self._blocks[rows] = [self._block(rows, width) for width in self._widths]
        return found

    def free(self) -> None:
        """Give the memory back; the next pass takes it anew."""
        self._blocks.clear()

    def _block(self, rows: int, width: int) -> _Block:
        size, where = (rows, width), self._device
        before, slope = (torch.empty(size, device=where, dtype=torch.float32) for _ in range(2))
        keeps_inputs = self.slope is not None and self.slope.keeps_inputs
        return _Block(before, torch.empty_like(before) if keeps_inputs else before, slope)


class MlpPasses:
    """One network of a spec that `can_pass` approves of, over parameters that have gradients.

    Args:
        spec: The layers.
        role: Which of its networks.
        params: A leaf tensor for each name, whose `grad` is written and never replaced.
        workspace: Memory, which other networks may use between this one's passes, but not between a forward pass
            and the backward pass that belongs to it.
    """

    def __init__(
        self, spec: StockSpec, role: Role, params: Mapping[str, Tensor], workspace: Workspace
    ) -> None:
        self._hidden = [_Affine.of(params, layer) for layer in spec.hidden_layers(role)]
        self._out = _Affine.of(params, spec.out_layer(role))
        self._by_out = self._out.weight.new_empty(self._out.weight.shape[::-1])
        self._workspace = workspace
        self._slope = workspace.slope

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [D, N] for inputs [N, F]."""
        for layer, block in zip(self._hidden, self._workspace.blocks(len(x)), strict=True):
            torch.addmm(layer.bias, x, layer.weight, out=block.before)
            if self._slope is not None:
                self._slope.forward(block.before, block.after)
            x = block.after
        # Written into columns by the product itself, it takes some processors three times as long.
        return torch.addmm(self._out.bias, x, self._out.weight).t().contiguous()

    def backward(self, x: Tensor, by_outputs: Tensor) -> None:
        """Write the gradients of all weights.

        Args:
            x: [N, F] what the forward pass before was given.
            by_outputs: [D, N] slopes of the loss in what it returned.
        """
        blocks = self._workspace.blocks(len(x))
        out = self._out
        # The product of these shapes is several times as quick with its result turned round.
        torch.mm(by_outputs, blocks[-1].after if blocks else x, out=self._by_out)
        out.by_weight.copy_(self._by_out.t())
        torch.sum(by_outputs, 1, out=out.by_bias)
        by_after, weight = by_outputs.t(), out.weight
        for number in reversed(range(len(blocks))):
            block, layer = blocks[number], self._hidden[number]
            torch.mm(by_after, weight.t(), out=block.slope)
            if self._slope is not None:
                self._slope.backward(block.slope, block.before, block.after)
            torch.mm((blocks[number - 1].after if number else x).t(), block.slope, out=layer.by_weight)
            torch.sum(block.slope, 0, out=layer.by_bias)
            by_after, weight = block.slope, layer.weight


def can_pass(spec: object) -> bool:
    """Return whether a network is two separate ones of nothing but fully connected layers over numbers."""
    return (
        isinstance(spec, StockSpec)
        and len(spec.trunks) == 2
        and not (spec.cell or spec.conv or spec.pixels or spec.dueling)
    )
