"""The nodes of ONNX graphs: `GraphBuilder` collects them, `ActingGraph` is the graph of a policy's network.

Stock networks, groups, users' modules and the exporters build their graphs with these two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

OPSET = 17
IR_VERSION = 9


class GraphBuilder:
    """Collects nodes in execution order, constants, and inputs and outputs by name."""

    def __init__(self) -> None:
        self.opsets, self.ir_version = [helper.make_opsetid("", OPSET)], IR_VERSION
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.outputs: dict[str, onnx.ValueInfoProto] = {}
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, *operands: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        name = name or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(operands), [name], name, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64, name: str = "") -> str:
        """Add a constant and return its name."""
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def cast(self, x: str, dtype: npt.DTypeLike, name: str = "") -> str:
        """Add the conversion of a value to another type and return its name."""
        return self.add("Cast", x, name=name, to=element(dtype))

    def given(self, name: str, dtype: npt.DTypeLike, shape: Sequence[str | int]) -> str:
        """Declare an input and return its name."""
        self.inputs[name] = helper.make_tensor_value_info(name, element(dtype), shape)
        return name

    def result(self, name: str, dtype: npt.DTypeLike, shape: Sequence[str | int], source: str) -> None:
        """Declare an output that has the value of `source`."""
        if name != source:
            self.add("Identity", source, name=name)
        self.outputs[name] = helper.make_tensor_value_info(name, element(dtype), shape)

    def model(self, name: str, held: Sequence[onnx.TensorProto] = ()) -> onnx.ModelProto:
        """Return the model; `held` are initializers that replace inputs."""
        graph = helper.make_graph(
            self.nodes,
            name,
            list(self.inputs.values()),
            list(self.outputs.values()),
            [*self.constants, *held],
        )
        return helper.make_model(
            graph, opset_imports=self.opsets, ir_version=self.ir_version, producer_name="menv"
        )


class ActingGraph(GraphBuilder):
    """The graph of a policy's network; subclasses add the network, and heads add the actions.

    All weights are graph inputs. In a stacked graph, which computes P policies at once, weights have a leading axis P,
    biases are [P, 1, out], and `which` [R] is the policy of each row.

    Attributes:
        state_sizes: Numbers in each part of the recurrent state.
        stacked: Whether weights are [P, ...].
        own_deviations: Whether outputs of continuous actions contain log standard deviations after the means;
            otherwise they are a weight.
    """

    own_deviations = False

    def __init__(self, state_sizes: tuple[int, ...], stacked: bool = False) -> None:
        super().__init__()
        self.state_sizes = state_sizes
        self.stacked = stacked
        self._weights: set[str] = set()

    def policy_outputs(self) -> str:
        """Return the policy's outputs: logits, means or Q-values."""
        raise NotImplementedError

    def state_after(self) -> str:
        """Return the recurrent state after the rows."""
        raise NotImplementedError

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Declare a weight as an input."""
        row_vector = self.stacked and len(shape) == 1
        return self._weight(name, (1, *shape) if row_vector else shape)

    def of_each_row(self, name: str, shape: tuple[int, ...]) -> str:
        """Return a weight outside of layers: broadcastable to rows, or [R, ...] if stacked."""
        weight = self._weight(name, shape)
        if not self.stacked:
            return weight
        return self.add("Gather", weight, self.given("which", np.int64, ["R"]), axis=0)

    def _weight(self, name: str, shape: tuple[int, ...]) -> str:
        self._weights.add(name)
        return self.given(name, np.float32, ["P", *shape] if self.stacked else shape)

    def row_sum(self, x: str, width: int, factor: float = 1.0) -> str:
        """Return the sums of rows of `width` numbers times `factor`, as one column."""
        # ReduceSum, ReduceMean and products with one column round depending on the number of rows.
        ones = self.constant(np.full((width, 2), factor), np.float32)
        return self.add("Gather", self.add("MatMul", x, ones), self.constant([0]), axis=-1)

    def serialised(self, name: str, defaults: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
        """Return the serialized model; `defaults` become overridable initializers."""
        if not any(attribute.HasField("g") for node in self.nodes for attribute in node.attribute):
            self._drop_copies()
            self._drop_unused()
        held = [numpy_helper.from_array(defaults[key], key) for key in self.inputs if key in defaults]
        return bytes(self.model(name, held).SerializeToString())

    def _drop_copies(self) -> None:
        made = {name for node in self.nodes for name in node.output}
        names: dict[str, str] = {}
        kept = []
        for node in self.nodes:
            source, name = next(iter(node.input), ""), node.output[0]
            if node.op_type == "Identity" and name in self.outputs and source in made and source not in names:
                names[source] = name
            else:
                kept.append(node)
        self.nodes = [renamed(node, lambda name: names.get(name, name)) for node in kept]

    def _drop_unused(self) -> None:
        read = set(self.outputs)
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


def element(dtype: npt.DTypeLike) -> int:
    """Return the ONNX type of elements."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def renamed(node: onnx.NodeProto, rename: Callable[[str], str]) -> onnx.NodeProto:
    """Return a node with other names of its inputs and outputs."""
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    for ends in (changed.input, changed.output):
        ends[:] = [rename(name) for name in ends]
    return changed
