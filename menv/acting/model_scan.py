"""What a serialised ONNX model may not hold if it comes from a file that anybody could have written.

`menv.loop.bundle` calls it before ONNX Runtime sees the bytes. It walks the few fields of the protobuf messages that
can reach beyond the graph itself, without the onnx package: data in other files, operators of other domains,
functions and graphs within nodes, which loops are made of. `menv.acting.model_cost` computes from the shapes how much
work the graph is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from menv.acting.model_cost import Graph, Node, Tensor, problem_of_cost
from menv.errors import ConfigError

# Numbers of the fields that are looked at, from onnx.proto3.
_MODEL_GRAPH, _MODEL_OPSETS, _MODEL_TRAINING, _MODEL_FUNCTIONS = 7, 8, 20, 25
_OPSET_DOMAIN = 1
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_INITIALIZER, _GRAPH_SPARSE = 1, 2, 5, 15
_GRAPH_VALUES, _VALUE_NAME = (11, 12, 13), 1
_NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_NODE_NAMES = (1, 2, 3)
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11
_ATTRIBUTE_SPARSE = (22, 23)
_TENSOR_NAME, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 8, 13, 14

_DOMAINS = (b"", b"ai.onnx")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MOST_KEY = (1 << 32) - 1
_MOST_FIELDS = 1 << 19
"""Fields that are looked at in a model, which takes a second."""
_FEW_BYTES = 1 << 13
_here = threading.local()


def refuse_unsafe_model(model: bytes, where: str) -> None:
    """Refuse a model that needs more than its own bytes and ONNX's own operators.

    Args:
        model: A serialised ModelProto.
        where: Begins the messages.

    Raises:
        ConfigError: The bytes are no such message, or something in it is not allowed.
    """
    _here.left = _MOST_FIELDS
    try:
        problem = _problem_of_model(memoryview(model))
    except (IndexError, ValueError) as error:
        raise ConfigError(
            f"{where}: its {len(model)} bytes are no ONNX model, expected a serialised one; write the file again"
        ) from error
    if problem:
        raise ConfigError(
            f"{where}: {problem}, expected ONNX's own operators and no other file; do not use this file"
        )


def refuse_costly_model(model: bytes, where: str) -> None:
    """Refuse a model that is more work for a few rows than any policy needs; nothing of it is run.

    Args:
        model: A serialised ModelProto that `refuse_unsafe_model` has passed.
        where: Begins the messages.

    Raises:
        ConfigError: It is too much work, or an operator has outputs whose size the shapes do not tell.
    """
    _here.left = _MOST_FIELDS
    try:
        problem = problem_of_cost(_graph(memoryview(model)))
    except (IndexError, ValueError) as error:
        raise ConfigError(
            f"{where}: its nodes cannot be read ({error!s:.60}), expected a serialised ONNX model; write the file again"
        ) from error
    if problem:
        raise ConfigError(
            f"{where}: {problem}, expected little work, told by the shapes; take a smaller network or other operators"
        )


def _problem_of_model(model: memoryview) -> str:
    for field, value in _fields(model):
        problem = ""
        if field == _MODEL_GRAPH:
            problem = _problem_of_graph(_message(value))
        elif field == _MODEL_OPSETS:
            domains = [
                bytes(_message(part)) for name, part in _fields(_message(value)) if name == _OPSET_DOMAIN
            ]
            problem = next((_foreign(domain) for domain in domains if domain not in _DOMAINS), "")
        elif field in (_MODEL_TRAINING, _MODEL_FUNCTIONS):
            problem = "holds functions or training code"
        if problem:
            return problem
    return ""


def _problem_of_graph(graph: memoryview) -> str:
    for field, value in _fields(graph):
        problem = ""
        if field == _GRAPH_NODE:
            problem = _problem_of_node(_message(value))
        elif field == _GRAPH_INITIALIZER:
            problem = _problem_of_tensor(_message(value))
        elif field == _GRAPH_NAME:
            _text(value)
        elif field in _GRAPH_VALUES:
            _check_names(_message(value), (_VALUE_NAME,))
        elif field == _GRAPH_SPARSE:
            problem = "holds sparse tensors"
        if problem:
            return problem
    return ""


def _problem_of_node(node: memoryview) -> str:
    op = ""
    _check_names(node, _NODE_NAMES)
    for field, value in _fields(node):
        if field == _NODE_OP:
            op = _text(value)
        elif field == _NODE_DOMAIN and bytes(_message(value)) not in _DOMAINS:
            return _foreign(bytes(_message(value)))
        elif field == _NODE_ATTRIBUTE:
            problem = _problem_of_attribute(_message(value))
            if problem:
                return f"operator {op!r:.40} {problem}"
    return ""


def _problem_of_attribute(attribute: memoryview) -> str:
    for field, value in _fields(attribute):
        if field in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
            return "holds a graph of its own"
        if field in _ATTRIBUTE_SPARSE:
            return "holds sparse tensors"
        if field in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
            problem = _problem_of_tensor(_message(value))
            if problem:
                return problem
    return ""


def _problem_of_tensor(tensor: memoryview) -> str:
    _check_names(tensor, (_TENSOR_NAME,))
    for field, value in _fields(tensor):
        if field == _TENSOR_EXTERNAL or (field == _TENSOR_LOCATION and value):
            return "holds numbers that lie in another file"
    return ""


def _graph(model: memoryview) -> Graph:
    graph = Graph()
    parts = [_message(value) for field, value in _fields(model) if field == _MODEL_GRAPH]
    for field, value in [pair for part in parts for pair in _fields(part)]:
        if field == _GRAPH_INITIALIZER:
            name, tensor = _tensor(_message(value))
            graph.constants[name] = tensor
        elif field == _GRAPH_VALUES[0]:
            name, kind, shape = _input(_message(value))
            graph.inputs[name] = kind, shape
        elif field == _GRAPH_NODE:
            graph.nodes.append(_node(_message(value)))
    return graph


def _node(message: memoryview) -> Node:
    node = Node()
    for field, value in _fields(message):
        if field == _NODE_OP:
            node.op = _text(value)
        elif field in (1, 2):
            (node.inputs if field == 1 else node.outputs).append(_text(value))
        elif field == _NODE_ATTRIBUTE:
            _note_attribute(node, _message(value))
    return node


def _note_attribute(node: Node, message: memoryview) -> None:
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
        elif field == _ATTRIBUTE_TENSOR:
            found = _tensor(_message(value))[1]
        elif field == 7:
            listed += np.frombuffer(_message(value), "<f4").tolist()
        elif field == 8:
            listed += _numbers(value)
    node.attributes[name] = listed or found


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


def _tensor(message: memoryview) -> tuple[str, Tensor]:
    """Return the name of a tensor, its shape, and its numbers where these are few."""
    name, dims, kind, raw, numbers = "", [], 0, b"", []
    for field, value in _fields(message):
        if field == _TENSOR_NAME:
            name = _text(value)
        elif field == 1:
            dims += _numbers(value)
        elif field == 2:
            kind = _signed(value)
        elif field in (5, 7) and len(message) <= _FEW_BYTES:
            # Flags and small integers lie in field 5, integers of 64 bits in field 7.
            numbers += _numbers(value)
        elif field == 9 and len(message) <= _FEW_BYTES:
            raw = bytes(_message(value))
    return name, Tensor.of(tuple(dims), kind, raw, numbers)


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


def _foreign(domain: bytes) -> str:
    return f"needs operators of the domain {domain.decode('utf-8', 'replace')!r:.60}"


def _check_names(message: memoryview, names: tuple[int, ...]) -> None:
    """Refuse names that are no text: ONNX Runtime prints something when it cannot decode them."""
    for field, value in _fields(message):
        if field in names:
            _text(value)


def _text(value: memoryview | int) -> str:
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
            raise ValueError("more fields than there can be")
        key, place = _varint(message, place)
        field, kind = key >> 3, key & 7
        if not field or key > _MOST_KEY:
            # Parsers that keep 32 bits of it would see another field than this one.
            raise ValueError("a field that there cannot be")
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
    """Return a number of variable length and where the next thing begins."""
    number = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("a number of more than ten bytes")
