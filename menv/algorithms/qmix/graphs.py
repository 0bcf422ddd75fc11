"""GroupGraphs: ONNX acting graphs of a group, observations of the group in, one action of each member out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from menv.algorithms.networks.graph_builder import GraphBuilder
from menv.algorithms.networks.stock_graphs import add_policy
from menv.algorithms.qmix.network import GroupSpec
from menv.inference.acting_graphs import GraphKind


class GroupGraphs:
    """ONNX acting graphs of a group: observations of the group in, one action of each member out.

    `defaults` are weights that the graph holds as initializers. The mixing network is not part of them.
    """

    stacks = False

    def __init__(
        self, spec: GroupSpec, defaults: Mapping[str, npt.NDArray[np.float32]] | None = None
    ) -> None:
        self.spec = spec
        self.defaults = dict(defaults or {})

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return a serialized model."""
        assert not stacked, "groups have no stacked graphs"
        graph = GraphBuilder(self.spec.member, stacked)
        graph.given("obs", TensorProto.FLOAT, ["R", self.spec.obs_size])
        graph.reads = self._member_rows(graph)
        if kind == "values":
            members = len(self.spec.layout.members)
            best = graph.add("Reshape", graph.values(), graph.constant([-1, members]))
            total = graph.add("Squeeze", graph.row_sum(best, members), graph.constant([-1]))
            graph.result("values", TensorProto.FLOAT, ["R"], total)
        else:
            add_policy(graph, self.spec.head, kind, masked)
        return graph.serialised(kind, self.defaults)

    def _member_rows(self, graph: GraphBuilder) -> str:
        """Return the inputs of all members, [R * C, member.obs_size]."""
        row = "obs"
        for number in (0.0, 1.0):
            row = graph.add("Pad", row, graph.constant([0, 0, 0, 1]), graph.constant(number, np.float32))
        row = graph.add("Gather", row, graph.constant(self.spec.inputs), axis=1)
        return graph.add("Reshape", row, graph.constant([-1, self.spec.member.obs_size]))
