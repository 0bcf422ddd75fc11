"""What is wrong with a policy on disk is said in one line that names the file, and never found out by its actions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from safetensors.numpy import load_file, save_file

from menv import Policy
from menv.errors import ConfigError
from menv.inference.model_check import refuse_unsafe_model
from menv.inference.onnx_backend import open_session
from tests.bundles.cases import algorithm_of, observations, same

NAMES = [
    "policy.json", "weights.safetensors", "golden.safetensors", "acting.onnx", "greedy.onnx", "evaluate.onnx",
]  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "policy"
    with algorithm_of("mlp") as algorithm:
        algorithm.export_policy_checkpoint(folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "policy")
    return tmp_path / "policy"


def sign(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda manifest: None) -> None:
    """Change the manifest and make all hashes right again, as somebody would who means harm."""
    manifest = json.loads((folder / "policy.json").read_text("utf-8"))
    manifest.pop("sha256")
    for name in NAMES[1:]:
        if (folder / name).is_file():
            manifest["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    change(manifest)
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "policy.json").write_text(json.dumps(manifest), "utf-8")


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        Policy.from_checkpoint(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, 3) for name in ("policy.json", "golden.safetensors", "greedy.onnx", "evaluate.onnx")),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in NAMES),
    ],
)
def test_a_changed_byte_anywhere_is_refused_or_changes_nothing(name: str, every: int, folder: Path) -> None:
    policy = Policy.from_checkpoint(folder)
    assert isinstance(policy, Policy)
    shown = observations(policy, 5)
    path, accepted, named = folder / name, 0, 0
    data = path.read_bytes()
    places = range(0, len(data), every)
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            other = Policy.from_checkpoint(folder)
        except ConfigError as error:
            named += name in str(error)
            continue
        accepted += 1
        assert isinstance(other, Policy)
        assert same(*(list(each.compute_actions(shown, explore=False)[0]) for each in (policy, other)))
    assert named + accepted == len(places)
    # White space between the entries of the manifest means nothing.
    assert accepted == 0 or (name == "policy.json" and accepted < len(places) / 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_or_shorter_file_is_named(name: str, folder: Path) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    assert name in refused(folder)
    (folder / name).unlink()
    assert name in refused(folder)


def test_a_newer_format_asks_for_a_newer_version_whatever_else_is_in_it(folder: Path) -> None:
    (folder / "policy.json").write_text(json.dumps({"type": "menv.policy", "format": 2, "new": []}), "utf-8")
    assert "policy.json: format 2" in refused(folder)


@pytest.mark.parametrize(("change", "said"), [
    (lambda m: m["observation_space"].update(space="graph"), "'graph'"),
    (lambda m: m["observation_space"].update(shape=[1 << 40]), "1099511627776"),
    (lambda m: m["observation_space"].update(shape=[4]), "agent_connectors"),
    (lambda m: m["action_space"].update(n=3), "head"),
    (lambda m: m["head"].update(kind="gaussian"), "head"),
    (lambda m: m["head"].update(kind="magic" * 900), "'magicmagic"),
    (lambda m: m.update(mask_width=2), "mask_width"),
    (lambda m: m.update(state_sizes=[4]), "state_sizes"),
    (lambda m: m.update(state_sizes=[1 << 24] * 64), "state_sizes"),
    (lambda m: m.update(state_sizes=[1 << 60]), "state_sizes"),
    (lambda m: m.update(state_sizes="4"), "state_sizes"),
    (lambda m: m.update(seed=True), "seed"),
    (lambda m: m["agent_connectors"].append(["os.system", {}]), "agent_connectors: connector 'os.system'"),
    (lambda m: m["action_connectors"].append(["Mine", {}]), "action_connectors: connector 'Mine'"),
    (lambda m: m["files"].update({"../policy.json": "0"}), "files"),
    (lambda m: m["files"].pop("greedy.onnx"), "files"),
    (lambda m: m.pop("policy_id"), "policy_id"),
    (lambda m: m.update(policy_id="../../x"), "id '../../x'"),
    (lambda m: m.update(type="else"), "menv.policy"),
    (lambda m: m.update(format=True), "format True"),
])  # fmt: skip
def test_a_forged_manifest_is_refused(change: Callable[[Any], Any], said: str, folder: Path) -> None:
    sign(folder, change)
    assert said in refused(folder)


@pytest.mark.parametrize("text", [
    "", "[]", "{", "null", '{"format": NaN}', "[" * 100_000, '{"format": ' + "9" * 5000 + "}", "\udcff",
])  # fmt: skip
def test_a_manifest_that_is_not_a_json_object_is_refused(text: str, folder: Path) -> None:
    (folder / "policy.json").write_text(text, "utf-8", errors="surrogateescape")
    assert "policy.json: " in refused(folder)


def test_different_golden_outputs_name_the_difference_and_the_versions(folder: Path) -> None:
    swapped = {"Tanh": "Relu", "Relu": "Tanh"}
    for name in ("acting.onnx", "evaluate.onnx", "greedy.onnx"):
        model = onnx.load(folder / name)
        for node in model.graph.node:
            node.op_type = swapped.get(node.op_type, node.op_type)
        onnx.save(model, folder / name)
    sign(folder)
    text = refused(folder)
    assert "'written_with' in policy.json" in text
    assert "golden.safetensors: 'dist_inputs'" in text
    assert "onnxruntime" in text
    weights = load_file(folder / "weights.safetensors")
    weights.pop("policy.out.bias")
    save_file(weights, folder / "weights.safetensors")
    sign(folder)
    assert "policy.out.bias" in refused(folder)


def _foreign(model: Any) -> None:
    model.graph.node[0].domain = "com.example"


def _foreign_opset(model: Any) -> None:
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))


def _outside(model: Any) -> None:
    tensor = onnx.helper.make_tensor("secret", onnx.TensorProto.FLOAT, [1], b"1234", raw=True)
    onnx.external_data_helper.set_external_data(tensor, "../../../etc/passwd")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    model.graph.initializer.append(tensor)


def _nested(model: Any) -> None:
    body = onnx.helper.make_graph([], "body", [], [])
    model.graph.node.append(onnx.helper.make_node("Loop", [], [], body=body))


def _function(model: Any) -> None:
    opset = onnx.helper.make_opsetid("", 17)
    model.functions.append(onnx.helper.make_function("mine", "f", [], [], [], [opset]))


@pytest.mark.parametrize(("change", "said"), [
    (_foreign, "needs operators of the domain 'com.example'"),
    (_foreign_opset, "needs operators of the domain 'com.microsoft'"),
    (_outside, "stores tensors in another file"),
    (_nested, "needs the operator 'Loop'"),
    (_function, "holds functions"),
])  # fmt: skip
def test_a_graph_that_refers_to_other_files_is_refused_before_it_is_opened(
    change: Callable[[Any], None], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(folder / "greedy.onnx")
    change(model)
    (folder / "greedy.onnx").write_bytes(model.SerializeToString())
    sign(folder)
    opened: list[bytes] = []
    monkeypatch.setattr("menv.inference.onnx_backend.open_session", opened.append)
    assert said in refused(folder)
    assert not opened


def test_random_graph_bytes_with_right_hashes_raise_errors_at_worst(folder: Path) -> None:
    data = (folder / "acting.onnx").read_bytes()
    obs = Policy.from_checkpoint(folder).observation_space.sample()  # type: ignore[union-attr]
    refused_ones, step = 0, 7
    for place in range(0, len(data), step):
        changed = bytearray(data)
        changed[place] ^= 1 << (place + step) % 8
        (folder / "acting.onnx").write_bytes(changed)
        sign(folder)
        try:
            policy: Any = Policy.from_checkpoint(folder)
        except ConfigError:
            refused_ones += 1
        else:
            assert policy.action_space.contains(policy.act(obs, explore=True))
    assert refused_ones > 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_links_and_pipes_in_place_of_files_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes((folder / "greedy.onnx").read_bytes())
    (folder / "greedy.onnx").unlink()
    (folder / "greedy.onnx").symlink_to(tmp_path / "elsewhere")
    assert "greedy.onnx: " in refused(folder)
    (folder / "greedy.onnx").unlink()
    os.mkfifo(folder / "greedy.onnx")
    assert "greedy.onnx: " in refused(folder)
    (folder / "greedy.onnx").unlink()
    (folder / "greedy.onnx").mkdir()
    assert "greedy.onnx: " in refused(folder)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_are_not_numbers_are_refused_before_they_act(folder: Path, number: float) -> None:
    weights = load_file(folder / "weights.safetensors")
    weights["policy.0.bias"][1] = number
    save_file(weights, folder / "weights.safetensors")
    sign(folder)
    assert re.search(f"'policy.0.bias' .*{'NaN' if np.isnan(number) else 'inf'}", refused(folder))


# Graphs that look otherwise to who scans them than to who opens them are refused.


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
    with pytest.raises(ConfigError, match=r"domain|file"):
        refuse_unsafe_model(plain, "policy")
    for disguised in (
        adding() + field(_GRAPH, field(number, content, high_bits)),
        adding() + field(_GRAPH, field(number, content), high_bits),
    ):
        with pytest.raises(ConfigError):
            refuse_unsafe_model(disguised, "policy")


def test_a_model_of_onnx_runtimes_own_format_is_never_opened(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.optimized_model_filepath = str(tmp_path / "adding.ort")
    ort.InferenceSession(adding(), options)
    made = (tmp_path / "adding.ort").read_bytes()
    assert ort.InferenceSession(made).run(None, {"x": np.ones(1, np.float32)})[0] == [2.0]
    with pytest.raises(Exception, match="INVALID_PROTOBUF"):
        open_session(made)
    assert open_session(adding()).run(None, {"x": np.ones(1, np.float32)})[0] == [2.0]
