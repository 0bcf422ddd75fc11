"""ONNX acting graphs of a QMIX group, built from its `GroupSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from menv.algorithms.networks.stock_graphs import StockGraph, add_policy
from menv.algorithms.networks.stock_spec import StockSpec
from menv.inference.acting_graphs import GraphKind

if TYPE_CHECKING:
    from menv.algorithms.qmix.network import GroupSpec


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
        assert not stacked, "groups have no stacked graphs"
        graph = _MemberGraph(self.spec.member, self.spec.state_sizes)
        graph.given("obs", np.float32, ["R", self.spec.obs_size])
        graph.reads = self._member_rows(graph)
        if kind == "values":
            members = len(self.spec.layout.members)
            best = graph.add("Reshape", graph.values(), graph.constant([-1, members]))
            total = graph.add("Squeeze", graph.row_sum(best, members), graph.constant([-1]))
            graph.result("values", np.float32, ["R"], total)
        else:
            add_policy(graph, self.spec.head, kind, masked)
        return graph.serialised(kind, self.defaults)

    def _member_rows(self, graph: _MemberGraph) -> str:
        """Return the inputs of all members, [R * C, member.obs_size]."""
        row = self._without_absent(graph) if self.spec.marked else "obs"
        for number in (0.0, 1.0):
            row = graph.add("Pad", row, graph.constant([0, 0, 0, 1]), graph.constant(number, np.float32))
        row = graph.add("Gather", row, graph.constant(self.spec.inputs), axis=1)
        return graph.add("Reshape", row, graph.constant([-1, self.spec.member.obs_size]))

    def _without_absent(self, graph: _MemberGraph) -> str:
        """Return the rows with zeros for absent members, marks turned into flags."""
        first, last = self.spec.obs_size - self.spec.marks, self.spec.obs_size
        seen = graph.add("Gather", "obs", graph.constant(range(first)), axis=1)
        marks = graph.add("Gather", "obs", graph.constant(range(first, last)), axis=1)
        there = graph.add("GreaterOrEqual", marks, graph.constant(0.0, np.float32))
        there = graph.cast(there, np.float32)
        kept = graph.add("Pad", there, graph.constant([0, 0, 0, 1]), graph.constant(1.0, np.float32))
        kept = graph.add("Gather", kept, graph.constant(self.spec.owners), axis=1)
        graph.there = graph.add("Reshape", there, graph.constant([-1, 1]))
        return graph.add("Concat", graph.add("Mul", seen, kept), there, axis=1)


class _MemberGraph(StockGraph):
    """The graph of the network that members share; `there` [R * C, 1] is 0 for absent ones, whose outputs are 0.

    Its state [R, C * S] has that of one member after the other.
    """

    there = ""

    def __init__(self, member: StockSpec, state_sizes: tuple[int, ...]) -> None:
        super().__init__(member)
        self.state_sizes = state_sizes

    def state_before(self) -> str:
        return self.add("Reshape", super().state_before(), self.constant([-1, sum(self.spec.state_sizes)]))

    def state_after(self) -> str:
        return self.add("Reshape", super().state_after(), self.constant([-1, sum(self.state_sizes)]))

    def policy_outputs(self) -> str:
        outputs = super().policy_outputs()
        return self.add("Mul", outputs, self.there) if self.there else outputs
