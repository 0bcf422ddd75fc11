"""A policy in one piece, to be sent: the files of its folder, or its weights alone.

A server packs, a client unpacks; what the files are and how they are checked is in `bundle_files` and `bundle`. Both
pieces carry hashes, so that a damaged one is refused. Nothing here knows connections, and nothing in a piece is
executed or imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from menv.errors import ConfigError
from menv.loop import bundle_files
from menv.loop.bundle import Rehearsals, policy_files, policy_of
from menv.loop.bundle_files import FILES, MANIFEST
from menv.loop.net_policy import NetPolicy
from menv.plain_data import HEADER_SIZE, check_header

Array = npt.NDArray[Any]

_BUNDLE, _WEIGHTS = "packed policy", "packed weights"
_NAMES = {MANIFEST, *FILES}
_HASH = "sha256"
_AGAIN = "ask for it again"


def pack_bundle(
    policy: NetPolicy, trained: Mapping[str, Any] | None = None, rehearsals: Rehearsals | None = None
) -> bytes:
    """Return a policy as one msgpack map of file names to bytes: what `export_checkpoint` writes into a folder.

    Takes as long as writing the folder does, because what the policy has to answer is computed; pack weights where a
    client has the rest already.

    Args:
        policy: A policy of networks.
        trained: JSON values about how it was trained.
        rehearsals: Those of bundles that were packed before; their networks still live.

    Raises:
        ConfigError: The policy has no form on disk.
    """
    return msgspec.msgpack.encode(policy_files(policy, trained or {}, rehearsals))


def policy_from_bytes(blob: bytes) -> NetPolicy:
    """Return the policy in what `pack_bundle` returned, ready to act; neither torch nor onnx is needed.

    Raises:
        ConfigError: Something is missing, damaged, too large, newer than this version, or not what it should be: the
            same checks as `Policy.from_checkpoint` makes.
    """
    files = _files(blob)
    return policy_of(_manifest(files), files, _BUNDLE)


def pack_weights(policy: NetPolicy) -> bytes:
    """Return a policy's weights as safetensors, with a hash among their metadata."""
    weights = {name: np.ascontiguousarray(value) for name, value in policy.get_weights().items()}
    return save(weights, {_HASH: _hash(weights)})


def unpack_weights(blob: bytes) -> dict[str, Array]:
    """Return the weights in what `pack_weights` returned, for `policy.set_weights`.

    Raises:
        ConfigError: They are damaged.
    """
    try:
        check_header(blob)
        weights: dict[str, Array] = load(blob)
        size = int.from_bytes(blob[:HEADER_SIZE], "little")
        told = json.loads(blob[HEADER_SIZE : HEADER_SIZE + size]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{_WEIGHTS}: {len(blob)} bytes are no safetensors, expected what pack_weights returned; {_AGAIN}"
        ) from error
    if told.get(_HASH) != _hash(weights):
        raise ConfigError(f"{_WEIGHTS}: the sha256 differs, expected weights as they were packed; {_AGAIN}")
    return weights


def _manifest(files: Mapping[str, bytes]) -> dict[str, Any]:
    manifest = bundle_files.parse_manifest(files[MANIFEST], f"{_BUNDLE}/{MANIFEST}")
    bundle_files.check_files(files, manifest, _BUNDLE)
    return manifest


def _files(blob: bytes) -> dict[str, bytes]:
    try:
        files = msgspec.msgpack.decode(blob, type=dict[str, bytes])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{_BUNDLE}: {len(blob)} bytes are no msgpack map of names to bytes, expected what pack_bundle returned; "
            f"{_AGAIN}"
        ) from error
    if set(files) != _NAMES:
        raise ConfigError(
            f"{_BUNDLE}: {len(files)} files, expected exactly {', '.join((MANIFEST, *FILES))}; {_AGAIN}"
        )
    for name, data in files.items():
        bundle_files.check_size(name, len(data), f"{_BUNDLE}/{name}")
    return files


def _hash(weights: Mapping[str, Array]) -> str:
    found = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        found.update(json.dumps([name, value.dtype.str, value.shape]).encode())
        found.update(np.ascontiguousarray(value).data)
    return found.hexdigest()
