"""Graphs that are too much work are refused before ONNX Runtime sees them, or stopped by the bound of its memory."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, RuntimeException

from menv import ConfigError
from menv.inference.model_check import refuse_unsafe_model
from menv.inference.onnx_backend import MOST_MEMORY, open_session

BIG = 20_000


def ints(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def number(name: str, value: int) -> Any:
    return numpy_helper.from_array(np.array(value, np.int64), name)


def one(name: str = "one") -> Any:
    return numpy_helper.from_array(np.ones((1, 1), np.float32), name)


def model(
    nodes: list[Any],
    constants: list[Any] = [],  # noqa: B006
    given: dict[str, Any] | None = None,
    kind: int = TensorProto.FLOAT,
) -> bytes:
    """Return a model of nodes that end in "y", of this element type."""
    inputs = given or {"obs": ["R", 4]}
    shown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    out = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph(nodes, "graph", shown, [out], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def node(op: str, inputs: str, out: str = "y", **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(" "), [out], **attributes)


LARGE = [node("Expand", "one size", "x")]
SIZE = [one(), ints("size", BIG, BIG)]
FOLDED: dict[str, bytes] = {
    "product": model([*LARGE, node("MatMul", "x x")], SIZE),
    "filled": model([node("ConstantOfShape", "size")], [ints("size", 1 << 30)]),
    "tiled": model([node("Tile", "one size")], SIZE),
    "outer": model([node("MatMul", "tall wide")], [], {"tall": [1 << 16, 1], "wide": [1, 1 << 16]}),
    "doubled": model(
        [node("Concat", f"x{n} x{n}" if n else "obs obs", f"x{n + 1}", axis=1) for n in range(40)]
        + [node("Identity", "x40")]
    ),
    "many": model([node("Identity", "obs")] * 20_000),
    "joined constants": model(
        [node("Concat", " ".join(["many"] * 200_000), axis=0)],
        [ints("many", *range(512))],
        kind=TensorProto.INT64,
    ),
    "many summands": model([node("Sum", " ".join(["w"] * 60_000))], [], {"w": [1 << 20]}),
    "holes": model(
        [node("ConvTranspose", "x w", dilations=[BIG, BIG])], [], {"x": [1, 1, 1, 1], "w": [1, 1, 2, 2]}
    ),
    "steps of nothing": model([node("MaxPool", "x", kernel_shape=[1], strides=[0])], [], {"x": [1, 1, 1]}),
    "divided integers": model(
        [node("Div", "least minus")], [ints("least", -(1 << 63)), ints("minus", -1)], kind=7
    ),
    "divided sizes": model(
        [node("Shape", "obs", "size"), node("Div", "size zero")], [ints("zero", 0)], kind=7
    ),
    "remainders of integers": model([node("Cast", "obs", "whole", to=7), node("Mod", "whole whole")], kind=7),
    "sizes below zero": model(
        [
            node("Div", "below two", "size"),
            node("Add", "size four", "zero"),
            node("Mul", "zero many", "more"),
            node("Expand", "one more"),
        ],
        [one(), ints("below", -7), ints("two", 2), ints("four", 4), ints("many", 1 << 30)],
    ),
    "large input": model([node("Identity", "w")], [], {"w": [1 << 14, 1 << 13]}),
}


def run(graph: bytes) -> list[Any]:
    """Check a graph as that of a policy's folder, and run it on two rows."""
    refuse_unsafe_model(graph, "file")
    session = open_session(graph, bounded=True)
    feed = {
        given.name: np.ones([2 if isinstance(size, str) else size for size in given.shape], np.float32)
        for given in session.get_inputs()
    }
    return list(session.run(None, feed))


@pytest.mark.parametrize("name", FOLDED)
def test_a_graph_of_too_much_work_is_refused_or_stopped(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((ConfigError, RuntimeException, Fail, InvalidArgument, InvalidGraph)):
        run(FOLDED[name])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < MOST_MEMORY


ALLOWED: dict[str, bytes] = {
    "wide layers": model([node("MatMul", "obs w")], [], {"obs": ["R", 8000], "w": [8000, 8000]}),
    "reshaped by its own shape": model(
        [
            node("Shape", "obs", "shape"),
            node("Gather", "shape zero", "rows"),
            node("Concat", "rows rest", "target", axis=0),
            node("Reshape", "obs target", "x"),
            node("Conv", "x w"),
        ],
        [ints("zero", 0), ints("rest", 1, 28, 28)],
        {"obs": ["R", 784], "w": [32, 1, 5, 5]},
    ),
    "divided numbers and known sizes": model(
        [
            node("Div", "obs obs", "x"),
            node("Shape", "w", "size"),
            node("Div", "size two", "half"),
            node("Expand", "one half"),
        ],
        [one(), ints("two", 2)],
        {"obs": ["R", 4], "w": [4, 6]},
    ),
    "split and joined": model(
        [
            helper.make_node("Split", ["obs"], ["a", "b"], axis=1),
            node("Concat", "a b", "c", axis=1),
            node("MatMul", "c w"),
        ],
        [],
        {"obs": ["R", 4], "w": [4, 4]},
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_graph_as_policies_have_them_runs(name: str) -> None:
    (answer,) = run(ALLOWED[name])
    assert answer.size


def test_a_divisor_stored_in_two_forms_is_refused() -> None:
    """ONNX Runtime reads one of them, another parser the other."""
    divisor = ints("two", 2)
    divisor.int64_data.append(-1)
    with pytest.raises(ConfigError, match="divides"):
        run(model([node("Shape", "obs", "size"), node("Div", "size two")], [divisor], kind=7))
