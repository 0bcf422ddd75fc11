"""Acting graphs of a QMIX group: rows of the group in, one choice of each member out."""

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
    """Builds the graphs of one `GroupSpec`.

    Args:
        spec: The network.
        defaults: Weights that a graph holds as overridable initializers; those of the mixing network are left
            out.

    Attributes:
        stacks: False: policies are answered one after the other.
    """

    stacks = False

    def __init__(
        self, spec: GroupSpec, defaults: Mapping[str, npt.NDArray[np.float32]] | None = None
    ) -> None:
        self.spec = spec
        self.defaults = dict(defaults or {})

    def build(self, kind: GraphKind, stacked: bool = False, masked: bool = False) -> bytes:
        """Return a serialised model; see `ActingGraphs.build`."""
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
        """Return [R * C, member.obs_size] what each member sees, and who it is."""
        row = "obs"
        for number in (0.0, 1.0):
            row = graph.add("Pad", row, graph.constant([0, 0, 0, 1]), graph.constant(number, np.float32))
        row = graph.add("Gather", row, graph.constant(self.spec.inputs), axis=1)
        return graph.add("Reshape", row, graph.constant([-1, self.spec.member.obs_size]))
