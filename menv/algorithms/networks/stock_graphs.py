"""StockGraphs: ONNX acting graphs of the stock networks, built from the same `StockSpec` as the torch form.

`stock_layers` has the layers, `torch_stock` the torch form. One graph serves every policy of an architecture and stays
valid when weights change. A tail turns the outputs of the network into distribution inputs, actions and
log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from menv.algorithms.networks.graph_builder import ActingGraph
from menv.algorithms.networks.stock_layers import (
    activation_nodes,
    affine_nodes,
    cell_nodes,
    convolution_nodes,
    part_nodes,
)
from menv.algorithms.networks.stock_spec import EPSILON, LOG_STD, Role, StockSpec
from menv.inference.acting_graphs import GraphKind
from menv.inference.action_heads import ILLEGAL, LEAST_CHANCE, ActionHead


class StockGraphs:
    """Builds the acting graphs of one `StockSpec`."""

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
        assert not stacked or (kind in ("act", "greedy") and self.stacks), (
            f"no stacked graph of kind {kind!r}"
        )
        graph = StockGraph(self.spec, stacked)
        # The input of a centralized critic is called "obs" too.
        width = self.spec.inputs_of("value" if kind == "values" else "policy")
        as_bytes = self.spec.pixels and not (kind == "values" and self.spec.critic_size)
        element = TensorProto.UINT8 if as_bytes else TensorProto.FLOAT
        graph.given("obs", element, graph.rows_of(width))
        if kind == "values":
            graph.result("values", TensorProto.FLOAT, ["R"], graph.values())
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
        self._after: dict[str, str] = {}

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
        if self.spec.head.kind == "q_values":
            return self.add("ReduceMax", self.policy_outputs(), axes=[1], keepdims=0)
        return self.add("Squeeze", self._outputs_of("value", self._features("value")), self.constant([1]))

    def state_after(self) -> str:
        for role in self.spec.roles:
            trunk = self.spec.trunk_name(role)
            if trunk in self.spec.recurrent_trunks and trunk not in self._after:
                self._features(role)
        parts = [self._after[trunk] for trunk in self.spec.recurrent_trunks]
        return self._selected(self.add("Concat", *parts, axis=-1), sum(self.state_sizes))

    def _features(self, role: Role) -> str:
        spec, trunk, x = self.spec, self.spec.trunk_name(role), self._observed(role)
        for layer in spec.hidden_layers(role):
            x = activation_nodes(self, spec.activation, affine_nodes(self, layer, x))
        if not spec.cell or trunk not in spec.recurrent_trunks:
            return x
        state = self.given("state", TensorProto.FLOAT, self.rows_of(sum(self.state_sizes)))
        count = len(spec.cell.state_sizes)
        first = spec.recurrent_trunks.index(trunk) * count
        parts = [part_nodes(self, spec.cell, state, first + number) for number in range(count)]
        x, self._after[trunk] = cell_nodes(self, spec.cell, trunk, spec.hidden_features(role), x, parts)
        return x

    def _observed(self, role: Role) -> str:
        spec, x = self.spec, self.reads
        if role == "value" and spec.critic_size:
            return x
        if spec.pixels:
            x = self.add("Cast", x, to=TensorProto.FLOAT)
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
        return self.add("Gather", rows, self.given("pick", TensorProto.INT64, ["R"]), axis=0)


def add_policy(graph: ActingGraph, head: ActionHead, kind: GraphKind, masked: bool) -> None:
    """Add the nodes and results of a graph of any kind except "values"."""
    tail = tail_of(graph, head)
    outputs = tail.dist_inputs(graph.policy_outputs(), masked)
    if kind == "evaluate":
        actions = graph.given("actions", *action_type(head))
        graph.result("dist_inputs", TensorProto.FLOAT, ["R", head.inputs], outputs)
        graph.result("logp", TensorProto.FLOAT, ["R"], tail.logp(actions))
        return
    if kind == "act":
        action = tail.sample(graph.given("noise", TensorProto.FLOAT, ["R", head.noise_width]))
    else:
        action = tail.mode()
    graph.result("action", *action_type(head), action)
    if head.returns_dist_inputs or head.is_value_based:
        # Of Q-values a NaN shows nowhere else.
        name = "dist_inputs" if head.returns_dist_inputs else "q_values"
        graph.result(name, TensorProto.FLOAT, ["R", head.inputs], outputs)
    if graph.state_sizes:
        graph.result("state_after", TensorProto.FLOAT, ["R", sum(graph.state_sizes)], graph.state_after())


def action_type(head: ActionHead) -> tuple[int, list[str | int]]:
    """Return element type and shape of actions."""
    element = TensorProto.FLOAT if head.numbers else TensorProto.INT64
    return element, ["R", *head.action_shape]


class _Tail:
    """The nodes behind the outputs of a network; the base of the tail of each kind of head."""

    def __init__(self, graph: ActingGraph, head: ActionHead) -> None:
        self.graph, self.head = graph, head

    def legal(self, x: str, mask: str) -> str:
        """Return outputs of choices, a very low one where the mask forbids it."""
        return self.graph.add("Where", mask, x, self.graph.constant(ILLEGAL, np.float32))

    def highest(self, x: str) -> str:
        """Return the index of the first highest number in the last axis."""
        return self.graph.add("ArgMax", x, axis=-1, keepdims=0)

    def drawn(self, weights: str, draws: str, count: int, axis: int = 1) -> str:
        """Return the first of `count` choices whose cumulated weight exceeds the draw's share of the sum.

        The draw is scaled by the sum as computed, which keeps it below the last step, so that rounding can never pick a
        choice of weight 0.
        """
        graph = self.graph
        steps = graph.add("CumSum", weights, graph.constant(axis))
        total = graph.add("Gather", steps, graph.constant([count - 1]), axis=axis)
        beyond = graph.add("Greater", steps, graph.add("Mul", draws, total))
        return self.highest(graph.add("Cast", beyond, to=TensorProto.UINT8))


class _Choices(_Tail):
    """The tail of one or several categorical components.

    Components of unlike sizes are laid out as [R, components, largest size], padded with illegal
    choices, so that any number of them costs the same few nodes.
    """

    def __init__(self, graph: ActingGraph, head: ActionHead) -> None:
        super().__init__(graph, head)
        self.several = head.kind == "multi_categorical"

    def dist_inputs(self, outputs: str, masked: bool) -> str:
        self.logits = outputs
        if masked:
            mask = self.graph.given("mask", TensorProto.BOOL, ["R", self.head.mask_width])
            self.logits = self.legal(outputs, mask)
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

    def sample(self, draws: str) -> str:
        graph, head = self.graph, self.head
        if head.sizes == (2,) and not self.several:
            return self._sample_of_two(draws)
        chances = graph.add("Softmax", self.by_component(), axis=-1)
        if not self.several:
            return self.drawn(chances, draws, head.sizes[0])
        return self.drawn(chances, graph.add("Unsqueeze", draws, graph.constant([2])), max(head.sizes), 2)

    def _sample_of_two(self, draws: str) -> str:
        # A softmax of two numbers takes as long as the layer before it. The draw is in [0, 1), so a choice of
        # probability 0 is never taken.
        graph = self.graph
        # One node instead of three; products with 1 are exact, and so is the sum.
        lead = graph.add("MatMul", self.logits, graph.constant([[1.0], [-1.0]], np.float32))
        chance = graph.add("Sigmoid", lead)
        second = graph.add("GreaterOrEqual", draws, chance)
        return graph.add("Squeeze", graph.add("Cast", second, to=TensorProto.INT64), graph.constant([-1]))

    def mode(self) -> str:
        return self.highest(self.by_component())

    def logp(self, actions: str) -> str:
        graph = self.graph
        last = graph.constant([-1])
        logs = graph.add("LogSoftmax", self.by_component(), axis=-1)
        taken = graph.add("GatherElements", logs, graph.add("Unsqueeze", actions, last), axis=-1)
        taken = graph.add("Squeeze", taken, last)
        if not self.several:
            return taken
        return graph.add("Squeeze", graph.row_sum(taken, len(self.head.sizes)), last)


class _Gaussian(_Tail):
    """The tail of a diagonal normal distribution, whose log_std is a weight, or an output of the network."""

    def dist_inputs(self, outputs: str, masked: bool) -> str:
        assert not masked, "continuous actions have no mask"
        graph, size = self.graph, self.head.sizes[0]
        self.outputs = self.means = outputs
        if not graph.own_deviations:
            return outputs if graph.stacked else self.complete()
        self.means, self.log_std = (
            graph.add("Gather", outputs, graph.constant(np.arange(start, start + size)), axis=1)
            for start in (0, size)
        )
        return outputs

    def complete(self) -> str:
        """Return means and log_std of each row."""
        graph = self.graph
        if graph.own_deviations:
            return self.outputs
        rows = self.log_std = self.deviations()
        if not graph.stacked:
            rows = graph.add("Expand", rows, graph.add("Shape", self.means))
        return graph.add("Concat", self.means, rows, axis=1)

    def sample(self, draws: str) -> str:
        graph = self.graph
        return graph.add("Add", self.means, graph.add("Mul", graph.add("Exp", self.deviations()), draws))

    def deviations(self) -> str:
        own = self.graph.own_deviations
        return self.log_std if own else self.graph.of_each_row(LOG_STD, (self.head.outputs,))

    def mode(self) -> str:
        return self.means

    def logp(self, actions: str) -> str:
        graph = self.graph
        z = graph.add("Div", graph.add("Sub", actions, self.means), graph.add("Exp", self.log_std))
        terms = graph.add("Mul", graph.add("Mul", z, z), graph.constant(-0.5, np.float32))
        terms = graph.add("Sub", terms, self.log_std)
        terms = graph.add("Sub", terms, graph.constant(0.5 * np.log(2.0 * np.pi), np.float32))
        return graph.add("Squeeze", graph.row_sum(terms, self.head.outputs), graph.constant([-1]))


class _Mixed(_Tail):
    """The tail of discrete and continuous parts, which are sampled independently."""

    def __init__(self, graph: ActingGraph, head: ActionHead) -> None:
        super().__init__(graph, head)
        choices, numbers = (part.head for part in head.parts)
        self.choices = _Choices(graph, choices)
        self.numbers = _Gaussian(graph, numbers)

    def dist_inputs(self, outputs: str, masked: bool) -> str:
        graph, choices = self.graph, sum(self.head.choices)
        width = self.head.inputs if graph.own_deviations else self.head.outputs
        logits = self._columns(outputs, np.arange(choices))
        self.numbers.dist_inputs(self._columns(outputs, np.arange(choices, width)), False)
        return graph.add("Concat", self.choices.dist_inputs(logits, masked), self.numbers.complete(), axis=1)

    def sample(self, draws: str) -> str:
        own = [self._columns(draws, part.columns) for part in self.head.parts]
        return self._joined(self.choices.sample(own[0]), self.numbers.sample(own[1]))

    def mode(self) -> str:
        return self._joined(self.choices.mode(), self.numbers.mode())

    def logp(self, actions: str) -> str:
        graph, (choices, numbers) = self.graph, self.head.parts
        chosen = graph.add("Cast", self._columns(actions, choices.columns), to=TensorProto.INT64)
        of_choices = self.choices.logp(chosen)
        return graph.add("Add", of_choices, self.numbers.logp(self._columns(actions, numbers.columns)))

    def _columns(self, x: str, places: npt.NDArray[np.int64]) -> str:
        return self.graph.add("Gather", x, self.graph.constant(places), axis=1)

    def _joined(self, choices: str, numbers: str) -> str:
        """Return actions of choices [R, components] and numbers [R, k]."""
        both = self.graph.add(
            "Concat", self.graph.add("Cast", choices, to=TensorProto.FLOAT), numbers, axis=1
        )
        places = np.argsort(np.concatenate([part.columns for part in self.head.parts]))
        return self._columns(both, places)


class _QValues(_Tail):
    """The tail of choices by Q-value: the best one or, with probability epsilon, any legal one.

    Of several components the graph computes [R * components, choices].
    """

    mask = ""

    def dist_inputs(self, outputs: str, masked: bool) -> str:
        graph, self.q_values = self.graph, outputs
        if masked:
            mask = graph.given("mask", TensorProto.BOOL, ["R", self.head.mask_width])
            self.mask = self.laid_out(mask, self.head.sizes[0])
            self.q_values = self.legal(outputs, self.mask)
        return self.laid_out(self.q_values, self.head.inputs)

    def laid_out(self, x: str, width: int) -> str:
        """Return values as rows of `width`: per component, or of all components."""
        if self.head.kind == "q_values":
            return x
        return self.graph.add("Reshape", x, self.graph.constant([-1, width]))

    def mode(self) -> str:
        return self.laid_out(self.highest(self.q_values), len(self.head.sizes))

    def sample(self, draws: str) -> str:
        graph = self.graph
        draws = self.laid_out(draws, 2)
        whether, what = (graph.add("Gather", draws, graph.constant([place]), axis=1) for place in (0, 1))
        explores = graph.add("Less", whether, graph.of_each_row(EPSILON, (1,)))
        explores = graph.add("Squeeze", explores, graph.constant([1]))
        chosen = graph.add("Where", explores, self._any_legal(what), self.highest(self.q_values))
        return self.laid_out(chosen, len(self.head.sizes))

    def _any_legal(self, draw: str) -> str:
        graph, count = self.graph, self.head.sizes[0]
        if self.mask:
            return self.drawn(self._legal(), draw, count)
        number = graph.add("Mul", draw, graph.constant(count, np.float32))
        return graph.add("Squeeze", graph.add("Cast", number, to=TensorProto.INT64), graph.constant([1]))

    def _legal(self) -> str:
        return self.graph.add("Cast", self.mask, to=TensorProto.FLOAT)

    def logp(self, actions: str) -> str:
        graph, last = self.graph, self.graph.constant([-1])
        if self.head.kind == "q_values":
            return self._logp(actions, last)
        logs = self._logp(graph.add("Reshape", actions, last), last)
        members = len(self.head.sizes)
        return graph.add("Squeeze", graph.row_sum(self.laid_out(logs, members), members), last)

    def _logp(self, actions: str, last: str) -> str:
        graph = self.graph
        epsilon = graph.weight(EPSILON, (1,))
        one = graph.constant(1.0, np.float32)
        share = graph.add("Mul", epsilon, graph.constant(1.0 / self.head.sizes[0], np.float32))
        if self.mask:
            legal = self._legal()
            own = graph.add("GatherElements", legal, graph.add("Unsqueeze", actions, last), axis=1)
            total = graph.add("ReduceSum", legal, last, keepdims=1)
            # The mask of a padding row may allow nothing.
            shares = graph.add("Div", own, graph.add("Max", total, one))
            share = graph.add("Squeeze", graph.add("Mul", epsilon, shares), last)
        best = graph.add(
            "Cast", graph.add("Equal", actions, self.highest(self.q_values)), to=TensorProto.FLOAT
        )
        chance = graph.add("Add", share, graph.add("Mul", best, graph.add("Sub", one, epsilon)))
        chance = graph.add("Max", chance, graph.constant(LEAST_CHANCE, np.float32))
        # Log rounds numbers that do not fill a vector register differently: each row gets separate registers.
        wide = graph.add("Mul", graph.add("Unsqueeze", chance, last), graph.constant([1.0] * 16, np.float32))
        return graph.add(
            "Squeeze", graph.add("Gather", graph.add("Log", wide), graph.constant([0]), axis=1), last
        )


Tail: TypeAlias = _Choices | _Gaussian | _Mixed | _QValues


def tail_of(graph: ActingGraph, head: ActionHead) -> Tail:
    """Return the tail of a head."""
    tails: dict[str, type[Tail]] = {
        "gaussian": _Gaussian, "mixed": _Mixed, "q_values": _QValues, "multi_q_values": _QValues,
    }  # fmt: skip
    return tails.get(head.kind, _Choices)(graph, head)
