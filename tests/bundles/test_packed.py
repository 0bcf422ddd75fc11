"""A policy that was sent in one piece is the policy, and a damaged piece is refused."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from safetensors.numpy import load, save

from menv.algorithms import PPO
from menv.errors import ConfigError
from menv.inference.policy_bundle import (
    FILES,
    MANIFEST,
    pack_bundle,
    pack_weights,
    policy_from_bytes,
    unpack_weights,
)
from tests.algorithms.test_custom_model import Moody
from tests.bundles.cases import KINDS, algorithm_of, few_kinds, observations, same
from tests.house.sources import ROOT


def answers(policy: Any, shown: list[Any]) -> list[Any]:
    return [list(policy.compute_actions(shown, explore=False)[0]), policy.get_weights()]


@pytest.fixture(scope="module")
def small() -> tuple[bytes, bytes]:
    """Return a packed policy, and its packed weights."""
    with algorithm_of("mlp") as algorithm:
        policy: Any = algorithm.get_policy()
        return pack_bundle(policy, {"env_steps": 7}), pack_weights(policy)


@few_kinds
@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_was_sent_answers_as_the_one_that_was_packed(kind: str) -> None:
    with algorithm_of(kind) as algorithm:
        policy: Any = algorithm.get_policy(next(iter(algorithm.get_weights())))
        sent = policy_from_bytes(pack_bundle(policy))
        shown = observations(policy, 9)
        assert same(answers(sent, shown), answers(policy, shown))
        for value in (changed := policy.get_weights()).values():
            value *= 0.5
        policy.set_weights(changed)
        assert not same(answers(sent, shown)[1], answers(policy, shown)[1])
        sent.set_weights(unpack_weights(pack_weights(policy)))
        assert same(answers(sent, shown), answers(policy, shown))


def test_the_folder_of_a_piece_is_what_would_have_been_exported(tmp_path: Path) -> None:
    with algorithm_of("masked") as algorithm:
        policy: Any = algorithm.get_policy()
        exported = policy.export_checkpoint(tmp_path / "exported", trained={"env_steps": 3})
        blob = pack_bundle(policy, {"env_steps": 3})
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == msgspec.msgpack.decode(blob)


@pytest.mark.parametrize("place", [0, 1])
def test_a_changed_byte_anywhere_is_refused_or_changes_nothing(
    place: int, small: tuple[bytes, bytes]
) -> None:
    blob, policy = small[place], policy_from_bytes(small[0])
    read: Callable[[bytes], Any] = policy_from_bytes if place == 0 else unpack_weights
    shown, accepted = observations(policy, 5), 0
    wanted = answers(policy, shown)
    for at in range(len(blob)):
        changed = bytearray(blob)
        changed[at] ^= 1 << at % 8
        try:
            found = read(bytes(changed))
        except ConfigError as error:
            text = str(error)
            assert text.startswith("packed ")
            assert "\n" not in text
            assert len(text) < 600
            continue
        accepted += 1
        assert same(answers(found, shown) if place == 0 else found, wanted[place:][0])
    # White space between the entries of JSON means nothing.
    assert accepted < len(blob) / 10


@pytest.mark.parametrize("place", [0, 1])
def test_a_piece_that_is_cut_or_longer_is_refused(place: int, small: tuple[bytes, bytes]) -> None:
    blob, read = small[place], (policy_from_bytes, unpack_weights)[place]
    for size in {*range(0, len(blob), 97), *range(20), len(blob) - 1}:
        with pytest.raises(ConfigError, match="expected"):
            read(blob[:size])
    for more in (b"\0", b"\xc0", blob):
        with pytest.raises(ConfigError, match="expected"):
            read(blob + more)


def packed(files: Any) -> bytes:
    return msgspec.msgpack.encode(files)


@pytest.mark.parametrize(("change", "said"), [
    (lambda files: files | {"../evil": b""}, "7 files, expected exactly policy.json, weights.safetensors"),
    (lambda files: {"../policy.json": files.pop(MANIFEST), **files}, "6 files, expected exactly policy.json"),
    (lambda files: {name: files[name] for name in FILES}, "5 files, expected exactly policy.json"),
    (lambda files: files | {"acting.onnx": "text"}, "are no msgpack map of names to bytes"),
    (lambda files: files | {7: b""}, "are no msgpack map of names to bytes"),
    (lambda files: [], "are no msgpack map of names to bytes"),
    (lambda files: files | {"acting.onnx": bytes((64 << 20) + 1)}, "67108865 bytes, expected at most 67108864"),
    (lambda files: files | {"acting.onnx": files["greedy.onnx"]}, "packed policy/acting.onnx: its sha256 differs"),
    (lambda files: files | {MANIFEST: b"{}"}, "packed policy/policy.json: is no manifest of a policy"),
])  # fmt: skip
def test_a_piece_that_was_made_up_is_refused(
    change: Callable[[Any], Any], said: str, small: tuple[bytes, bytes]
) -> None:
    blob = packed(change(msgspec.msgpack.decode(small[0])))
    with pytest.raises(ConfigError, match=said):
        policy_from_bytes(blob)


def test_deeply_nested_bytes_are_refused() -> None:
    for blob in (
        b"\x81" * 100_000,
        b"\x91" * 100_000,
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1a\xc6\xff\xff\xff\xff",
    ):
        with pytest.raises(ConfigError, match="are no msgpack map of names to bytes"):
            policy_from_bytes(blob)


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("blob", [
    save({"w": np.zeros(3, np.float32)}),
    save({"w": np.zeros(3, np.float32)}, {"sha256": "0" * 64}),
    save({"w": np.zeros(3, np.float32)}, {"other": "x"}),
    with_header({"w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"12"),
    with_header({"w": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 4]}}, b"1234"),
    with_header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, b"1234"),
    with_header({"__metadata__": None}),
    with_header({"__metadata__": {"sha256": 3}}),
    with_header([]),
    with_header({}),
    struct.pack("<Q", 1 << 63),
    b"",
])  # fmt: skip
def test_weights_that_were_made_up_are_refused(blob: bytes) -> None:
    with pytest.raises(ConfigError, match=r"packed weights: .*, expected"):
        unpack_weights(blob)


def test_weights_whose_shape_was_changed_are_refused(small: tuple[bytes, bytes]) -> None:
    assert b"[3,8]" in small[1]
    with pytest.raises(ConfigError, match="the sha256 differs"):
        unpack_weights(small[1].replace(b"[3,8]", b"[8,3]"))


def test_packed_weights_are_plain_safetensors_for_everybody_else(small: tuple[bytes, bytes]) -> None:
    assert same(load(small[1]), policy_from_bytes(small[0]).get_weights())


def test_weights_of_another_network_are_refused_by_the_policy(small: tuple[bytes, bytes]) -> None:
    with algorithm_of("continuous") as algorithm:
        policy: Any = algorithm.get_policy()
        other = unpack_weights(pack_weights(policy))
    with pytest.raises(ConfigError, match="weights do not fit the architecture"):
        policy_from_bytes(small[0]).set_weights(other)


@pytest.mark.slow
def test_policies_without_a_form_on_disk_are_not_packed() -> None:
    with PPO(env="CartPole-v1", config={"model": {"custom_model": Moody}}) as algorithm:
        policy: Any = algorithm.get_policy()
        with pytest.raises(ConfigError, match=r"custom_model Moody: torch\.onnx cannot express it"):
            pack_bundle(policy)
        assert same(unpack_weights(pack_weights(policy)), policy.get_weights())


def test_whoever_unpacks_needs_neither_torch_nor_onnx(small: tuple[bytes, bytes], tmp_path: Path) -> None:
    (tmp_path / "policy").write_bytes(small[0])
    (tmp_path / "weights").write_bytes(small[1])
    code = (
        "import pathlib, sys\n"
        "from menv.inference.policy_bundle import policy_from_bytes, unpack_weights\n"
        "policy = policy_from_bytes(pathlib.Path('policy').read_bytes())\n"
        "policy.set_weights(unpack_weights(pathlib.Path('weights').read_bytes()))\n"
        "assert policy.act(policy.observation_space.sample()) in policy.action_space\n"
        "assert not {'torch', 'onnx', 'starlette', 'uvicorn', 'ray'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_how_it_was_trained_is_in_the_piece(small: tuple[bytes, bytes]) -> None:
    manifest = json.loads(msgspec.msgpack.decode(small[0])[MANIFEST])
    assert manifest["trained"]["env_steps"] == 7
    assert isinstance(policy_from_bytes(small[0]).action_space, gym.spaces.Discrete)
