"""The layers of stock networks: each as torch operations and, next to them, as nodes of an acting graph.

`stock_spec` describes the layers. A torch form is a function over parameters that the caller owns: there is no
`nn.Module`, whose bookkeeping costs more than the arithmetic at 64 rows. Only torch forms import torch, and nothing
here imports onnx. Nodes round the same for any number of rows; comments say where that takes other operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from menv.algorithms.networks.stock_spec import (
    INPUT,
    STATE,
    Activation,
    Cell,
    ConvLayer,
    ConvStack,
    Layer,
)

if TYPE_CHECKING:
    from torch import Tensor

    from menv.algorithms.networks.graph_builder import ActingGraph

Params: TypeAlias = "Mapping[str, Tensor]"

# ONNX Runtime splits longer inner products; Gemm then adds the bias to the first part, MatMul with Add to the total.
# Up to this length both give identical results and Gemm is faster.
_GEMM_INPUTS = 128
_OPS: dict[Activation, str] = {"tanh": "Tanh", "relu": "Relu"}


def torch_affine(params: Params, name: str) -> Callable[[Tensor], Tensor]:
    """Return the function `x @ W + b`."""
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    return lambda x: bias.addmm(x, weight)


def affine_nodes(graph: ActingGraph, layer: Layer, x: str) -> str:
    """Add `x @ W + b`."""
    weight = graph.weight(f"{layer.name}.weight", (layer.inputs, layer.outputs))
    bias = graph.weight(f"{layer.name}.bias", (layer.outputs,))
    if layer.outputs > 1:
        return _product(graph, layer, x, weight, bias)
    # The kernel of products with one column rounds depending on the batch size.
    two_columns = _product(graph, layer, x, graph.add("Concat", weight, weight, axis=-1), bias)
    return graph.add("Gather", two_columns, graph.constant([0]), axis=-1)


def _product(graph: ActingGraph, layer: Layer, x: str, weight: str, bias: str) -> str:
    if not graph.stacked and layer.inputs <= _GEMM_INPUTS:
        return graph.add("Gemm", x, weight, bias)
    return graph.add("Add", graph.add("MatMul", x, weight), bias)


def torch_activation(activation: Activation) -> Callable[[Tensor], Tensor] | None:
    """Return a non-linearity, None for "linear"."""
    import torch

    functional = torch.nn.functional
    forms = {"tanh": torch.tanh, "relu": torch.relu, "silu": functional.silu, "elu": functional.elu}
    return forms.get(activation)


def activation_nodes(graph: ActingGraph, activation: Activation, x: str) -> str:
    """Add a non-linearity."""
    if activation == "linear":
        return x
    if activation == "silu":
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    if activation == "elu":
        # max(x, 0) + exp(min(x, 0)) - 1: Elu rounds rows that do not fill a vector register differently, Exp does not.
        zero, one = graph.constant(0.0, np.float32), graph.constant(1.0, np.float32)
        below = graph.add("Sub", graph.add("Exp", graph.add("Min", x, zero)), one)
        return graph.add("Add", graph.add("Max", x, zero), below)
    return graph.add(_OPS[activation], x)


def torch_convolutions(
    stack: ConvStack, layers: Sequence[ConvLayer], params: Params
) -> Callable[[Tensor], Tensor]:
    """Return the function from image rows [N, F] to flattened features [N, D], channels first."""
    from torch.nn import functional

    activation = torch_activation(stack.activation)
    weights = [(layer, params[f"{layer.name}.weight"], params[f"{layer.name}.bias"]) for layer in layers]

    def convolved(rows: Tensor) -> Tensor:
        x = rows.view(-1, *stack.shape).permute(0, 3, 1, 2)
        for layer, weight, bias in weights:
            top, left, bottom, right = layer.pads
            if (top, left) != (bottom, right):
                x = functional.pad(x, (left, right, top, bottom))
                top = left = 0
            x = functional.conv2d(x, weight, bias, layer.stride, (top, left))
            if activation is not None:
                x = activation(x)
        return x.flatten(1)

    return convolved


def convolution_nodes(graph: ActingGraph, stack: ConvStack, layers: Sequence[ConvLayer], x: str) -> str:
    """Add what makes flattened features, channels first, of image rows."""
    x = graph.add("Reshape", x, graph.constant([-1, *stack.shape]))
    x = graph.add("Transpose", x, perm=[0, 3, 1, 2])
    for layer in layers:
        weight = graph.weight(f"{layer.name}.weight", layer.weight_shape)
        bias = graph.weight(f"{layer.name}.bias", (layer.outputs,))
        x = graph.add(
            "Conv", x, weight, bias, kernel_shape=layer.kernel, strides=layer.stride, pads=layer.pads
        )
        x = activation_nodes(graph, stack.activation, x)
    return graph.add("Reshape", x, graph.constant([-1, stack.features]))


def torch_cell(cell: Cell, trunk: str, params: Params) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the cell of a trunk as a function of inputs [B * T, X] and states [B, S].

    The inputs are T rows of each sequence one after the other, the states those before the first rows. It returns the
    outputs of every row [B * T, H] and the state after each sequence [B, S].
    """
    import torch

    of_input, of_state = INPUT.format(trunk), STATE.format(trunk)
    bias = params[f"{of_input}.bias"]
    # torch adds two biases; an LSTM needs only one.
    state_bias = params.get(f"{of_state}.bias", torch.zeros_like(bias, requires_grad=False))
    matrices = params[f"{of_input}.weight"], params[f"{of_state}.weight"]

    def run(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        sequences = x.view(len(state), -1, x.shape[-1])
        # Transposed at every call: a view from before an in-place optimizer step has no gradient.
        weights = [*(matrix.t() for matrix in matrices), bias, state_bias]
        if x.is_cuda:
            # cuDNN wants the weights of a cell in one piece of memory: it warns of others, and its GRU refuses them.
            flat = torch.cat([weight.reshape(-1) for weight in weights])
            pieces = torch.split(flat, [weight.numel() for weight in weights])
            weights = [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]
        if cell.kind == "lstm":
            before = state[None, :, : cell.size].contiguous(), state[None, :, cell.size :].contiguous()
            out, h, c = torch.lstm(sequences, before, weights, True, 1, 0.0, True, False, True)
            after = torch.cat((h[0], c[0]), 1)
        else:
            out, h = torch.gru(sequences, state[None].contiguous(), weights, True, 1, 0.0, True, False, True)
            after = h[0]
        return out.reshape(len(x), cell.size), after

    return run


def cell_nodes(
    graph: ActingGraph, cell: Cell, trunk: str, inputs: int, x: str, parts: Sequence[str]
) -> tuple[str, str]:
    """Add the cell of a trunk after `inputs` features; return its output and the state after it.

    `parts` are the parts of the previous state: h, and c of an LSTM. ONNX operators for whole cells round differently
    for different numbers of rows.
    """
    width, name, h = cell.gates * cell.size, STATE.format(trunk), parts[0]
    of_input = affine_nodes(graph, Layer(INPUT.format(trunk), inputs, width, 1.0), x)
    of_state = graph.add("MatMul", h, graph.weight(f"{name}.weight", (cell.size, width)))
    if cell.kind == "lstm":
        return _lstm_nodes(graph, cell, graph.add("Add", of_input, of_state), parts[1])
    of_state = graph.add("Add", of_state, graph.weight(f"{name}.bias", (width,)))
    h = _gru_nodes(graph, cell, of_input, of_state, h)
    return h, h


def part_nodes(graph: ActingGraph, cell: Cell, x: str, number: int) -> str:
    """Add what takes one part of gates or states, of H columns."""
    first, last = graph.constant([number * cell.size]), graph.constant([(number + 1) * cell.size])
    return graph.add("Slice", x, first, last, graph.constant([-1]))


def _lstm_nodes(graph: ActingGraph, cell: Cell, gates: str, c: str) -> tuple[str, str]:
    admit, forget, candidate, show = (part_nodes(graph, cell, gates, number) for number in range(4))
    kept = graph.add("Mul", graph.add("Sigmoid", forget), c)
    new = graph.add("Mul", graph.add("Sigmoid", admit), graph.add("Tanh", candidate))
    c = graph.add("Add", kept, new)
    h = graph.add("Mul", graph.add("Sigmoid", show), graph.add("Tanh", c))
    return h, graph.add("Concat", h, c, axis=-1)


def _gru_nodes(graph: ActingGraph, cell: Cell, of_input: str, of_state: str, h: str) -> str:
    (reset, update, new), (reset_h, update_h, new_h) = (
        [part_nodes(graph, cell, gates, number) for number in range(3)] for gates in (of_input, of_state)
    )
    reset = graph.add("Sigmoid", graph.add("Add", reset, reset_h))
    update = graph.add("Sigmoid", graph.add("Add", update, update_h))
    new = graph.add("Tanh", graph.add("Add", new, graph.add("Mul", reset, new_h)))
    return graph.add("Add", new, graph.add("Mul", update, graph.add("Sub", h, new)))
