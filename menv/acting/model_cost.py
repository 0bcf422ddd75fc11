"""How much work a graph is, from its shapes, before anything is allocated.

`menv.acting.model_scan` reads the nodes of a file and asks here. Each operator has a rule for its outputs' shapes.
Small constants are computed too, because `Reshape` and `Expand` take shapes as numbers. An operator without a rule is
refused. For example, a product of two matrices of 20,000 x 20,000 is 8e12 multiplications, which is too many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

MOST_WORK, MOST_NUMBERS, MOST_NODES = 1 << 34, 1 << 26, 1 << 14
"""Multiplications of a graph for 8 rows, or 2 wide ones; numbers in all of its values together; nodes."""

Shape = tuple[int, ...]
Array = npt.NDArray[Any]

_OF_ROWS = ("obs", "rows", "mask", "noise", "actions", "state")
"""Inputs whose first size is the number of rows."""
_ROWS, _ROWS_OF_MANY, _MANY = 8, 2, 10_000
_FEW = 512
"""Numbers of a constant that are computed with."""
_MOST_RANK = 16
_DTYPES = {1: "<f4", 6: "<i4", 7: "<i8", 9: "?", 11: "<f8"}

_SAME = frozenset((
    "Abs", "Acos", "Asin", "Atan", "BatchNormalization", "BitwiseNot", "Cast", "CastLike", "Ceil", "Celu", "Clip",
    "Cos", "CumSum", "Dropout", "Elu", "Erf", "Exp", "EyeLike", "Floor", "Gelu", "GroupNormalization", "HardSigmoid",
    "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LayerNormalization",
    "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Mish", "Neg", "Not", "PRelu",
    "RMSNormalization", "Reciprocal", "Relu", "Round", "ScatterElements", "ScatterND", "Selu", "Shrink", "Sigmoid",
    "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
))  # fmt: skip
"""Operators whose outputs are at most as large as the first input."""
_BROADCAST = frozenset((
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
))  # fmt: skip
_REDUCE = frozenset((
    "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
))  # fmt: skip
_COMPUTED: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum, "Mod": np.mod,
    "Neg": np.negative, "Identity": np.array, "Equal": np.equal, "Where": np.where, "Floor": np.floor, "Ceil": np.ceil,
    "Div": lambda a, b: a // b if a.dtype.kind in "iu" else a / b, "Not": np.logical_not, "Less": np.less,
    "Greater": np.greater, "And": np.logical_and, "Or": np.logical_or, "Abs": np.abs,
}  # fmt: skip


@dataclass(slots=True)
class Tensor:
    """A value of a graph: its shape, and its numbers where they are few and known."""

    shape: Shape
    known: Array | None = None

    @classmethod
    def of(cls, shape: Shape, kind: int, raw: bytes, numbers: Sequence[int]) -> Self:
        """Return the tensor of a file."""
        if not _is_shape(shape):
            raise ValueError("a shape that there cannot be")
        known: Array | None = None
        if kind in _DTYPES and math.prod(shape) <= _FEW:
            flat = np.frombuffer(raw, _DTYPES[kind]) if raw else np.array(numbers, np.int64)
            known = flat.reshape(shape) if flat.size == math.prod(shape) else None
        return cls(shape, known)


@dataclass(slots=True)
class Node:
    """An operator and what it is called with."""

    op: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)

    def ints(self, name: str, default: Any = None) -> Any:
        """Return an attribute of integers."""
        return self.attributes.get(name) or default

    def number(self, name: str, default: int) -> int:
        """Return an attribute that is an integer."""
        found = self.attributes.get(name)
        return default if found is None else int(found)


@dataclass(slots=True)
class Graph:
    """What of a graph decides its cost; a size of an input that is not a number is None."""

    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, tuple[int | None, ...] | None] = field(default_factory=dict)
    constants: dict[str, Tensor] = field(default_factory=dict)


class _UnknownError(Exception):
    """The size of an output cannot be told."""


def problem_of_cost(graph: Graph) -> str:
    """Return why a graph is too much work, or "" if it is not."""
    if len(graph.nodes) > MOST_NODES:
        return f"has {len(graph.nodes)} nodes, more than {MOST_NODES}"
    try:
        values = {**_given(graph), **graph.constants}
    except _UnknownError as error:
        return str(error)
    work = numbers = 0
    for node in graph.nodes:
        try:
            outputs, cost = _outputs(node, [values.get(name) for name in node.inputs])
        except (
            _UnknownError,
            IndexError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
        ) as error:
            return f"operator {node.op!r:.40} has outputs whose size cannot be told ({error!s:.60})"
        if not all(_is_shape(one.shape) for one in outputs):
            return f"operator {node.op!r:.40} has outputs of a shape that there cannot be"
        values.update(zip(node.outputs, outputs, strict=False))
        made = sum(math.prod(one.shape) for one in outputs)
        numbers, work = numbers + made, work + max(cost, made)
        if work > MOST_WORK or numbers > MOST_NUMBERS:
            return (
                f"operator {node.op!r:.40} brings the work to {float(min(work, 10**30)):.2g} multiplications and "
                f"{float(min(numbers, 10**30)):.2g} numbers, more than {MOST_WORK:.2g} and {MOST_NUMBERS:.2g}"
            )
    return ""


def _given(graph: Graph) -> dict[str, Tensor]:
    """Return the inputs of a graph for as many rows as are tried."""
    shapes = {name: shape or () for name, shape in graph.inputs.items()}
    widths = [math.prod(size or 1 for size in shapes[name][1:]) for name in ("obs", "rows") if name in shapes]
    tried = _ROWS_OF_MANY if max(widths, default=0) > _MANY else _ROWS
    found = {}
    for name, shape in graph.inputs.items():
        if shape is not None and shape[:1] == (None,) and name in _OF_ROWS:
            shape = (tried, *shape[1:])
        sizes = tuple(size for size in shape or () if size is not None)
        if shape is None or len(sizes) < len(shape) or not _is_shape(sizes):
            raise _UnknownError(f"has an input {name!r:.60} of unknown size")
        found[name] = Tensor(sizes)
    return found


def _is_shape(shape: Sequence[int]) -> bool:
    return len(shape) <= _MOST_RANK and all(0 <= size < 1 << 40 for size in shape)


def _outputs(node: Node, given: list[Tensor | None]) -> tuple[list[Tensor], int]:
    """Return the outputs of a node, of which all have one shape unless a rule says otherwise, and its cost."""
    parts = [one for one in given if one is not None]
    if len(parts) < sum(map(bool, node.inputs)):
        raise _UnknownError("an input that nothing makes")
    known = _computed(node, parts)
    if known is not None:
        return [Tensor(known.shape, known)], known.size
    if node.op in _SAME:
        shapes, cost = [parts[0].shape], 0
    elif node.op in _BROADCAST:
        shapes, cost = [_broadcast(*(one.shape for one in parts))], 0
    elif node.op in _REDUCE:
        shapes, cost = [_reduced(node, parts)], math.prod(parts[0].shape)
    elif node.op in _RULES:
        shapes, cost = _RULES[node.op](node, given)
    else:
        raise _UnknownError("no rule for it")
    count = max(len(node.outputs), 1)
    return [Tensor(shape) for shape in (shapes if len(shapes) > 1 else shapes * count)], cost


def _computed(node: Node, parts: list[Tensor]) -> Array | None:
    """Return the numbers of an output that is a small constant, None of any other."""
    if node.op == "Constant":
        (value,) = node.attributes.values()
        return value.known if isinstance(value, Tensor) else np.array(value)
    if node.op in ("Shape", "Size"):
        start, end = node.number("start", 0), node.attributes.get("end")
        shape = np.array(parts[0].shape, np.int64)
        return shape[start:end] if node.op == "Shape" else np.array(shape.prod())
    values: list[Any] = [one.known for one in parts]
    if not values or any(one is None or one.size > _FEW for one in values):
        return None
    found: Array | None = None
    first: Any = values[0]
    if node.op in _COMPUTED:
        found = np.asarray(_COMPUTED[node.op](*values))
    elif node.op == "Cast":
        found = first.astype(_DTYPES[node.number("to", 0)]) if node.number("to", 0) in _DTYPES else None
    elif node.op == "Gather":
        found = first.take(values[1], axis=node.number("axis", 0))
    elif node.op == "Concat":
        found = np.concatenate(values, node.number("axis", 0))
    elif node.op in ("Squeeze", "Unsqueeze", "Reshape", "Slice"):
        found = _laid_out(node, parts, first)
    return found if found is None or found.size <= _FEW else None


def _laid_out(node: Node, parts: list[Tensor], first: Array) -> Array:
    """Return the numbers of a constant in another shape."""
    if node.op != "Slice":
        return first.reshape(_RULES[node.op](node, list(parts))[0][0])
    starts, ends, axes, steps = _slices(node, list(parts), first.ndim)
    places = [slice(None)] * first.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        places[axis] = slice(start, None if step < 0 and end < -first.shape[axis] else end, step)
    return first[tuple(places)]


def _broadcast(*shapes: Shape) -> Shape:
    rank = max(map(len, shapes))
    return tuple(map(max, zip(*((1,) * (rank - len(one)) + one for one in shapes), strict=True)))


def _ints(node: Node, name: str, given: Sequence[Tensor | None], place: int) -> list[int] | None:
    """Return integers that are an attribute, or an input with known numbers; None where there are none.

    Raises:
        _UnknownError: The numbers are not known.
    """
    if node.attributes.get(name) is not None:
        return [int(one) for one in node.attributes[name]]
    one = given[place] if len(given) > place else None
    if one is None:
        return None
    if one.known is None:
        raise _UnknownError(f"{name} is computed")
    return [int(number) for number in one.known.reshape(-1)]


def _needed(node: Node, name: str, given: Sequence[Tensor | None], place: int) -> list[int]:
    found = _ints(node, name, given, place)
    if found is None:
        raise _UnknownError(f"no {name}")
    return found


def _reduced(node: Node, parts: Sequence[Tensor]) -> Shape:
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
    """Return the outputs of convolutions and pools, of at most one more place a side than there are strides."""
    x, rank = given[0].shape, len(given[0].shape) - 2
    pool = "Pool" in node.op
    kernel = [int(one) for one in node.ints("kernel_shape", [1] * rank)] if pool else list(given[1].shape[2:])
    strides, pads = node.ints("strides", [1] * rank), node.ints("pads", [0] * 2 * rank)
    around = [max(0, int(pads[at])) + max(0, int(pads[at + rank])) for at in range(rank)]
    if node.op == "ConvTranspose":
        sides = [x[2 + at] * int(strides[at]) + around[at] + kernel[at] * 2 for at in range(rank)]
        sides = [max(pair) for pair in zip(sides, node.ints("output_shape", sides)[-rank:], strict=True)]
        shape = (x[0], given[1].shape[1] * node.number("group", 1), *sides)
        return [shape], math.prod(shape) * x[1] * math.prod(kernel)
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


def _slices(node: Node, given: list[Any], rank: int) -> tuple[list[int], ...]:
    starts, ends = _needed(node, "starts", given, 1), _needed(node, "ends", given, 2)
    axes = _ints(node, "axes", given, 3) or list(range(len(starts)))
    return starts, ends, [axis % rank for axis in axes], _ints(node, "steps", given, 4) or [1] * len(starts)


def _slice(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape = list(given[0].shape)
    try:
        starts, ends, axes, steps = _slices(node, given, len(shape))
    except _UnknownError:
        return [tuple(shape)], 0
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        stop = None if step < 0 and end < -shape[axis] else end
        shape[axis] = len(range(*slice(start, stop, step).indices(shape[axis])))
    return [tuple(shape)], 0


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


def _resize(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape = given[0].shape
    if len(given) > 3 and given[3] is not None:
        return [_broadcast(shape, tuple(_needed(node, "sizes", given, 3)))], 0
    scales = given[2].known.reshape(-1).tolist()
    return [tuple(math.ceil(size * scale) for size, scale in zip(shape, scales, strict=True))], 0


def _recurrent(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    (steps, rows, width), (ways, gates, size) = given[0].shape, given[2].shape
    outputs = [(steps, ways, rows, size), (ways, rows, size), (ways, rows, size)]
    return outputs, steps * rows * ways * gates * (width + size)


def _einsum(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    sides, _, out = str(node.attributes["equation"]).replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for labels, one in zip(sides.split(","), given, strict=True):
        for label, size in zip(labels, one.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 0))
    return [tuple(sizes[label] for label in out)], math.prod(sizes.values())


def _top(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape = given[0].shape
    return [shape], math.prod(shape)


def _one_hot(node: Node, given: list[Any]) -> tuple[list[Shape], int]:
    shape, depth = given[0].shape, _needed(node, "depth", given, 1)[0]
    at = node.number("axis", -1) % (len(shape) + 1)
    return [(*shape[:at], depth, *shape[at:])], 0


_RULES: dict[str, Rule] = {
    "MatMul": _matmul, "Gemm": _gemm, "Conv": _conv, "ConvTranspose": _conv, "MaxPool": _conv, "AveragePool": _conv,
    "GlobalAveragePool": _top, "GlobalMaxPool": _top, "Reshape": _reshape, "Squeeze": _squeeze, "Gather": _gather,
    "Unsqueeze": _unsqueeze, "GatherElements": lambda node, given: ([given[1].shape], 0), "Concat": _concat,
    "Split": _split, "Slice": _slice, "Transpose": _transpose, "Flatten": _flatten, "Expand": _expand, "Tile": _tile,
    "ConstantOfShape": lambda node, given: ([tuple(_needed(node, "shape", given, 0))], 0), "Pad": _pad,
    "Constant": lambda node, given: ([node.attributes["value"].shape], 0), "Range": _range, "TopK": _top,
    "OneHot": _one_hot, "Resize": _resize, "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent, "Einsum": _einsum,
}  # fmt: skip
"""The operators whose outputs have another shape, and what it is and costs."""
