"""Checks of ONNX files from untrusted sources, before ONNX Runtime sees their bytes.

`refuse_unsafe_model` reads the protobuf fields, without the onnx package. It refuses whatever reaches beyond the graph
(data in other files, operators of other domains, functions, graphs within nodes), operators that no policy has, and
sizes that no policy has. What a graph computes is bounded when it runs: `onnx_backend.open_session` gives models of
files an arena of limited memory.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from menv.errors import ConfigError

MOST_NODES, MOST_INPUTS, MOST_NUMBERS = 1 << 14, 1 << 9, 1 << 26
"""Most nodes of a graph, inputs of a node, and numbers of a constant or an input."""

_OPERATORS = frozenset((
    "Abs", "Acos", "Add", "And", "ArgMax", "ArgMin", "Asin", "Atan", "AveragePool", "BatchNormalization", "Cast",
    "CastLike", "Ceil", "Celu", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv", "Cos", "CumSum", "Div",
    "Dropout", "Einsum", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "GRU", "Gather", "GatherElements",
    "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GroupNormalization",
    "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LSTM",
    "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "LpNormalization", "MatMul", "Max",
    "MaxPool", "Mean", "MeanVarianceNormalization", "Min", "Mish", "Mul", "Neg", "Not", "OneHot", "Or", "PRelu", "Pad",
    "Pow", "RMSNormalization", "RNN", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round",
    "ScatterElements", "ScatterND", "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax",
    "Softplus", "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Tile",
    "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
))  # fmt: skip
"""Operators that menv and `torch.onnx` write for policies."""
_FLOATS = (1, 10, 11, 16)
"""ONNX element types that are not integers."""
_WHOLE = ("Shape", "Size", "ArgMax", "ArgMin", "TopK", "MaxPool")
"""Operators with an output of integers, whatever their inputs are."""
_TYPED_BY = {"Where": 1, "CastLike": 1, "OneHot": 2}
"""The input that gives an output its type, if not the first."""


@dataclass(slots=True)
class _Tensor:
    """A constant: its shape, and whether it holds integers, all of them above zero."""

    shape: tuple[int, ...]
    whole: bool
    positive: bool = False


@dataclass(slots=True)
class _Node:
    """An operator and what it is called with."""

    op: str = ""
    inputs: list[str] = dataclasses.field(default_factory=list)
    outputs: list[str] = dataclasses.field(default_factory=list)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(slots=True)
class _Graph:
    """What is checked of a graph; `whole` names inputs of integers, `sizes` has the count of numbers of each input."""

    nodes: list[_Node] = dataclasses.field(default_factory=list)
    whole: set[str] = dataclasses.field(default_factory=set)
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    constants: dict[str, _Tensor] = dataclasses.field(default_factory=dict)


class _RefusedError(Exception):
    """Why a model is refused."""


def _check_sizes(graph: _Graph) -> None:
    if len(graph.nodes) > MOST_NODES:
        raise _RefusedError(f"has {len(graph.nodes)} nodes, more than {MOST_NODES}")
    sizes = {**graph.sizes, **{name: math.prod(one.shape) for name, one in graph.constants.items()}}
    for name, size in sizes.items():
        if size > MOST_NUMBERS:
            raise _RefusedError(f"has a tensor {name!r:.60} of {size} numbers, more than {MOST_NUMBERS}")
    for node in graph.nodes:
        if node.op not in _OPERATORS:
            raise _RefusedError(f"needs the operator {node.op!r:.40}, which no policy has")
        if len(node.inputs) > MOST_INPUTS:
            raise _RefusedError(f"calls {node.op} with {len(node.inputs)} inputs, more than {MOST_INPUTS}")


def _check_divisions(graph: _Graph) -> None:
    """Refuse integers that are divided by what is not known to be above zero: it can end the process."""
    whole = graph.whole | {name for name, one in graph.constants.items() if one.whole}
    positive = {name for name, one in graph.constants.items() if one.positive}
    for node in graph.nodes:
        value = node.attributes.get("value")
        if node.op == "Div" and node.inputs[0] in whole and node.inputs[1] not in positive:
            raise _RefusedError("divides integers by what is not known to be above zero")
        if node.op in ("Cast", "ConstantOfShape", "Constant"):
            holds = value.whole if isinstance(value, _Tensor) else node.attributes.get("to", 1) not in _FLOATS
            is_whole = holds or any(name.startswith("value_int") for name in node.attributes)
        else:
            place = _TYPED_BY.get(node.op, 0)
            is_whole = node.op in _WHOLE or (len(node.inputs) > place and node.inputs[place] in whole)
        if is_whole:
            whole.update(node.outputs)
        if isinstance(value, _Tensor) and value.positive and node.op == "Constant":
            positive.update(node.outputs)


# Field numbers of onnx.proto3.
_MODEL_GRAPH, _MODEL_OPSETS, _MODEL_TRAINING, _MODEL_FUNCTIONS = 7, 8, 20, 25
_OPSET_DOMAIN = 1
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_INITIALIZER, _GRAPH_SPARSE = 1, 2, 5, 15
_GRAPH_INPUT, _GRAPH_VALUES, _VALUE_NAME = 11, (12, 13), 1
_NODE_NAME, _NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 3, 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS = 5, 10
_NO_ATTRIBUTES = {6: "a graph", 11: "a graph", 22: "sparse tensors", 23: "sparse tensors"}
_TENSOR_NAME, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 8, 13, 14

_INT64 = 7
_DOMAINS = (b"", b"ai.onnx")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MOST_KEY = (1 << 32) - 1
_MOST_FIELDS = 1 << 19
"""Most fields of a model; reading them takes a second."""
_FEW_BYTES = 1 << 13
_here = threading.local()


def refuse_unsafe_model(model: bytes, where: str) -> None:
    """Raise ConfigError for a model that needs more than its own bytes and the operators of policies; runs nothing."""
    _here.left = _MOST_FIELDS
    try:
        graph = _graph(memoryview(model))
        _check_sizes(graph)
        _check_divisions(graph)
    except _RefusedError as error:
        raise ConfigError(
            f"{where}: {error}, expected the operators and sizes of a policy and no other file; do not use this file"
        ) from error
    except (IndexError, ValueError, ArithmeticError) as error:
        raise ConfigError(
            f"{where}: its {len(model)} bytes are no ONNX model ({error!s:.60}), expected a serialised one; write the "
            "file again"
        ) from error


def _graph(model: memoryview) -> _Graph:
    graph = _Graph()
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


def _add_parts(graph: _Graph, message: memoryview) -> None:
    for field, value in _fields(message):
        if field == _GRAPH_INITIALIZER:
            name, tensor = _tensor(_message(value))
            graph.constants[name] = tensor
        elif field == _GRAPH_INPUT:
            _add_input(graph, _message(value))
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


def _node(message: memoryview) -> _Node:
    node = _Node()
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


def _add_attribute(node: _Node, message: memoryview) -> None:
    try:
        name, value = _attribute(message)
    except _RefusedError as error:
        raise _RefusedError(f"operator {node.op!r:.40} {error}") from error
    node.attributes[name] = value


def _attribute(message: memoryview) -> tuple[str, Any]:
    """Return the name of an attribute and its value, if it is an integer or a tensor."""
    name = ""
    found: Any = None
    for field, value in _fields(message):
        if field == 1:
            name = _text(value)
        elif field == 3:
            found = _signed(value)
        elif field in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
            tensor = _tensor(_message(value))[1]
            found = tensor if field == _ATTRIBUTE_TENSOR else found
        elif field in _NO_ATTRIBUTES:
            raise _RefusedError(f"holds {_NO_ATTRIBUTES[field]}")
    return name, found


def _add_input(graph: _Graph, message: memoryview) -> None:
    """Add the name of an input, its type, and its count of numbers, for which an axis of any length is 1."""
    name, kind, size = "", 0, 1
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
                    size *= math.prod(_signed(v) for dim in dims for f, v in _fields(dim) if f == 1)
    graph.sizes[name] = size
    if kind not in _FLOATS:
        graph.whole.add(name)


def _tensor(message: memoryview) -> tuple[str, _Tensor]:
    """Return the name and the value of a tensor."""
    name, dims, kind = "", [], 0
    numbers: list[int] = []
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
        elif field == 9 and len(message) <= _FEW_BYTES and len(_message(value)) % 8 == 0:
            numbers += np.frombuffer(_message(value), "<i8").tolist()
        elif field == _TENSOR_EXTERNAL or (field == _TENSOR_LOCATION and value):
            raise _RefusedError("holds numbers in another file")
    # Numbers in two forms would be more than the shape says.
    known = kind == _INT64 and len(numbers) == math.prod(dims)
    return name, _Tensor(tuple(dims), kind not in _FLOATS, known and min(numbers, default=0) > 0)


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
