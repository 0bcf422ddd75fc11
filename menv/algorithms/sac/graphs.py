"""The acting graphs of SAC: the graphs of stock networks, with values by the critics."""

from __future__ import annotations

import numpy as np

from menv.algorithms.networks.stock_graphs import StockGraph, StockGraphs
from menv.algorithms.networks.stock_layers import activation_nodes, affine_nodes
from menv.algorithms.sac.network import CRITICS, SACSpec


class SACGraph(StockGraph):
    """The graph of a `SACSpec`."""

    spec: SACSpec

    def values(self) -> str:
        """Return the lower of both critics' Q-values of the most likely action."""
        spec = self.spec
        # The input of a centralized critic begins with the agent's observation.
        self.reads = self.add("Gather", "obs", self.constant(np.arange(spec.obs_size)), axis=1)
        nodes = spec.head.nodes(self)
        nodes.dist_inputs(self.policy_outputs(), False)
        seen, found = self.add("Concat", "obs", nodes.mode(), axis=1), []
        for name in CRITICS:
            x = seen
            for layer in spec.critic.hidden_layers("policy"):
                own = layer._replace(name=layer.name.replace("policy", name))
                x = activation_nodes(self, spec.activation, affine_nodes(self, own, x))
            out = spec.critic.out_layer("policy")
            found.append(affine_nodes(self, out._replace(name=f"{name}.out"), x))
        return self.add("Squeeze", self.add("Min", *found), self.constant([1]))


class SACGraphs(StockGraphs):
    """Builds the acting graphs of one `SACSpec`."""

    graph_class = SACGraph
