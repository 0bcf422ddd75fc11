"""A policy that was sent in one piece is the policy, and a damaged piece is refused."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from menv.errors import ConfigError
from menv.inference.policy_bundle import (
    FILES,
    MANIFEST,
    pack_bundle,
    pack_weights,
    policy_from_bytes,
    unpack_weights,
)
from tests.bundles.cases import algorithm_of


@pytest.fixture(scope="module")
def small() -> tuple[bytes, bytes]:
    """Return a packed policy, and its packed weights."""
    with algorithm_of("mlp") as algorithm:
        policy: Any = algorithm.get_policy()
        return pack_bundle(policy, {"env_steps": 7}), pack_weights(policy)


def test_the_folder_of_a_piece_is_what_would_have_been_exported(tmp_path: Path) -> None:
    with algorithm_of("masked") as algorithm:
        policy: Any = algorithm.get_policy()
        exported = policy.export_checkpoint(tmp_path / "exported", trained={"env_steps": 3})
        blob = pack_bundle(policy, {"env_steps": 3})
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == unpacked(blob)


@pytest.mark.parametrize("place", [0, 1])
def test_a_piece_that_is_cut_is_refused(place: int, small: tuple[bytes, bytes]) -> None:
    blob, read = small[place], (policy_from_bytes, unpack_weights)[place]
    for size in {*range(0, len(blob), 97), *range(20), len(blob) - 1}:
        with pytest.raises(ConfigError, match="expected"):
            read(blob[:size])


def unpacked(blob: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: Any, compression: int = zipfile.ZIP_STORED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return data.getvalue()


MADE_UP: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "another name": (lambda files: {**files, "../evil": b""}.items(), "7 files"),
    "a path": (lambda files: {"../policy.json": files.pop(MANIFEST), **files}.items(), "6 files"),
    "a file less": (lambda files: [(name, files[name]) for name in FILES], "5 files"),
    "a large file": (lambda files: {**files, "acting.onnx": bytes((64 << 20) + 1)}.items(), "67114036"),
    "another graph": (
        lambda files: {**files, "acting.onnx": files["greedy.onnx"]}.items(), "acting.onnx: .*sha256"
    ),
    "no manifest": (lambda files: {**files, MANIFEST: b"{}"}.items(), "policy.json: "),
}  # fmt: skip


@pytest.mark.parametrize("case", MADE_UP)
def test_a_forged_piece_is_refused(case: str, small: tuple[bytes, bytes]) -> None:
    change, said = MADE_UP[case]
    with pytest.raises(ConfigError, match=said):
        policy_from_bytes(packed(change(unpacked(small[0]))))


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("blob", [
    with_header({"w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"12"),
    with_header({"w": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 4]}}, b"1234"),
    with_header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, b"1234"),
    with_header({"__metadata__": {"sha256": 3}}),
    with_header([]),
    struct.pack("<Q", 1 << 63),
    b"",
])  # fmt: skip
def test_forged_weights_are_refused(blob: bytes) -> None:
    with pytest.raises(ConfigError, match="packed"):
        unpack_weights(blob)
