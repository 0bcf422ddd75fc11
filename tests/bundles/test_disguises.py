"""Graphs that look otherwise to who scans them than to who opens them are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from menv import ConfigError
from menv.inference.model_check import refuse_unsafe_model
from menv.inference.onnx_backend import open_session

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5


def adding() -> bytes:
    """Return a model that adds 1."""
    shown = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
    one = onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [1], [1.0])
    node = onnx.helper.make_node("Add", ["x", "one"], ["y"])
    graph = onnx.helper.make_graph([node], "adding", shown[:1], shown[1:], [one])
    opsets = [onnx.helper.make_opsetid("", 17)]
    return bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def varint(number: int) -> bytes:
    digits = []
    while number >= 128:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def field(number: int, content: bytes, high_bits: int = 0) -> bytes:
    """Return a field of a message, with bits in its key that parsers of 32 bits let go of."""
    return varint(number << 3 | 2 | high_bits << 32) + varint(len(content)) + content


def outside() -> bytes:
    tensor = onnx.helper.make_tensor("secret", onnx.TensorProto.FLOAT, [1], b"1234", raw=True)
    onnx.external_data_helper.set_external_data(tensor, "secret.bin")
    tensor.ClearField("raw_data")
    return bytes(tensor.SerializeToString())


def foreign() -> bytes:
    return bytes(onnx.helper.make_node("Gelu", ["x"], ["z"], domain="com.microsoft").SerializeToString())


@pytest.mark.parametrize(("number", "content"), [(_INITIALIZER, outside()), (_NODE, foreign())])
@pytest.mark.parametrize("high_bits", [1, 2, 4])
def test_a_field_whose_number_a_parser_would_cut_is_refused(
    number: int, content: bytes, high_bits: int
) -> None:
    # ONNX Runtime's parser finds all three to be the same.
    plain = adding() + field(_GRAPH, field(number, content))
    with pytest.raises(ConfigError, match=r"another file|other domain|the domain"):
        refuse_unsafe_model(plain, "policy")
    for disguised in (
        adding() + field(_GRAPH, field(number, content, high_bits)),
        adding() + field(_GRAPH, field(number, content), high_bits),
    ):
        with pytest.raises(ConfigError, match="are no ONNX model"):
            refuse_unsafe_model(disguised, "policy")


def test_a_model_of_onnx_runtimes_own_format_is_never_opened(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.optimized_model_filepath = str(tmp_path / "adding.ort")
    ort.InferenceSession(adding(), options)
    made = (tmp_path / "adding.ort").read_bytes()
    assert ort.InferenceSession(made).run(None, {"x": np.ones(1, np.float32)})[0] == [2.0]
    with pytest.raises(Exception, match="protobuf parsing failed"):
        open_session(made)
    assert open_session(adding()).run(None, {"x": np.ones(1, np.float32)})[0] == [2.0]
