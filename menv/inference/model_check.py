"""Checks of ONNX files from untrusted sources, before ONNX Runtime sees their bytes.

`refuse_unsafe_model` parses the fields that it checks with protobuf, without the onnx package. It refuses whatever
reaches beyond the graph (data in other files, operators of other domains, functions, graphs within nodes), operators
that no policy has, and sizes that no policy has. What a graph computes is bounded when it runs:
`onnx_backend.open_session` gives models of files an arena of limited memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from menv.errors import ConfigError

MOST_NODES, MOST_INPUTS, MOST_NUMBERS = 1 << 14, 1 << 9, 1 << 26
"""Most nodes of a graph, inputs of a node, and numbers of a constant or an input."""

_OPERATORS = frozenset((
    "Abs", "Acos", "Add", "And", "ArgMax", "ArgMin", "Asin", "Atan", "Atanh", "AveragePool", "BatchNormalization",
    "Cast", "CastLike", "Ceil", "Celu", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv", "Cos", "CumSum", "Div",
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

_FORM: dict[str, dict[str, tuple[int, str]]] = {
    "Model": {
        "graph": (7, "*bytes"), "opset_import": (8, "*Opset"), "training_info": (20, "*bytes"),
        "functions": (25, "*bytes"),
    },
    "Opset": {"domain": (1, "string")},
    "Graph": {
        "node": (1, "*bytes"), "name": (2, "string"), "initializer": (5, "*bytes"), "input": (11, "*bytes"),
        "output": (12, "*bytes"), "value_info": (13, "*bytes"), "sparse_initializer": (15, "*bytes"),
    },
    "Node": {
        "input": (1, "*string"), "output": (2, "*string"), "name": (3, "string"), "op_type": (4, "string"),
        "attribute": (5, "*Attribute"), "domain": (7, "string"),
    },
    "Attribute": {
        "name": (1, "string"), "i": (3, "int64"), "t": (5, "*Tensor"), "g": (6, "*bytes"), "tensors": (10, "*Tensor"),
        "graphs": (11, "*bytes"), "sparse_tensor": (22, "*bytes"), "sparse_tensors": (23, "*bytes"),
    },
    "Tensor": {
        "dims": (1, "*int64"), "data_type": (2, "int32"), "int32_data": (5, "*int32"), "int64_data": (7, "*int64"),
        "name": (8, "string"), "raw_data": (9, "bytes"), "external_data": (13, "*bytes"),
        "data_location": (14, "int32"),
    },
    "Value": {"name": (1, "string"), "type": (2, "Type")},
    "Type": {"tensor_type": (1, "TensorType")},
    "TensorType": {"elem_type": (1, "int32"), "shape": (2, "Shape")},
    "Shape": {"dim": (1, "*Dim")},
    "Dim": {"dim_value": (1, "int64")},
}  # fmt: skip
"""The messages of onnx.proto3 with the fields that are checked; a star marks repeated ones, or those whose presence
matters. Names are read because ONNX Runtime prints a message when it cannot decode one."""


def _message_classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="model_check.proto", package="checked", syntax="proto3")
    types = {
        "int32": FieldDescriptorProto.TYPE_INT32, "int64": FieldDescriptorProto.TYPE_INT64,
        "string": FieldDescriptorProto.TYPE_STRING, "bytes": FieldDescriptorProto.TYPE_BYTES,
    }  # fmt: skip
    for kind, fields in _FORM.items():
        message = file.message_type.add(name=kind)
        for name, (number, type_name) in fields.items():
            field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            if type_name.startswith("*"):
                field.label = FieldDescriptorProto.LABEL_REPEATED
            inner = type_name.removeprefix("*")
            field.type = types.get(inner, FieldDescriptorProto.TYPE_MESSAGE)
            if inner not in types:
                field.type_name = f".checked.{inner}"
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {kind: GetMessageClass(pool.FindMessageTypeByName(f"checked.{kind}")) for kind in _FORM}


_MESSAGES = _message_classes()
_PARTS = {"node": "Node", "initializer": "Tensor", "input": "Value", "output": "Value", "value_info": "Value"}
"""Parts of a graph, parsed one by one, because a parsed message needs up to 50 times its bytes."""

_FLOATS = (1, 10, 11, 16)
"""ONNX element types that are not integers."""
_INT64 = 7
_WHOLE = ("Shape", "Size", "ArgMax", "ArgMin", "TopK", "MaxPool")
"""Operators with an output of integers, whatever their inputs are."""
_TYPED_BY = {"Where": 1, "CastLike": 1, "OneHot": 2}
"""The input that gives an output its type, if not the first."""
_DOMAINS = ("", "ai.onnx")
_MOST_BYTES = 1 << 22
"""Bytes of all nodes, and of all other parts but the constants."""
_FEW = 1 << 10
"""Numbers of a constant that are looked at."""


class _RefusedError(Exception):
    """Why a model is refused."""


def refuse_unsafe_model(model: bytes, where: str) -> None:
    """Raise ConfigError for a model that needs more than its own bytes and the operators of policies; runs nothing."""
    try:
        found = _MESSAGES["Model"].FromString(model)
        if found.functions or found.training_info:
            raise _RefusedError("holds functions or training code")
        for opset in found.opset_import:
            _check_domain(opset.domain)
        if len(found.graph) > 2:
            raise _RefusedError(f"holds {len(found.graph)} graphs")
        # Parsers merge a message that is there twice.
        graph = _MESSAGES["Graph"].FromString(b"".join(found.graph))
        if graph.sparse_initializer:
            raise _RefusedError("holds sparse tensors")
        parts = {name: _parsed(kind, getattr(graph, name)) for name, kind in _PARTS.items()}
        _check_parts(parts)
        _check_divisions(parts)
    except _RefusedError as error:
        raise ConfigError(
            f"{where}: {error}, expected the operators and sizes of a policy and no other file; do not use this file"
        ) from error
    except (DecodeError, IndexError) as error:
        raise ConfigError(
            f"{where}: its {len(model)} bytes are no ONNX model ({error!s:.60}), expected a serialised one; write the "
            "file again"
        ) from error


def _check_domain(domain: str) -> None:
    if domain not in _DOMAINS:
        raise _RefusedError(f"needs operators of the domain {domain!r:.60}")


def _parsed(kind: str, parts: Any) -> list[Any]:
    if len(parts) > MOST_NODES:
        raise _RefusedError(f"has {len(parts)} nodes or tensors, more than {MOST_NODES}")
    if kind != "Tensor" and sum(map(len, parts)) > _MOST_BYTES:
        raise _RefusedError(f"has nodes of more than {_MOST_BYTES} bytes")
    return list(map(_MESSAGES[kind].FromString, parts))


def _check_parts(graph: Mapping[str, Sequence[Any]]) -> None:
    for given in graph["input"]:
        # An axis of any length has no value.
        _check_size(given.name, [dim.dim_value or 1 for dim in given.type.tensor_type.shape.dim])
    for tensor in graph["initializer"]:
        _check_tensor(tensor)
    for node in graph["node"]:
        _check_node(node)


def _check_node(node: Any) -> None:
    _check_domain(node.domain)
    if node.op_type not in _OPERATORS:
        raise _RefusedError(f"needs the operator {node.op_type!r:.40}, which no policy has")
    if len(node.input) > MOST_INPUTS:
        raise _RefusedError(f"calls {node.op_type} with {len(node.input)} inputs, more than {MOST_INPUTS}")
    for one in node.attribute:
        if one.g or one.graphs or one.sparse_tensor or one.sparse_tensors:
            raise _RefusedError(f"operator {node.op_type} holds a graph or sparse tensors")
        for tensor in (*one.t, *one.tensors):
            _check_tensor(tensor)


def _check_tensor(tensor: Any) -> None:
    if tensor.external_data or tensor.data_location:
        raise _RefusedError("stores tensors in another file")
    _check_size(tensor.name, tensor.dims)


def _check_size(name: str, dims: Any) -> None:
    if (size := math.prod(dims)) > MOST_NUMBERS:
        raise _RefusedError(f"has a tensor {name!r:.60} of {size} numbers, more than {MOST_NUMBERS}")


def _check_divisions(graph: Mapping[str, Sequence[Any]]) -> None:
    """Refuse integers that are divided by what is not known to be above zero: it can end the process."""
    whole = {given.name for given in graph["input"] if given.type.tensor_type.elem_type not in _FLOATS}
    whole |= {one.name for one in graph["initializer"] if one.data_type not in _FLOATS}
    positive = {one.name for one in graph["initializer"] if _is_positive(one)}
    for node in graph["node"]:
        op, inputs = node.op_type, node.input
        if op == "Div" and inputs[0] in whole and inputs[1] not in positive:
            raise _RefusedError("divides integers by a number that may be zero")
        values = [tensor for one in node.attribute if one.name == "value" for tensor in one.t]
        if op == "Cast":
            is_whole = any(one.i not in _FLOATS for one in node.attribute if one.name == "to")
        elif op in ("ConstantOfShape", "Constant"):
            is_whole = any(one.data_type not in _FLOATS for one in values)
            is_whole |= any(one.name.startswith("value_int") for one in node.attribute)
        else:
            place = _TYPED_BY.get(op, 0)
            is_whole = op in _WHOLE or (len(inputs) > place and inputs[place] in whole)
        if is_whole:
            whole.update(node.output)
        if op == "Constant" and values and all(map(_is_positive, values)):
            positive.update(node.output)


def _is_positive(tensor: Any) -> bool:
    """Return whether a tensor holds integers, few enough to look at, and all above zero."""
    if tensor.data_type != _INT64 or math.prod(tensor.dims) > _FEW or len(tensor.raw_data) % 8:
        return False
    numbers = [*tensor.int64_data, *tensor.int32_data, *np.frombuffer(tensor.raw_data, "<i8").tolist()]
    # Numbers in two forms would be more than the shape says.
    return len(numbers) == math.prod(tensor.dims) and min(numbers, default=0) > 0
