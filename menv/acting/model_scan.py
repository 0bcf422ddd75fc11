"""What a serialised ONNX model may not hold if it comes from a file that anybody could have written.

`menv.loop.bundle` calls it before ONNX Runtime sees the bytes. It walks the few fields of the protobuf messages that
can reach beyond the graph itself, without the onnx package: data in other files, operators of other domains,
functions and graphs within nodes, which loops are made of.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def refuse_unsafe_model(model: bytes, where: str) -> None:
    """Refuse a model that needs more than its own bytes and ONNX's own operators.

    Args:
        model: A serialised ModelProto.
        where: Begins the messages.

    Raises:
        ConfigError: The bytes are no such message, or something in it is not allowed.
    """
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


def _problem_of_model(model: memoryview) -> str:
    """Return what is not allowed in a model, or ""."""
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
    """Return what is not allowed in a graph, or ""."""
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
    """Return what is not allowed in a node, or ""."""
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
    """Return what is not allowed in an attribute, or ""."""
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
    """Return what is not allowed in a tensor, or ""."""
    _check_names(tensor, (_TENSOR_NAME,))
    for field, value in _fields(tensor):
        if field == _TENSOR_EXTERNAL or (field == _TENSOR_LOCATION and value):
            return "holds numbers that lie in another file"
    return ""


def _foreign(domain: bytes) -> str:
    """Return what is wrong with operators of another domain."""
    return f"needs operators of the domain {domain.decode('utf-8', 'replace')!r:.60}"


def _check_names(message: memoryview, names: tuple[int, ...]) -> None:
    """Refuse names that are no text: ONNX Runtime prints something when it cannot decode them."""
    for field, value in _fields(message):
        if field in names:
            _text(value)


def _text(value: memoryview | int) -> str:
    """Return the text of a field, which has to be UTF-8."""
    return bytes(_message(value)).decode("utf-8")


def _message(value: memoryview | int) -> memoryview:
    """Return the bytes of a field that has to hold bytes."""
    if isinstance(value, int):
        raise ValueError("a number where a message belongs")
    return value


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield number and value of each field of a protobuf message."""
    place, end = 0, len(message)
    while place < end:
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
