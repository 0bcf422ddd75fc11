"""Checks of ONNX files from untrusted sources, before ONNX Runtime sees their bytes.

`refuse_unsafe_model` reads the protobuf fields, without the onnx package, and refuses whatever can reach beyond the
graph: data in other files, operators of other domains, functions, and graphs within nodes. `refuse_costly_model` also
bounds the work, from shapes alone: each operator has a rule for the shapes of its outputs, small integer constants are
computed because `Reshape` and `Expand` take shapes as numbers, and an operator without a rule is refused.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError

MOST_WORK, MOST_NUMBERS, MOST_NODES = 1 << 34, 1 << 26, 1 << 14
"""Multiplications of a graph for 8 rows, or 2 wide ones; numbers in all of its values together; nodes."""

Shape = tuple[int, ...]
Array = npt.NDArray[Any]

_OF_ROWS = ("obs", "rows", "mask", "noise", "actions", "state")
"""Inputs whose first size is the number of rows."""
_ROWS, _ROWS_OF_MANY, _MANY = 8, 2, 10_000
_FEW = 512
"""Largest constant that is computed."""
_MOST_RANK = 16
_INT64, _BOOL = 7, 9
_FLOATS = (1, 10, 11, 16)
"""ONNX element types: computed here, and not integers."""

_SAME = frozenset((
    "Abs", "Acos", "Asin", "Atan", "BatchNormalization", "BitwiseNot", "Cast", "CastLike", "Ceil", "Celu", "Clip",
    "Cos", "CumSum", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "GroupNormalization", "HardSigmoid",
    "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LayerNormalization",
    "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Mish", "Neg", "Not",
    "RMSNormalization", "Reciprocal", "Relu", "Round", "ScatterElements", "ScatterND", "Selu", "Shrink", "Sigmoid",
    "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
))  # fmt: skip
"""Operators whose outputs are at most as large as the first input."""
_BROADCAST = frozenset((
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
))  # fmt: skip
_REDUCE = frozenset((
    "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
))  # fmt: skip
_COMPUTED: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.floor_divide, "Mod": np.mod, "Equal": np.equal,
    "Where": np.where, "Neg": np.negative, "Not": np.logical_not, "Less": np.less, "Greater": np.greater,
    "Identity": np.array,
}  # fmt: skip
"""Operators on small integers and flags whose values are computed."""
_TYPED_BY = {"Where": 1, "CastLike": 1, "OneHot": 2}
"""The input that gives an output its type, if not the first."""


@dataclass(slots=True)
class Value:
    """A value of a graph: its shape, whether it may hold integers, and its numbers if they are few and known."""

    shape: Shape
    whole: bool = True
    known: Array | None = None

    @classmethod
    def of(cls, shape: Shape, kind: int, raw: bytes, numbers: Sequence[int]) -> Self:
        """Return the constant of a file."""
        if not _is_shape(shape):
            raise ValueError("an impossible shape")
        if raw and numbers:
            raise ValueError("numbers in two forms")
        known: Array | None = None
        if kind in (_INT64, _BOOL) and math.prod(shape) <= _FEW:
            dtype = "<i8" if kind == _INT64 else "?"
            flat = np.frombuffer(raw, dtype) if raw else np.array(numbers, dtype)
            known = flat.reshape(shape) if flat.size == math.prod(shape) else None
        return cls(shape, kind not in _FLOATS, known)


@dataclass(slots=True)
class Node:
    """An operator and what it is called with."""

    op: str = ""
    inputs: list[str] = dataclasses.field(default_factory=list)
    outputs: list[str] = dataclasses.field(default_factory=list)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def ints(self, name: str, default: Any = None) -> Any:
        """Return an attribute of integers."""
        return self.attributes.get(name) or default

    def number(self, name: str, default: int) -> int:
        """Return an attribute that is an integer."""
        found = self.attributes.get(name)
        return default if found is None else int(found)


@dataclass(slots=True)
class Graph:
    """The parts of a graph that decide its cost; inputs have a type and a shape, None for a size without a number."""

    nodes: list[Node] = dataclasses.field(default_factory=list)
    inputs: dict[str, tuple[int, tuple[int | None, ...] | None]] = dataclasses.field(default_factory=dict)
    constants: dict[str, Value] = dataclasses.field(default_factory=dict)


class _RefusedError(Exception):
    """Why a model is refused; of an operator, what about the size of its outputs is unknown."""


def problem_of_cost(graph: Graph) -> str:
    """Return why a graph is too much work, or "" if it is not."""
    if len(graph.nodes) > MOST_NODES:
        return f"has {len(graph.nodes)} nodes, more than {MOST_NODES}"
    if graph.inputs.keys() & graph.constants.keys():
        return "has a constant with the name of an input"
    try:
        values = {**_given(graph), **graph.constants}
    except _RefusedError as error:
        return str(error)
    work, numbers = 0, sum(math.prod(one.shape) for one in graph.constants.values())
    for node in graph.nodes:
        try:
            outputs, cost = _outputs(node, [values.get(name) for name in node.inputs])
        except (_RefusedError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            return f"operator {node.op!r:.40} has outputs of unknown size ({error!s:.60})"
        values.update(zip(node.outputs, outputs, strict=False))
        numbers, work = numbers + sum(math.prod(one.shape) for one in outputs), work + cost
        if work > MOST_WORK or numbers > MOST_NUMBERS:
            return (
                f"operator {node.op!r:.40} brings the work to {float(min(work, 10**30)):.2g} multiplications and "
                f"{float(min(numbers, 10**30)):.2g} numbers, more than {MOST_WORK:.2g} and {MOST_NUMBERS:.2g}"
            )
    return ""


def _given(graph: Graph) -> dict[str, Value]:
    shapes = {name: shape or () for name, (_, shape) in graph.inputs.items()}
    widths = [math.prod(size or 1 for size in shapes[name][1:]) for name in ("obs", "rows") if name in shapes]
    tried = _ROWS_OF_MANY if max(widths, default=0) > _MANY else _ROWS
    found = {}
    for name, (kind, shape) in graph.inputs.items():
        if shape is not None and shape[:1] == (None,) and name in _OF_ROWS:
            shape = (tried, *shape[1:])
        sizes = tuple(size for size in shape or () if size is not None)
        if shape is None or len(sizes) < len(shape) or not _is_shape(sizes):
            raise _RefusedError(f"has an input {name!r:.60} of unknown size")
        found[name] = Value(sizes, kind not in _FLOATS)
    return found


def _is_shape(shape: Sequence[int]) -> bool:
    return len(shape) <= _MOST_RANK and all(0 <= size < 1 << 40 for size in shape)


def _outputs(node: Node, given: list[Value | None]) -> tuple[list[Value], int]:
    """Return the outputs of a node, all of one shape unless a rule says otherwise, and its cost."""
    parts = [one for one in given if one is not None]
    if len(parts) < sum(map(bool, node.inputs)):
        raise _RefusedError("an input without a source")
    if node.op == "Constant":
        (value,) = node.attributes.values()
        return [value if isinstance(value, Value) else _constant(value)], 0
    if node.op in _SAME:
        shapes, cost = [parts[0].shape], 0
    elif node.op in _BROADCAST:
        shapes, cost = [_broadcast(*(one.shape for one in parts))], 0
    elif node.op in _REDUCE:
        shapes, cost = [_reduced(node, parts)], math.prod(parts[0].shape)
    elif node.op in _RULES:
        shapes, cost = _RULES[node.op](node, given)
    else:
        raise _RefusedError("no rule for it")
    if not all(map(_is_shape, shapes)):
        raise _RefusedError("an impossible shape")
    whole = _may_be_whole(node, parts)
    shapes = shapes if len(shapes) > 1 else shapes * max(len(node.outputs), 1)
    outputs = [
        Value(shape, whole or (node.op in ("TopK", "MaxPool") and at > 0)) for at, shape in enumerate(shapes)
    ]
    if math.prod(shapes[0]) <= _FEW:
        outputs[0].known = _computed(node, parts, shapes[0])
    read = len(parts) if node.op in _BROADCAST else 1
    return outputs, max(cost, read * sum(map(math.prod, shapes)))


def _constant(value: object) -> Value:
    array = np.array(value)
    whole = array.dtype.kind != "f"
    return Value(array.shape, whole, array if array.dtype == np.int64 and array.size <= _FEW else None)


def _may_be_whole(node: Node, parts: list[Value]) -> bool:
    """Return whether the first output may hold integers."""
    if node.op in ("Div", "Mod"):
        by = parts[1].known
        if parts[0].whole and (by is None or (by <= 0).any()):
            raise _RefusedError("integers are divided by what is not known to be positive")
    if node.op in ("Cast", "ConstantOfShape"):
        value = node.attributes.get("value")
        kind = node.number("to", 1)
        return value.whole if isinstance(value, Value) else kind not in _FLOATS
    if node.op in ("Shape", "Size", "ArgMax", "ArgMin"):
        return True
    return parts[_TYPED_BY.get(node.op, 0)].whole


def _computed(node: Node, parts: list[Value], shape: Shape) -> Array | None:
    if node.op == "Shape":
        return np.array(parts[0].shape[_part_of_shape(node)], np.int64)
    if node.op == "Size":
        return np.array(math.prod(parts[0].shape))
    values: list[Any] = [one.known for one in parts]
    if not values or len(values) > _FEW or any(one is None for one in values):
        return None
    first: Any = values[0]
    if node.op in _COMPUTED:
        exact = node.op not in ("Div", "Mod") or (first.min(initial=0) >= 0 and not node.number("fmod", 0))
        return np.asarray(_COMPUTED[node.op](*values)) if exact else None
    if node.op == "Cast" and node.number("to", 0) in (_INT64, _BOOL):
        return np.asarray(first.astype(np.int64 if node.number("to", 0) == _INT64 else np.bool_))
    if node.op == "Gather":
        return np.asarray(first.take(values[1], axis=node.number("axis", 0)))
    if node.op == "Concat":
        return np.concatenate(values, node.number("axis", 0))
    if node.op in ("Squeeze", "Unsqueeze", "Reshape"):
        return np.asarray(first.reshape(shape))
    return np.asarray(first[_places(node, parts, first.shape)]) if node.op == "Slice" else None


def _part_of_shape(node: Node) -> slice:
    return slice(node.number("start", 0), node.attributes.get("end"))


def _broadcast(*shapes: Shape) -> Shape:
    rank = max(map(len, shapes))
    return tuple(map(max, zip(*((1,) * (rank - len(one)) + one for one in shapes), strict=True)))


def _ints(node: Node, name: str, given: Sequence[Value | None], place: int) -> list[int] | None:
    """Return integers from an attribute, or from an input with known numbers; None without either."""
    if node.attributes.get(name) is not None:
        return [int(one) for one in node.attributes[name]]
    one = given[place] if len(given) > place else None
    if one is None:
        return None
    if one.known is None:
        raise _RefusedError(f"{name} is computed")
    return [int(number) for number in one.known.reshape(-1)]


def _needed(node: Node, name: str, given: Sequence[Value | None], place: int) -> list[int]:
    found = _ints(node, name, given, place)
    if found is None:
        raise _RefusedError(f"no {name}")
    return found


def _reduced(node: Node, parts: Sequence[Value]) -> Shape:
    shape, kept = parts[0].shape, node.number("keepdims", 1)
    arg = node.op.startswith("Arg")
    axes = [node.number("axis", 0)] if arg else _ints(node, "axes", parts, 1)
    if not axes and node.number("noop_with_empty_axes", 0):
        return shape
    gone = {axis % len(shape) for axis in axes} if axes else set(range(len(shape)))
    return tuple(1 if at in gone else size for at, size in enumerate(shape) if kept or at not in gone)


Rule = Callable[[Node, "list[Any]"], "tuple[list[Shape], int]"]


def _matmul(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    a, b = given[0].shape, given[1].shape
    a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    lead = _broadcast(a[:-2], b[:-2]) if len(a) + len(b) > 4 else ()
    shape = (*lead, a[-2], b[-1])
    return [shape], math.prod(shape) * max(a[-1], b[-2])


def _gemm(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    a, b = given[0].shape, given[1].shape
    a, b = a[::-1] if node.number("transA", 0) else a, b[::-1] if node.number("transB", 0) else b
    return [(a[0], b[1])], a[0] * max(a[1], b[0]) * b[1]


def _conv(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    """Return the output shape of a convolution or pool, rounded up, and its cost."""
    x, rank = given[0].shape, len(given[0].shape) - 2
    pool = "Pool" in node.op
    kernel = [int(one) for one in node.ints("kernel_shape", [1] * rank)] if pool else list(given[1].shape[2:])
    strides, pads = node.ints("strides", [1] * rank), node.ints("pads", [0] * 2 * rank)
    around = [max(0, int(pads[at])) + max(0, int(pads[at + rank])) for at in range(rank)]
    same = str(node.attributes.get("auto_pad") or "").startswith("SAME")
    reach = [0 if same else (size - 1) * int(gap) for size, gap in
             zip(kernel, node.ints("dilations", [1] * rank), strict=True)]  # fmt: skip
    sides = [
        max(0, (x[2 + at] + around[at] - reach[at] - 1) // int(strides[at]) + 1 + pool) for at in range(rank)
    ]
    shape = (x[0], x[1] if pool else given[1].shape[0], *sides)
    return [shape], math.prod(shape) * (1 if pool else given[1].shape[1]) * math.prod(kernel)


def _reshape(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    before, target = given[0].shape, _needed(node, "shape", given, 1)
    zero = node.number("allowzero", 0)
    sizes = [before[at] if size == 0 and not zero else size for at, size in enumerate(target)]
    rest = math.prod(size for size in sizes if size != -1)
    return [tuple(-(-math.prod(before) // max(rest, 1)) if size == -1 else size for size in sizes)], 0


def _squeeze(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape, axes = given[0].shape, _ints(node, "axes", given, 1)
    gone = (
        {axis % len(shape) for axis in axes} if axes else {at for at, size in enumerate(shape) if size == 1}
    )
    return [tuple(size for at, size in enumerate(shape) if at not in gone)], 0


def _unsqueeze(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape, axes = list(given[0].shape), _needed(node, "axes", given, 1)
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    return [tuple(shape)], 0


def _gather(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    data, at = given[0].shape, node.number("axis", 0) % len(given[0].shape)
    return [(*data[:at], *given[1].shape, *data[at + 1 :])], 0


def _concat(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shapes = [one.shape for one in given]
    at = node.number("axis", 0) % len(shapes[0])
    widest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    widest[at] = sum(shape[at] for shape in shapes)
    return [tuple(widest)], 0


def _split(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape, at = given[0].shape, node.number("axis", 0) % len(given[0].shape)
    count = len(node.outputs)
    sizes = _ints(node, "split", given, 1) or [-(-shape[at] // count)] * count
    return [(*shape[:at], size, *shape[at + 1 :]) for size in sizes], 0


def _places(node: Node, given: Sequence[Value | None], shape: Shape) -> tuple[slice, ...]:
    starts, ends = _needed(node, "starts", given, 1), _needed(node, "ends", given, 2)
    axes = _ints(node, "axes", given, 3) or range(len(starts))
    steps = _ints(node, "steps", given, 4) or [1] * len(starts)
    found = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        found[axis] = slice(start, None if step < 0 and end < -shape[axis] else end, step)
    return tuple(found)


def _slice(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape = given[0].shape
    try:
        places = _places(node, given, shape)
    except _RefusedError:
        return [shape], 0
    return [tuple(len(range(*place.indices(size))) for place, size in zip(places, shape, strict=True))], 0


def _transpose(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape = given[0].shape
    return [tuple(shape[at] for at in node.ints("perm", list(range(len(shape)))[::-1]))], 0


def _flatten(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape, at = given[0].shape, node.number("axis", 1)
    return [(math.prod(shape[:at]), math.prod(shape[at:]))], 0


def _expand(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    return [_broadcast(given[0].shape, tuple(_needed(node, "shape", given, 1)))], 0


def _tile(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    return [tuple(a * b for a, b in zip(given[0].shape, _needed(node, "repeats", given, 1), strict=True))], 0


def _pad(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape, pads = given[0].shape, _needed(node, "pads", given, 1)
    axes = _ints(node, "axes", given, 3) or list(range(len(shape)))
    wider = list(shape)
    for number, axis in enumerate(axes):
        wider[axis] += max(0, pads[number]) + max(0, pads[number + len(axes)])
    return [tuple(wider)], 0


def _range(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    start, limit, delta = (float(one.known.reshape(-1)[0]) for one in given)
    return [(max(0, math.ceil((limit - start) / delta)),)], 0


def _recurrent(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    (steps, rows, width), (ways, gates, size) = given[0].shape, given[2].shape
    outputs = [(steps, ways, rows, size), (ways, rows, size), (ways, rows, size)]
    return outputs, steps * rows * ways * gates * (width + size)


def _einsum(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    sides, arrow, out = str(node.attributes["equation"]).replace(" ", "").partition("->")
    if not arrow or "." in sides:
        raise _RefusedError("an equation without -> or with ...")
    sizes: dict[str, int] = {}
    for labels, one in zip(sides.split(","), given, strict=True):
        for label, size in zip(labels, one.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 0))
    return [tuple(sizes[label] for label in out)], math.prod(sizes.values()) * len(given)


def _top(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape = given[0].shape
    return [shape], math.prod(shape)


def _one_hot(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape, depth = given[0].shape, _needed(node, "depth", given, 1)[0]
    at = node.number("axis", -1) % (len(shape) + 1)
    return [(*shape[:at], depth, *shape[at:])], 0


_RULES: dict[str, Rule] = {
    "MatMul": _matmul, "Gemm": _gemm, "Conv": _conv, "MaxPool": _conv, "AveragePool": _conv,
    "GlobalAveragePool": _top, "GlobalMaxPool": _top, "Reshape": _reshape, "Squeeze": _squeeze, "Gather": _gather,
    "Unsqueeze": _unsqueeze, "GatherElements": lambda node, given: ([given[1].shape], 0), "Concat": _concat,
    "Split": _split, "Slice": _slice, "Transpose": _transpose, "Flatten": _flatten, "Expand": _expand, "Tile": _tile,
    "ConstantOfShape": lambda node, given: ([tuple(_needed(node, "shape", given, 0))], 0), "Pad": _pad,
    "Shape": lambda node, given: ([(len(given[0].shape[_part_of_shape(node)]),)], 0),
    "Size": lambda node, given: ([()], 0), "Range": _range, "TopK": _top,
    "OneHot": _one_hot, "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent, "Einsum": _einsum,
}  # fmt: skip
"""Operators whose outputs have another shape, and the functions for shapes and cost."""


# Field numbers of onnx.proto3.
_MODEL_GRAPH, _MODEL_OPSETS, _MODEL_TRAINING, _MODEL_FUNCTIONS = 7, 8, 20, 25
_OPSET_DOMAIN = 1
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_INITIALIZER, _GRAPH_SPARSE = 1, 2, 5, 15
_GRAPH_INPUT, _GRAPH_VALUES, _VALUE_NAME = 11, (12, 13), 1
_NODE_NAME, _NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 3, 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS = 5, 10
_NO_ATTRIBUTES = {6: "a graph", 11: "a graph", 22: "sparse tensors", 23: "sparse tensors"}
_TENSOR_NAME, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 8, 13, 14

_DOMAINS = (b"", b"ai.onnx")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MOST_KEY = (1 << 32) - 1
_MOST_FIELDS = 1 << 19
"""Most fields of a model; reading them takes a second."""
_FEW_BYTES = 1 << 13
_here = threading.local()


def refuse_unsafe_model(model: bytes, where: str) -> None:
    """Raise ConfigError for a model that needs more than its own bytes and ONNX's own operators."""
    _read(model, where)


def refuse_costly_model(model: bytes, where: str) -> None:
    """Raise ConfigError for a model that is unsafe, or costs more than any policy; runs nothing."""
    problem = problem_of_cost(_read(model, where))
    if problem:
        raise ConfigError(
            f"{where}: {problem}, expected little work of known size; use a smaller network or other operators"
        )


def _read(model: bytes, where: str) -> Graph:
    _here.left = _MOST_FIELDS
    try:
        return _graph(memoryview(model))
    except _RefusedError as error:
        raise ConfigError(
            f"{where}: {error}, expected ONNX's own operators and no other file; do not use this file"
        ) from error
    except (IndexError, ValueError, ArithmeticError) as error:
        raise ConfigError(
            f"{where}: its {len(model)} bytes are no ONNX model ({error!s:.60}), expected a serialised one; write the "
            "file again"
        ) from error


def _graph(model: memoryview) -> Graph:
    graph = Graph()
    for field, value in _fields(model):
        if field == _MODEL_GRAPH:
            _add_parts(graph, _message(value))
        elif field == _MODEL_OPSETS:
            for part, domain in _fields(_message(value)):
                if part == _OPSET_DOMAIN:
                    _check_domain(domain)
        elif field in (_MODEL_TRAINING, _MODEL_FUNCTIONS):
            raise _RefusedError("holds functions or training code")
    return graph


def _add_parts(graph: Graph, message: memoryview) -> None:
    for field, value in _fields(message):
        if field == _GRAPH_INITIALIZER:
            name, tensor = _tensor(_message(value))
            graph.constants[name] = tensor
        elif field == _GRAPH_INPUT:
            name, kind, shape = _input(_message(value))
            graph.inputs[name] = kind, shape
        elif field == _GRAPH_NODE:
            graph.nodes.append(_node(_message(value)))
        elif field == _GRAPH_NAME:
            _text(value)
        elif field in _GRAPH_VALUES:
            for part, name_of_value in _fields(_message(value)):
                if part == _VALUE_NAME:
                    _text(name_of_value)
        elif field == _GRAPH_SPARSE:
            raise _RefusedError("holds sparse tensors")


def _node(message: memoryview) -> Node:
    node = Node()
    for field, value in _fields(message):
        if field == _NODE_OP:
            node.op = _text(value)
        elif field in (1, 2):
            (node.inputs if field == 1 else node.outputs).append(_text(value))
        elif field == _NODE_NAME:
            _text(value)
        elif field == _NODE_DOMAIN:
            _check_domain(value)
        elif field == _NODE_ATTRIBUTE:
            _add_attribute(node, _message(value))
    return node


def _add_attribute(node: Node, message: memoryview) -> None:
    try:
        name, value = _attribute(message)
    except _RefusedError as error:
        raise _RefusedError(f"operator {node.op!r:.40} {error}") from error
    node.attributes[name] = value


def _attribute(message: memoryview) -> tuple[str, Any]:
    name = ""
    found: Any = None
    listed: list[Any] = []
    for field, value in _fields(message):
        if field == 1:
            name = _text(value)
        elif field == 2:
            found = np.frombuffer(_message(value), "<f4").item()
        elif field == 3:
            found = _signed(value)
        elif field == 4:
            found = bytes(_message(value)).decode("utf-8", "replace")
        elif field in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
            tensor = _tensor(_message(value))[1]
            found = tensor if field == _ATTRIBUTE_TENSOR else found
        elif field in _NO_ATTRIBUTES:
            raise _RefusedError(f"holds {_NO_ATTRIBUTES[field]}")
        elif field == 7:
            listed += np.frombuffer(_message(value), "<f4").tolist()
        elif field == 8:
            listed += _numbers(value)
    return name, listed or found


def _input(message: memoryview) -> tuple[str, int, tuple[int | None, ...] | None]:
    """Return the name of an input, its type, and its shape: None for a size that is not a number."""
    name, kind, shape = "", 0, None
    for field, value in _fields(message):
        if field == _VALUE_NAME:
            name = _text(value)
        elif field == 2:
            tensors = [_message(one) for at, one in _fields(_message(value)) if at == 1]
            for at, one in [pair for tensor in tensors for pair in _fields(tensor)]:
                if at == 1:
                    kind = _signed(one)
                elif at == 2:
                    dims = [_message(dim) for part, dim in _fields(_message(one)) if part == 1]
                    shape = tuple(next((_signed(v) for f, v in _fields(dim) if f == 1), None) for dim in dims)
    return name, kind, shape


def _tensor(message: memoryview) -> tuple[str, Value]:
    """Return the name and the value of a tensor."""
    name, dims, kind, raw, numbers = "", [], 0, b"", []
    for field, value in _fields(message):
        if field == _TENSOR_NAME:
            name = _text(value)
        elif field == 1:
            dims += _numbers(value)
        elif field == 2:
            kind = _signed(value)
        elif field in (5, 7) and len(message) <= _FEW_BYTES:
            # Field 5 holds flags and small integers, field 7 integers of 64 bits.
            numbers += _numbers(value)
        elif field == 9 and len(message) <= _FEW_BYTES:
            raw = bytes(_message(value))
        elif field == _TENSOR_EXTERNAL or (field == _TENSOR_LOCATION and value):
            raise _RefusedError("holds numbers in another file")
    return name, Value.of(tuple(dims), kind, raw, numbers)


def _numbers(value: memoryview | int) -> list[int]:
    if isinstance(value, int):
        return [_signed(value)]
    if len(value) > _FEW_BYTES:
        raise ValueError("a list of integers that is too long")
    found, place = [], 0
    while place < len(value):
        number, place = _varint(value, place)
        found.append(_signed(number))
    return found


def _signed(value: memoryview | int) -> int:
    if not isinstance(value, int):
        raise ValueError("a message where a number belongs")
    return value - (1 << 64) if value >= 1 << 63 else value


def _check_domain(value: memoryview | int) -> None:
    domain = bytes(_message(value))
    if domain not in _DOMAINS:
        raise _RefusedError(f"needs operators of the domain {domain.decode('utf-8', 'replace')!r:.60}")


def _text(value: memoryview | int) -> str:
    # Also of names that nothing reads: ONNX Runtime prints a message when it cannot decode one.
    return bytes(_message(value)).decode("utf-8")


def _message(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message belongs")
    return value


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    place, end = 0, len(message)
    while place < end:
        _here.left -= 1
        if _here.left < 0:
            raise ValueError("too many fields")
        key, place = _varint(message, place)
        field, kind = key >> 3, key & 7
        if not field or key > _MOST_KEY:
            # Parsers that keep 32 bits of it would see another field.
            raise ValueError("an impossible field")
        if kind == _VARINT:
            number, place = _varint(message, place)
            yield field, number
            continue
        if kind == _BYTES:
            size, place = _varint(message, place)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if size > end - place:
            raise ValueError("a field that is longer than its message")
        yield field, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return a number of variable length and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("a number of more than ten bytes")
