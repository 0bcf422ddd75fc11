"""StockGraphs: ONNX acting graphs of the stock networks, built from the same `StockSpec` as the torch form.

`stock_layers` has the layers, `torch_stock` the torch form. One graph serves every policy of an architecture and stays
valid when weights change. The action head turns the outputs of the network into distribution
inputs, actions and log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from menv.algorithms.networks.graph_builder import ActingGraph
from menv.algorithms.networks.stock_layers import (
    activation_nodes,
    affine_nodes,
    cell_nodes,
    convolution_nodes,
    part_nodes,
)
from menv.algorithms.networks.stock_spec import Role, StockSpec
from menv.inference.acting_graphs import GraphKind
from menv.inference.heads.head import ActionHead


class StockGraphs:
    """Builds the acting graphs of one `StockSpec`."""

    graph_class: ClassVar[type[StockGraph]]

    def __init__(
        self, spec: StockSpec, defaults: Mapping[str, npt.NDArray[np.float32]] | None = None
    ) -> None:
        self.spec = spec
        self.defaults = dict(defaults or {})

    @property
    def stacks(self) -> bool:
        """Whether several policies can share a graph: not with convolutions."""
        return self.spec.conv is None

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        assert not stacked or (kind in ("act", "greedy") and self.stacks), (
            f"no stacked graph of kind {kind!r}"
        )
        graph = self.graph_class(self.spec, stacked)
        # The input of a centralized critic is called "obs" too.
        width = self.spec.inputs_of("value" if kind == "values" else "policy")
        as_bytes = self.spec.pixels and not (kind == "values" and self.spec.critic_size)
        graph.given("obs", np.uint8 if as_bytes else np.float32, graph.rows_of(width))
        if kind == "values":
            graph.result("values", np.float32, ["R"], graph.values())
            if self.spec.critic_size and self.spec.cell:
                size = sum(self.spec.cell.state_sizes)
                graph.result("state_after", np.float32, ["R", size], graph.after["value"])
        else:
            add_policy(graph, self.spec.head, kind, masked)
        return graph.serialised(kind, {} if stacked else self.defaults)


class StockGraph(ActingGraph):
    """The graph of one stock network.

    In a stacked graph observations and states are [P, D, *] or [1, D, *], and `pick` [R] selects the result of each row
    among the [P * D] results. `reads` is the name of the input of the first layers.
    """

    def __init__(self, spec: StockSpec, stacked: bool = False) -> None:
        super().__init__(spec.state_sizes, stacked)
        self.spec = spec
        self.reads = "obs"
        # The state after each cell that was added.
        self.after: dict[str, str] = {}

    def rows_of(self, width: int) -> list[str | int]:
        """Return the input shape of layers that read `width` numbers per row."""
        return ["L", "D", width] if self.stacked else ["R", width]

    def policy_outputs(self) -> str:
        features = self._features("policy")
        outputs = self._outputs_of("policy", features)
        if not self.spec.dueling:
            return outputs
        choices = self.spec.head.outputs
        mean = self.row_sum(outputs, choices, 1.0 / choices)
        return self.add("Add", self.add("Sub", outputs, mean), self._outputs_of("value", features))

    def values(self) -> str:
        """Return the state values."""
        if self.spec.head.is_value_based:
            return self.add("ReduceMax", self.policy_outputs(), axes=[1], keepdims=0)
        return self.add("Squeeze", self._outputs_of("value", self._features("value")), self.constant([1]))

    def state_before(self) -> str:
        """Return the recurrent state before the rows."""
        return self.given("state", np.float32, self.rows_of(sum(self.state_sizes)))

    def state_after(self) -> str:
        for role in self.spec.roles:
            trunk = self.spec.trunk_name(role)
            if trunk in self.spec.acting_trunks and trunk not in self.after:
                self._features(role)
        parts = [self.after[trunk] for trunk in self.spec.acting_trunks]
        return self._selected(self.add("Concat", *parts, axis=-1), sum(self.state_sizes))

    def _features(self, role: Role) -> str:
        spec, trunk, x = self.spec, self.spec.trunk_name(role), self._observed(role)
        for layer in spec.hidden_layers(role):
            x = activation_nodes(self, spec.activation, affine_nodes(self, layer, x))
        if not spec.cell:
            return x
        state = self.state_before()
        count, acting = len(spec.cell.state_sizes), spec.acting_trunks
        first = acting.index(trunk) * count if trunk in acting else 0
        parts = [part_nodes(self, spec.cell, state, first + number) for number in range(count)]
        x, self.after[trunk] = cell_nodes(self, spec.cell, trunk, spec.hidden_features(role), x, parts)
        return x

    def _observed(self, role: Role) -> str:
        spec, x = self.spec, self.reads
        if role == "value" and spec.critic_size:
            return x
        if spec.pixels:
            x = self.cast(x, np.float32)
        if spec.conv is None:
            return x
        if spec.pixels:
            x = self.add("Mul", x, self.constant(1.0 / 255.0, np.float32))
        return convolution_nodes(self, spec.conv, spec.conv_layers(role), x)

    def _outputs_of(self, role: Role, features: str) -> str:
        layer = self.spec.out_layer(role)
        return self._selected(affine_nodes(self, layer, features), layer.outputs)

    def _selected(self, x: str, width: int) -> str:
        if not self.stacked:
            return x
        rows = self.add("Reshape", x, self.constant([-1, width]))
        return self.add("Gather", rows, self.given("pick", np.int64, ["R"]), axis=0)


StockGraphs.graph_class = StockGraph


def add_policy(graph: ActingGraph, head: ActionHead, kind: GraphKind, masked: bool) -> None:
    """Add the nodes and results of a graph of any kind except "values"."""
    nodes = head.nodes(graph)
    outputs = nodes.dist_inputs(graph.policy_outputs(), masked)
    shape: list[str | int] = ["R", *head.action_shape]
    if kind == "evaluate":
        actions = graph.given("actions", head.action_dtype, shape)
        graph.result("dist_inputs", np.float32, ["R", head.inputs], outputs)
        graph.result("logp", np.float32, ["R"], nodes.logp(actions))
        return
    draws = graph.given("noise", np.float32, ["R", head.noise_width]) if kind == "act" else ""
    graph.result("action", head.action_dtype, shape, nodes.sample(draws) if draws else nodes.mode())
    if head.returns_dist_inputs or head.is_value_based:
        # Of Q-values a NaN shows nowhere else.
        name = "dist_inputs" if head.returns_dist_inputs else "q_values"
        graph.result(name, np.float32, ["R", head.inputs], outputs)
    if graph.state_sizes:
        graph.result("state_after", np.float32, ["R", sum(graph.state_sizes)], graph.state_after())
