"""ONNX acting graphs of the stock networks, built from the same `MlpSpec` as the torch form.

`OnnxActing` asks for bytes by kind; nothing here runs them. All weights are graph inputs, so one
graph serves every policy of an architecture and never has to be built again when weights change.
Stacked graphs hold P policies at once: every weight has a leading axis P, biases are [P, 1, out], and
`pick` [R] names the row `policy * R + row` of the [P * R] results that each row wants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from menv.acting.acting_graphs import GraphKind
from menv.acting.action_head import ILLEGAL, LEAST_CHANCE, ActionHead
from menv.algorithms.networks.mlp import EPSILON, LOG_STD, Activation, Layer, MlpSpec, Role

OPSET = 17
IR_VERSION = 9

# ONNX Runtime splits an inner product of more than this many terms, and then a Gemm adds its bias to
# the first part, a MatMul with Add to the total. Up to here both give the same bits and Gemm is faster.
_GEMM_INPUTS = 128
_OPS: dict[Activation, str] = {"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}


class MlpGraphs:
    """Builds the graphs of one `MlpSpec`.

    Args:
        spec: The network.
        defaults: Weights that a single-policy graph holds as overridable initializers, for files
            that shall run on their own. Without them a forgotten weight is an error of the runtime.
    """

    def __init__(self, spec: MlpSpec, defaults: Mapping[str, npt.NDArray[np.float32]] | None = None) -> None:
        self.spec = spec
        self.defaults = dict(defaults or {})

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return a serialised model; see `ActingGraphs.build`."""
        assert kind in ("act", "greedy") or not stacked, f"no stacked graph of kind {kind!r}"
        graph = _Graph(self.spec, stacked)
        graph.given("obs", TensorProto.FLOAT, ["R", self.spec.obs_size])
        if kind == "values":
            graph.result("values", TensorProto.FLOAT, ["R"], graph.values())
        else:
            self._add_policy(graph, kind, masked)
        return graph.serialised(kind, {} if stacked else self.defaults)

    def _add_policy(self, graph: _Graph, kind: GraphKind, masked: bool) -> None:
        head = self.spec.head
        tail = _TAILS.get(head.kind, _Choices)(graph, head)
        outputs = tail.dist_inputs(masked)
        if kind == "evaluate":
            actions = graph.given("actions", *_action_type(head))
            graph.result("dist_inputs", TensorProto.FLOAT, ["R", head.inputs], outputs)
            graph.result("logp", TensorProto.FLOAT, ["R"], tail.logp(outputs, actions))
            return
        action = tail.sample() if kind == "act" else tail.mode()
        graph.result("action", *_action_type(head), action)
        if head.told:
            graph.result("dist_inputs", TensorProto.FLOAT, ["R", head.inputs], outputs)


def _action_type(head: ActionHead) -> tuple[int, list[str | int]]:
    element = TensorProto.FLOAT if head.kind == "gaussian" else TensorProto.INT64
    return element, ["R", *head.action_shape]


class _Graph:
    """Collects nodes, inputs and constants; knows the layers, not what they are for."""

    def __init__(self, spec: MlpSpec, stacked: bool) -> None:
        self.spec = spec
        self.stacked = stacked
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, *operands: str, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(operands), [name], name, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def given(self, name: str, element: int, shape: Sequence[str | int]) -> str:
        self.inputs[name] = helper.make_tensor_value_info(name, element, shape)
        return name

    def result(self, name: str, element: int, shape: Sequence[str | int], source: str) -> None:
        self.nodes.append(helper.make_node("Identity", [source], [name], name))
        self.outputs.append(helper.make_tensor_value_info(name, element, shape))

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        if not self.stacked:
            return self.given(name, TensorProto.FLOAT, shape)
        row_vector = len(shape) == 1 and name not in (LOG_STD, EPSILON)
        return self.given(name, TensorProto.FLOAT, ["P", *((1,) if row_vector else ()), *shape])

    def affine(self, layer: Layer, x: str) -> str:
        weight = self.weight(f"{layer.name}.weight", (layer.inputs, layer.outputs))
        bias = self.weight(f"{layer.name}.bias", (layer.outputs,))
        if layer.outputs > 1:
            return self.product(layer, x, weight, bias)
        # A product with one column has a kernel of its own whose rounding depends on the batch size.
        two_columns = self.product(layer, x, self.add("Concat", weight, weight, axis=-1), bias)
        return self.add("Gather", two_columns, self.constant([0]), axis=-1)

    def product(self, layer: Layer, x: str, weight: str, bias: str) -> str:
        if not self.stacked and layer.inputs <= _GEMM_INPUTS:
            return self.add("Gemm", x, weight, bias)
        return self.add("Add", self.add("MatMul", x, weight), bias)

    def activated(self, x: str) -> str:
        if self.spec.activation == "linear":
            return x
        if self.spec.activation == "silu":
            return self.add("Mul", x, self.add("Sigmoid", x))
        return self.add(_OPS[self.spec.activation], x)

    def features(self, role: Role) -> str:
        x = "obs"
        for layer in self.spec.hidden_layers(role):
            x = self.activated(self.affine(layer, x))
        return x

    def outputs_of(self, role: Role, features: str) -> str:
        layer = self.spec.out_layer(role)
        x = self.affine(layer, features)
        if not self.stacked:
            return x
        rows = self.add("Reshape", x, self.constant([-1, layer.outputs]))
        return self.add("Gather", rows, self.given("pick", TensorProto.INT64, ["R"]), axis=0)

    def policy_outputs(self) -> str:
        features = self.features("policy")
        outputs = self.outputs_of("policy", features)
        if not self.spec.dueling:
            return outputs
        # ReduceMean rounds differently for other numbers of rows, and so does a product with one column.
        choices = self.spec.head.outputs
        averaging = self.constant(np.full((choices, 2), 1.0 / choices), np.float32)
        mean = self.add("Gather", self.add("MatMul", outputs, averaging), self.constant([0]), axis=-1)
        return self.add("Add", self.add("Sub", outputs, mean), self.outputs_of("value", features))

    def values(self) -> str:
        if self.spec.head.kind == "q_values":
            return self.add("ReduceMax", self.policy_outputs(), axes=[1], keepdims=0)
        return self.add("Squeeze", self.outputs_of("value", self.features("value")), self.constant([1]))

    def of_each_row(self, name: str, shape: tuple[int, ...]) -> str:
        """Return a weight that is no layer's: broadcastable to rows if alone, [R, ...] if stacked."""
        weight = self.weight(name, shape)
        if not self.stacked:
            return weight
        return self.add("Gather", weight, self.given("which", TensorProto.INT64, ["R"]), axis=0)

    def serialised(self, name: str, defaults: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
        held = [numpy_helper.from_array(defaults[key], key) for key in self.inputs if key in defaults]
        graph = helper.make_graph(
            self.nodes, name, list(self.inputs.values()), self.outputs, [*self.constants, *held]
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="menv")
        return bytes(model.SerializeToString())


class _Choices:
    """The tail of one or several categorical components.

    Components of unlike sizes are laid out as [R, components, largest size], padded with illegal
    choices, so that any number of them costs the same few nodes.
    """

    def __init__(self, graph: _Graph, head: ActionHead) -> None:
        self.graph = graph
        self.head = head
        self.several = head.kind == "multi_categorical"
        self.logits = ""

    def dist_inputs(self, masked: bool) -> str:
        graph = self.graph
        self.logits = graph.policy_outputs()
        if masked:
            mask = graph.given("mask", TensorProto.BOOL, ["R", self.head.mask_width])
            self.logits = graph.add("Where", mask, self.logits, graph.constant(ILLEGAL, np.float32))
        return self.logits

    def by_component(self) -> str:
        graph, sizes, widest = self.graph, self.head.sizes, max(self.head.sizes)
        if not self.several:
            return self.logits
        if min(sizes) == widest:
            return graph.add("Reshape", self.logits, graph.constant([0, len(sizes), widest]))
        starts = np.cumsum((0, *sizes[:-1]))[:, None]
        choice = np.arange(widest)[None, :]
        real = choice < np.asarray(sizes)[:, None]
        padded = graph.add("Gather", self.logits, graph.constant(np.where(real, starts + choice, 0)), axis=1)
        illegal = graph.constant(ILLEGAL, np.float32)
        return graph.add("Where", graph.constant(real, np.bool_), padded, illegal)

    def sample(self) -> str:
        # Inverse CDF. Scaling the draw by the sum as computed, not by 1, keeps it below the last step
        # of the CDF, so that rounding can never pick a choice of probability 0.
        graph, head = self.graph, self.head
        if head.sizes == (2,) and not self.several:
            return self._sample_of_two()
        chances = graph.add("Softmax", self.by_component(), axis=-1)
        steps = graph.add("CumSum", chances, graph.constant(2 if self.several else 1))
        axis = 2 if self.several else 1
        total = graph.add("Gather", steps, graph.constant([max(head.sizes) - 1]), axis=axis)
        draws = graph.given("noise", TensorProto.FLOAT, ["R", head.noise_width])
        if self.several:
            draws = graph.add("Unsqueeze", draws, graph.constant([2]))
        beyond = graph.add("Greater", steps, graph.add("Mul", draws, total))
        return self._first_highest(graph.add("Cast", beyond, to=TensorProto.UINT8))

    def _sample_of_two(self) -> str:
        # A softmax of two numbers takes as long as the layer before it. The draw is below 1 and may be 0, so
        # a choice of probability 0 is never taken.
        graph = self.graph
        pair = [graph.add("Gather", self.logits, graph.constant([place]), axis=1) for place in (0, 1)]
        chance = graph.add("Sigmoid", graph.add("Sub", *pair))
        second = graph.add("GreaterOrEqual", graph.given("noise", TensorProto.FLOAT, ["R", 1]), chance)
        return graph.add("Squeeze", graph.add("Cast", second, to=TensorProto.INT64), graph.constant([-1]))

    def mode(self) -> str:
        return self._first_highest(self.by_component())

    def _first_highest(self, x: str) -> str:
        return self.graph.add("ArgMax", x, axis=-1, keepdims=0)

    def logp(self, dist_inputs: str, actions: str) -> str:
        graph = self.graph
        last = graph.constant([-1])
        logs = graph.add("LogSoftmax", self.by_component(), axis=-1)
        taken = graph.add("GatherElements", logs, graph.add("Unsqueeze", actions, last), axis=-1)
        taken = graph.add("Squeeze", taken, last)
        return graph.add("ReduceSum", taken, last, keepdims=0) if self.several else taken


class _Gaussian:
    """The tail of a diagonal normal distribution with a free log_std."""

    def __init__(self, graph: _Graph, head: ActionHead) -> None:
        self.graph = graph
        self.head = head
        self.means = ""
        self.log_std = ""

    def dist_inputs(self, masked: bool) -> str:
        assert not masked, "continuous actions have no mask"
        graph = self.graph
        self.means = graph.policy_outputs()
        return self.means if graph.stacked else self._with_log_std()

    def _with_log_std(self) -> str:
        graph = self.graph
        self.log_std = graph.weight(LOG_STD, (self.head.outputs,))
        rows = graph.add("Expand", self.log_std, graph.add("Shape", self.means))
        return graph.add("Concat", self.means, rows, axis=1)

    def sample(self) -> str:
        graph = self.graph
        log_std = graph.of_each_row(LOG_STD, (self.head.outputs,))
        draws = graph.given("noise", TensorProto.FLOAT, ["R", self.head.noise_width])
        return graph.add("Add", self.means, graph.add("Mul", graph.add("Exp", log_std), draws))

    def mode(self) -> str:
        return self.means

    def logp(self, dist_inputs: str, actions: str) -> str:
        graph = self.graph
        z = graph.add("Div", graph.add("Sub", actions, self.means), graph.add("Exp", self.log_std))
        terms = graph.add("Mul", graph.add("Mul", z, z), graph.constant(-0.5, np.float32))
        terms = graph.add("Sub", terms, self.log_std)
        terms = graph.add("Sub", terms, graph.constant(0.5 * np.log(2.0 * np.pi), np.float32))
        return graph.add("ReduceSum", terms, graph.constant([-1]), keepdims=0)


class _QValues:
    """The tail of one choice by its worth: the best one, or by a chance of epsilon any legal one."""

    def __init__(self, graph: _Graph, head: ActionHead) -> None:
        self.graph = graph
        self.head = head
        self.worth = ""
        self.mask = ""

    def dist_inputs(self, masked: bool) -> str:
        graph = self.graph
        self.worth = graph.policy_outputs()
        if masked:
            self.mask = graph.given("mask", TensorProto.BOOL, ["R", self.head.mask_width])
            self.worth = graph.add("Where", self.mask, self.worth, graph.constant(ILLEGAL, np.float32))
        return self.worth

    def mode(self) -> str:
        return self.graph.add("ArgMax", self.worth, axis=-1, keepdims=0)

    def sample(self) -> str:
        graph = self.graph
        draws = graph.given("noise", TensorProto.FLOAT, ["R", self.head.noise_width])
        whether, what = (graph.add("Gather", draws, graph.constant([place]), axis=1) for place in (0, 1))
        explores = graph.add("Less", whether, graph.of_each_row(EPSILON, (1,)))
        explores = graph.add("Squeeze", explores, graph.constant([1]))
        return graph.add("Where", explores, self._any_legal(what), self.mode())

    def _any_legal(self, draw: str) -> str:
        # A draw of at most 1 - 2**-23 times a count stays below the count in float32, so that the first choice
        # whose number among the legal ones exceeds the product exists, and is legal.
        graph, count = self.graph, self.head.sizes[0]
        if not self.mask:
            number = graph.add("Mul", draw, graph.constant(count, np.float32))
            number = graph.add("Cast", number, to=TensorProto.INT64)
            return graph.add("Squeeze", number, graph.constant([1]))
        numbers = graph.add("CumSum", self._legal(), graph.constant(1))
        total = graph.add("Gather", numbers, graph.constant([count - 1]), axis=1)
        beyond = graph.add("Greater", numbers, graph.add("Mul", draw, total))
        return graph.add("ArgMax", graph.add("Cast", beyond, to=TensorProto.UINT8), axis=-1, keepdims=0)

    def _legal(self) -> str:
        return self.graph.add("Cast", self.mask, to=TensorProto.FLOAT)

    def logp(self, dist_inputs: str, actions: str) -> str:
        graph, last = self.graph, self.graph.constant([-1])
        epsilon = graph.weight(EPSILON, (1,))
        one = graph.constant(1.0, np.float32)
        share = graph.add("Mul", epsilon, graph.constant(1.0 / self.head.sizes[0], np.float32))
        if self.mask:
            legal = self._legal()
            own = graph.add("GatherElements", legal, graph.add("Unsqueeze", actions, last), axis=1)
            total = graph.add("ReduceSum", legal, last, keepdims=1)
            # A mask of a row that nobody asked may allow nothing.
            shares = graph.add("Div", own, graph.add("Max", total, one))
            share = graph.add("Squeeze", graph.add("Mul", epsilon, shares), last)
        best = graph.add("Cast", graph.add("Equal", actions, self.mode()), to=TensorProto.FLOAT)
        chance = graph.add("Add", share, graph.add("Mul", best, graph.add("Sub", one, epsilon)))
        chance = graph.add("Max", chance, graph.constant(LEAST_CHANCE, np.float32))
        # Log rounds the numbers that fill no vector register differently: each row gets registers of its own.
        wide = graph.add("Mul", graph.add("Unsqueeze", chance, last), graph.constant([1.0] * 16, np.float32))
        return graph.add(
            "Squeeze", graph.add("Gather", graph.add("Log", wide), graph.constant([0]), axis=1), last
        )


_TAILS: dict[str, type[_Gaussian] | type[_QValues]] = {"gaussian": _Gaussian, "q_values": _QValues}
