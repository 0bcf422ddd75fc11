"""ONNX acting graphs of the stock networks, built from the same `StockSpec` as the torch form.

`OnnxActing` asks for bytes by kind; nothing here runs them. One graph serves every policy of an architecture and
never has to be built again when weights change.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from menv.acting.acting_graphs import GraphKind
from menv.acting.action_head import ActionHead
from menv.algorithms.networks.graph_builder import GraphBuilder
from menv.algorithms.networks.graph_tails import tail_of
from menv.algorithms.networks.stock import StockSpec


class StockGraphs:
    """Builds the graphs of one `StockSpec`.

    Args:
        spec: The network.
        defaults: Weights that a single-policy graph holds as overridable initializers, for files
            that shall run on their own. Without them a forgotten weight is an error of the runtime.
    """

    def __init__(
        self, spec: StockSpec, defaults: Mapping[str, npt.NDArray[np.float32]] | None = None
    ) -> None:
        self.spec = spec
        self.defaults = dict(defaults or {})

    @property
    def stacks(self) -> bool:
        """Whether several policies can share a graph: not those with convolutions."""
        return self.spec.conv is None

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return a serialised model; see `ActingGraphs.build`."""
        assert not stacked or (kind in ("act", "greedy") and self.stacks), (
            f"no stacked graph of kind {kind!r}"
        )
        graph = GraphBuilder(self.spec, stacked)
        # What the value network sees is called so too, although it may be more.
        width = self.spec.inputs_of("value" if kind == "values" else "policy")
        as_bytes = self.spec.pixels and not (kind == "values" and self.spec.critic_size)
        element = TensorProto.UINT8 if as_bytes else TensorProto.FLOAT
        graph.given("obs", element, graph.rows_of(width))
        if kind == "values":
            graph.result("values", TensorProto.FLOAT, ["R"], graph.values())
        else:
            add_policy(graph, self.spec.head, kind, masked)
        return graph.serialised(kind, {} if stacked else self.defaults)


def add_policy(graph: GraphBuilder, head: ActionHead, kind: GraphKind, masked: bool) -> None:
    """Add what a graph of a kind other than "values" computes, and its results."""
    tail = tail_of(graph, head)
    outputs = tail.dist_inputs(graph.policy_outputs(), masked)
    if kind == "evaluate":
        actions = graph.given("actions", *action_type(head))
        graph.result("dist_inputs", TensorProto.FLOAT, ["R", head.inputs], outputs)
        graph.result("logp", TensorProto.FLOAT, ["R"], tail.logp(outputs, actions))
        return
    if kind == "act":
        action = tail.sample(graph.given("noise", TensorProto.FLOAT, ["R", head.noise_width]))
    else:
        action = tail.mode()
    graph.result("action", *action_type(head), action)
    if head.told or head.by_worth:
        # Of Q-values a NaN shows nowhere else.
        graph.result(
            "dist_inputs" if head.told else "q_values", TensorProto.FLOAT, ["R", head.inputs], outputs
        )
    state_sizes = graph.spec.state_sizes
    if state_sizes:
        graph.result("state_after", TensorProto.FLOAT, ["R", sum(state_sizes)], graph.state_after())


def action_type(head: ActionHead) -> tuple[int, list[str | int]]:
    """Return element type and shape of actions."""
    element = TensorProto.FLOAT if head.numbers else TensorProto.INT64
    return element, ["R", *head.action_shape]
