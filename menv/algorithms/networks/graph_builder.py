"""GraphBuilder: builds the ONNX acting graph of a stock network layer by layer.

All weights are graph inputs. In a stacked graph, which computes P policies at once, weights have a leading axis P,
biases are [P, 1, out], observations and states are [P, D, *] or [1, D, *], and `pick` [R] selects the result of each
row among the [P * D] results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from menv.algorithms.networks.stock_spec import (
    EPSILON,
    INPUT,
    LOG_STD,
    STATE,
    Activation,
    Cell,
    ConvLayer,
    ConvStack,
    Layer,
    Role,
    StockSpec,
)

OPSET = 17
IR_VERSION = 9

# ONNX Runtime splits longer inner products; Gemm then adds the bias to the first part, MatMul with Add to the total.
# Up to this length both give identical results and Gemm is faster.
_GEMM_INPUTS = 128
_OPS: dict[Activation, str] = {"tanh": "Tanh", "relu": "Relu"}


class GraphBuilder:
    """Collects nodes, inputs and constants; knows the layers, not what they are for.

    Attributes:
        stacked: Whether weights are [P, ...] and rows [L, D, ...].
        nodes: In execution order.
        inputs: Inputs by name, including weights.
        reads: The name of the input of the first layers.
        own_deviations: Whether outputs of continuous actions contain log standard deviations after the means;
            otherwise they are a weight.
    """

    own_deviations = False
    opset, ir_version = OPSET, IR_VERSION

    def __init__(self, spec: StockSpec, stacked: bool) -> None:
        self.spec = spec
        self.stacked = stacked
        self.reads = "obs"
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._after: dict[str, str] = {}
        self._weights: set[str] = set()

    def add(self, op: str, *operands: str, **attributes: Any) -> str:
        """Add a node with one output and return its name."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(operands), [name], name, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Add a constant."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def rows_of(self, width: int) -> list[str | int]:
        """Return the input shape of layers that read `width` numbers per row."""
        return ["L", "D", width] if self.stacked else ["R", width]

    def given(self, name: str, element: int, shape: Sequence[str | int]) -> str:
        """Declare an input."""
        self.inputs[name] = helper.make_tensor_value_info(name, element, shape)
        return name

    def result(self, name: str, element: int, shape: Sequence[str | int], source: str) -> None:
        """Declare an output."""
        self.nodes.append(helper.make_node("Identity", [source], [name], name))
        self.outputs.append(helper.make_tensor_value_info(name, element, shape))

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Declare a weight as an input."""
        self._weights.add(name)
        if not self.stacked:
            return self.given(name, TensorProto.FLOAT, shape)
        row_vector = len(shape) == 1 and name not in (LOG_STD, EPSILON)
        return self.given(name, TensorProto.FLOAT, ["P", *((1,) if row_vector else ()), *shape])

    def affine(self, layer: Layer, x: str) -> str:
        """Return `x @ W + b`."""
        weight = self.weight(f"{layer.name}.weight", (layer.inputs, layer.outputs))
        bias = self.weight(f"{layer.name}.bias", (layer.outputs,))
        if layer.outputs > 1:
            return self.product(layer, x, weight, bias)
        # The kernel of products with one column rounds depending on the batch size.
        two_columns = self.product(layer, x, self.add("Concat", weight, weight, axis=-1), bias)
        return self.add("Gather", two_columns, self.constant([0]), axis=-1)

    def product(self, layer: Layer, x: str, weight: str, bias: str) -> str:
        """Return `x @ weight + bias`, with the same rounding for any number of rows."""
        if not self.stacked and layer.inputs <= _GEMM_INPUTS:
            return self.add("Gemm", x, weight, bias)
        return self.add("Add", self.add("MatMul", x, weight), bias)

    def activated(self, x: str, activation: Activation) -> str:
        """Return a non-linearity of x."""
        if activation == "linear":
            return x
        if activation == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        if activation == "elu":
            return self.elu(x)
        return self.add(_OPS[activation], x)

    def elu(self, x: str) -> str:
        """Return max(x, 0) + exp(min(x, 0)) - 1."""
        # Elu rounds the rows that do not fill a vector register differently; Exp does not.
        zero, one = self.constant(0.0, np.float32), self.constant(1.0, np.float32)
        below = self.add("Sub", self.add("Exp", self.add("Min", x, zero)), one)
        return self.add("Add", self.add("Max", x, zero), below)

    def observed(self, role: Role) -> str:
        """Return the input of the first hidden layer of a role."""
        spec, x = self.spec, self.reads
        if role == "value" and spec.critic_size:
            return x
        if spec.pixels:
            x = self.add("Cast", x, to=TensorProto.FLOAT)
        return x if spec.conv is None else self.convolved(spec.conv, spec.conv_layers(role), x)

    def convolved(self, stack: ConvStack, layers: Sequence[ConvLayer], x: str) -> str:
        """Return the flattened features of image rows, channels first."""
        if self.spec.pixels:
            x = self.add("Mul", x, self.constant(1.0 / 255.0, np.float32))
        x = self.add("Reshape", x, self.constant([-1, *stack.shape]))
        x = self.add("Transpose", x, perm=[0, 3, 1, 2])
        for layer in layers:
            weight = self.weight(f"{layer.name}.weight", layer.weight_shape)
            bias = self.weight(f"{layer.name}.bias", (layer.outputs,))
            x = self.add(
                "Conv", x, weight, bias, kernel_shape=layer.kernel, strides=layer.stride, pads=layer.pads
            )
            x = self.activated(x, stack.activation)
        return self.add("Reshape", x, self.constant([-1, stack.features]))

    def features(self, role: Role) -> str:
        """Return the input of the last layer of a role."""
        x = self.observed(role)
        for layer in self.spec.hidden_layers(role):
            x = self.activated(self.affine(layer, x), self.spec.activation)
        trunk = self.spec.trunk_name(role)
        if not self.spec.cell or trunk not in self.spec.recurrent_trunks:
            return x
        return self._remembered(self.spec.cell, role, x)

    def outputs_of(self, role: Role, features: str) -> str:
        """Return the outputs of a role for the selected rows."""
        layer = self.spec.out_layer(role)
        return self._wanted(self.affine(layer, features), layer.outputs)

    def state_after(self) -> str:
        """Return the recurrent state after the selected rows."""
        for role in self.spec.roles:
            trunk = self.spec.trunk_name(role)
            if trunk in self.spec.recurrent_trunks and trunk not in self._after:
                self.features(role)
        parts = [self._after[trunk] for trunk in self.spec.recurrent_trunks]
        return self._wanted(self.add("Concat", *parts, axis=-1), sum(self.spec.state_sizes))

    def _wanted(self, x: str, width: int) -> str:
        if not self.stacked:
            return x
        rows = self.add("Reshape", x, self.constant([-1, width]))
        return self.add("Gather", rows, self.given("pick", TensorProto.INT64, ["R"]), axis=0)

    def _remembered(self, cell: Cell, role: Role, x: str) -> str:
        trunk = self.spec.trunk_name(role)
        state = self.given("state", TensorProto.FLOAT, self.rows_of(sum(self.spec.state_sizes)))
        first = self.spec.recurrent_trunks.index(trunk) * len(cell.state_sizes)
        width, name = cell.gates * cell.size, STATE.format(trunk)
        of_input = self.affine(Layer(INPUT.format(trunk), self.spec.hidden_features(role), width, 1.0), x)
        h = self._part(cell, state, first)
        of_state = self.add("MatMul", h, self.weight(f"{name}.weight", (cell.size, width)))
        if cell.kind == "lstm":
            gates, c = self.add("Add", of_input, of_state), self._part(cell, state, first + 1)
            h, self._after[trunk] = self._lstm(cell, gates, c)
            return h
        of_state = self.add("Add", of_state, self.weight(f"{name}.bias", (width,)))
        self._after[trunk] = self._gru(cell, of_input, of_state, h)
        return self._after[trunk]

    def _lstm(self, cell: Cell, gates: str, c: str) -> tuple[str, str]:
        admit, forget, candidate, show = (self._part(cell, gates, number) for number in range(4))
        kept = self.add("Mul", self.add("Sigmoid", forget), c)
        new = self.add("Mul", self.add("Sigmoid", admit), self.add("Tanh", candidate))
        c = self.add("Add", kept, new)
        h = self.add("Mul", self.add("Sigmoid", show), self.add("Tanh", c))
        return h, self.add("Concat", h, c, axis=-1)

    def _gru(self, cell: Cell, of_input: str, of_state: str, h: str) -> str:
        (reset, update, new), (reset_h, update_h, new_h) = (
            [self._part(cell, gates, number) for number in range(3)] for gates in (of_input, of_state)
        )
        reset = self.add("Sigmoid", self.add("Add", reset, reset_h))
        update = self.add("Sigmoid", self.add("Add", update, update_h))
        new = self.add("Tanh", self.add("Add", new, self.add("Mul", reset, new_h)))
        return self.add("Add", new, self.add("Mul", update, self.add("Sub", h, new)))

    def _part(self, cell: Cell, x: str, number: int) -> str:
        first, last = self.constant([number * cell.size]), self.constant([(number + 1) * cell.size])
        return self.add("Slice", x, first, last, self.constant([-1]))

    def policy_outputs(self) -> str:
        """Return the policy's outputs: logits, means or Q-values."""
        features = self.features("policy")
        outputs = self.outputs_of("policy", features)
        if not self.spec.dueling:
            return outputs
        choices = self.spec.head.outputs
        mean = self.row_sum(outputs, choices, 1.0 / choices)
        return self.add("Add", self.add("Sub", outputs, mean), self.outputs_of("value", features))

    def row_sum(self, x: str, width: int, factor: float = 1.0) -> str:
        """Return the sums of rows of `width` numbers times `factor`, as one column."""
        # ReduceSum, ReduceMean and products with one column round depending on the number of rows.
        ones = self.constant(np.full((width, 2), factor), np.float32)
        return self.add("Gather", self.add("MatMul", x, ones), self.constant([0]), axis=-1)

    def values(self) -> str:
        """Return the state values."""
        if self.spec.head.kind == "q_values":
            return self.add("ReduceMax", self.policy_outputs(), axes=[1], keepdims=0)
        return self.add("Squeeze", self.outputs_of("value", self.features("value")), self.constant([1]))

    def of_each_row(self, name: str, shape: tuple[int, ...]) -> str:
        """Return a weight outside of layers: broadcastable to rows, or [R, ...] if stacked."""
        weight = self.weight(name, shape)
        if not self.stacked:
            return weight
        return self.add("Gather", weight, self.given("which", TensorProto.INT64, ["R"]), axis=0)

    def serialised(self, name: str, defaults: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
        """Return the serialized model; `defaults` become overridable initializers."""
        if not any(attribute.HasField("g") for node in self.nodes for attribute in node.attribute):
            self._drop_copies()
            self._drop_unused()
        held = [numpy_helper.from_array(defaults[key], key) for key in self.inputs if key in defaults]
        graph = helper.make_graph(
            self.nodes, name, list(self.inputs.values()), self.outputs, [*self.constants, *held]
        )
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=self.ir_version, producer_name="menv"
        )
        return bytes(model.SerializeToString())

    def _drop_copies(self) -> None:
        made = {name for node in self.nodes for name in node.output}
        results = {output.name for output in self.outputs}
        names: dict[str, str] = {}
        kept = []
        for node in self.nodes:
            source, name = next(iter(node.input), ""), node.output[0]
            if node.op_type == "Identity" and name in results and source in made and source not in names:
                names[source] = name
            else:
                kept.append(node)
        self.nodes = [renamed(node, lambda name: names.get(name, name)) for node in kept]

    def _drop_unused(self) -> None:
        read = {output.name for output in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if read.intersection(node.output):
                read.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        self.constants = [constant for constant in self.constants if constant.name in read]
        self.inputs = {
            name: given for name, given in self.inputs.items() if name in read or name not in self._weights
        }


def renamed(node: onnx.NodeProto, rename: Callable[[str], str]) -> onnx.NodeProto:
    """Return a node with other names of its inputs and outputs."""
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    for ends in (changed.input, changed.output):
        ends[:] = [rename(name) for name in ends]
    return changed
