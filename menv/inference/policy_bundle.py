"""Policies on disk: a folder, or one message, with everything that is needed to act, and no code.

`NetworkPolicy.export_checkpoint` writes it, `Policy.from_checkpoint` reads it. The manifest describes spaces,
connectors, recurrent layout and action head, and holds the hash of each file and of itself. Names of files are
constants; names in files are looked up among registered ones, never imported. Servers send the folder as a zip archive.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import gymnasium as gym
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.numpy import load, save

import menv
from menv import plain_files
from menv.connectors.action_output import ActionOutput, flat_action_space
from menv.connectors.connector import ConnectorContext
from menv.connectors.obs_preprocessor import ObsPreprocessor
from menv.connectors.pipeline import (
    ActionConnectorPipeline,
    AgentConnectorPipeline,
    PolicyConnectors,
    action_plan,
)
from menv.errors import ConfigError, UnknownNameError
from menv.inference.acting_graphs import GraphKind, StoredGraphs
from menv.inference.backend import Floats, check_weights
from menv.inference.golden import MOST_ROWS, answer, difference, make_golden
from menv.inference.heads.head import ActionHead
from menv.inference.heads.known import head_for_space, head_from_json
from menv.inference.model_check import refuse_unsafe_model
from menv.inference.network_policy import NetworkGroup, NetworkPolicy
from menv.inference.onnx_backend import OnnxBackend
from menv.policy_spec import check_policy_id
from menv.serialization import SpaceDecoder, check_header, read_json, space_to_json

FORMAT = 1
"""Version of the layout: raised whenever older versions could not read it."""

MANIFEST = "policy.json"
WEIGHTS = "weights.safetensors"
GOLDEN = "golden.safetensors"
ACTING = "acting.onnx"
GREEDY = "greedy.onnx"
EVALUATE = "evaluate.onnx"
FILES = (WEIGHTS, GOLDEN, ACTING, GREEDY, EVALUATE)
"""All files except the manifest."""

_KIND = "menv.policy"
_AGAIN = "copy the folder again"
_MEBIBYTE = 1 << 20
_MOST_BYTES = {MANIFEST: 48 * _MEBIBYTE, WEIGHTS: 2048 * _MEBIBYTE, GOLDEN: 512 * _MEBIBYTE}
_MOST_BYTES_OF_A_GRAPH = 32 * _MEBIBYTE


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write a policy's files into a temporary folder and rename it once everything is synced."""
    refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.parent / f".{folder.name[:100]}.{secrets.token_hex(6)}.tmp"
    draft.mkdir()
    try:
        for name in FILES:
            _write(draft / name, contents[name])
        _write(draft / MANIFEST, contents[MANIFEST])
        sync(draft)
        # An empty folder that was created meanwhile is replaced; a non-empty one makes this fail.
        refuse_existing(folder)
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync(folder.parent)


def manifest_text(manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """Return the text of a manifest, with format and hashes added."""
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in FILES}
    content = {"format": FORMAT, "type": _KIND, **manifest, "files": hashes}
    try:
        content["sha256"] = _own_hash(content)
        return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"export_checkpoint: the manifest cannot be JSON ({error}), expected str, int, float, bool, None, lists "
            "and dicts; convert what you gave as trained"
        ) from error


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest of a policy's folder and the bytes of each of `FILES`, all checked."""
    manifest = parse_manifest(_read(folder, MANIFEST), f"{folder / MANIFEST}")
    files = {name: _read(folder, name) for name in FILES}
    check_files(files, manifest, f"{folder}")
    return manifest, files


def parse_manifest(data: bytes, where: str) -> dict[str, Any]:
    """Return the manifest in the bytes of its file."""
    try:
        content = read_json(data)
    except (ValueError, RecursionError) as error:
        why = "" if isinstance(error, json.JSONDecodeError) else f" ({error!s:.80})"
        raise ConfigError(
            f"{where}: is not JSON{why}, expected what export_checkpoint wrote; {_AGAIN}"
        ) from error
    if not isinstance(content, dict) or content.get("type") != _KIND:
        raise ConfigError(
            f"{where}: is not a manifest of a policy, expected type {_KIND!r}; name the folder of a policy"
        )
    version = content.get("format")
    if type(version) is int and version > FORMAT:
        raise ConfigError(f"{where}: format {version}, expected at most {FORMAT}; install a newer menv")
    if type(version) is not int or version < 1:
        raise ConfigError(f"{where}: format {version!r:.40}, expected 1 to {FORMAT}; {_AGAIN}")
    if content.get("sha256") != _own_hash(content):
        raise ConfigError(f"{where}: its sha256 differs, expected the unchanged file; {_AGAIN}")
    hashes = content.get("files")
    if not isinstance(hashes, dict) or set(hashes) != set(FILES):
        raise ConfigError(
            f"{where}: 'files' does not list exactly {', '.join(FILES)}, expected exactly these; export the policy "
            "again"
        )
    return content


def check_files(files: Mapping[str, bytes], manifest: Mapping[str, Any], where: str) -> None:
    """Compare the bytes of each of `FILES` with the hashes in a manifest."""
    for name in FILES:
        if hashlib.sha256(files[name]).hexdigest() != manifest["files"][name]:
            raise ConfigError(
                f"{where}/{name}: its sha256 differs from the one in {MANIFEST}, expected the unchanged file; "
                f"{_AGAIN}"
            )


def _most_bytes(name: str) -> int:
    return _MOST_BYTES.get(name, _MOST_BYTES_OF_A_GRAPH)


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        return plain_files.read(path, _most_bytes(name))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}), expected a file that export_checkpoint wrote; {_AGAIN}"
        ) from error


def copy_folder(source: Path, target: Path, copy: Callable[[str, str], object] = shutil.copy2) -> None:
    """Copy the files of a policy, which have been checked; other files stay where they are."""
    known = {MANIFEST, *FILES}
    shutil.copytree(source, target, ignore=lambda _, names: {*names} - known, copy_function=copy)


def refuse_existing(folder: Path) -> None:
    """Refuse to write where something is."""
    if os.path.lexists(folder):
        raise ConfigError(f"export_checkpoint: {folder} exists, expected a new folder; choose another name")


def _own_hash(content: Mapping[str, Any]) -> str:
    """Return the hash of a manifest without the hash in it; the layout of its text does not matter."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        # Windows cannot open folders, and does not delay renames.
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_GRAPHS: dict[GraphKind, str] = {"act": ACTING, "greedy": GREEDY, "evaluate": EVALUATE}
_CONNECTORS = "agent_connectors", "action_connectors"
_Listed: TypeAlias = list[tuple[Annotated[str, Meta(max_length=200)], Any]]
_Size: TypeAlias = Annotated[int, Meta(gt=0, le=1 << 24)]
P = TypeVar("P", AgentConnectorPipeline, ActionConnectorPipeline)


ExportCache: TypeAlias = dict[int, tuple[dict[GraphKind, bytes], OnnxBackend]]
"""Graphs and a back-end for each network, by its `id`, shared by policies that are exported one after the other."""


def _stored(models: Mapping[GraphKind, bytes]) -> StoredGraphs:
    """Return the graphs of one policy; each has a mask if the observations have one."""
    of_kinds = {(kind, False, masked): models[kind] for kind in models for masked in (False, True)}
    return StoredGraphs(False, of_kinds, bounded=True)


def write_policy(
    policy: NetworkPolicy, folder: Path, trained: Mapping[str, Any], export_cache: ExportCache | None = None
) -> Path:
    """Write a policy into a new folder and return that; see `Policy.export_checkpoint`."""
    refuse_existing(folder)
    write_folder(folder, policy_files(policy, trained, export_cache))
    return folder


def policy_files(
    policy: NetworkPolicy, trained: Mapping[str, Any], export_cache: ExportCache | None = None
) -> dict[str, bytes]:
    """Return the bytes of the manifest of a policy and of each of its files, by name; see `write_policy`."""
    where, networks = f"policy {policy.policy_id!r}", policy.networks
    graphs = networks.graphs()
    if graphs is None:
        raise ConfigError(
            f"{where}: its network has no acting graphs, expected a network with graphs; describe it by fcnet_hiddens, "
            "conv_filters, use_lstm or custom_model, or save get_weights() with safetensors"
        )
    weights = networks.backend.get_weights(policy.index)
    cache = {} if export_cache is None else export_cache
    if id(networks) not in cache:
        masked = networks.preprocess.mask_width > 0
        built = {kind: graphs.build(kind, False, masked) for kind in _GRAPHS}
        acting = OnnxBackend(_stored(built), networks.backend.head, [weights], sum(networks.state_sizes))
        cache[id(networks)] = built, acting
    models, acting = cache[id(networks)]
    for kind, model in models.items():
        refuse_unsafe_model(model, f"{where}, {_GRAPHS[kind]}")
    output = networks.connectors[policy.index].output(networks.action_space)
    golden = make_golden(networks, acting, weights, output)
    wrong = difference(golden, answer(networks, networks.backend, golden, output, policy.index))
    if wrong:
        raise ConfigError(
            f"{where}: its ONNX graphs disagree with its current runtime ({wrong}), expected equal answers; train it "
            "with "
            '"inference": "onnx" to see where'
        )
    files = {
        WEIGHTS: save({name: np.ascontiguousarray(value) for name, value in weights.items()}),
        GOLDEN: save({name: np.ascontiguousarray(value) for name, value in golden.items()}),
        **{_GRAPHS[kind]: model for kind, model in models.items()},
    }
    return {MANIFEST: manifest_text(_manifest(policy, trained), files), **files}


def read_policy(folder: Path) -> NetworkPolicy:
    """Return the policy in a folder."""
    return policy_of(*read_folder(folder), f"{folder}")


def load_into(policy: NetworkPolicy, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Give a policy the weights and the connectors of one with the same network; the hashes have been checked."""
    check_header(files[WEIGHTS])
    policy.set_weights(load(files[WEIGHTS]))
    own, stored = policy.networks.connectors[policy.index], [manifest[kind] for kind in _CONNECTORS]
    if json.dumps([own.agent.to_state()[1], own.action.to_state()[1]]) != json.dumps(stored):
        policy.set_connectors_state(stored)


def policy_of(manifest: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> NetworkPolicy:
    """Return the policy in files whose hashes have been checked; `where` begins the messages."""
    for name in _GRAPHS.values():
        refuse_unsafe_model(files[name], f"{where}/{name}")
    try:
        read = msgspec.convert(manifest, _Manifest)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}/{MANIFEST}: {error}; export the policy again") from error
    try:
        for name in (WEIGHTS, GOLDEN):
            check_header(files[name])
        networks = _networks(read, files, f"{where}/{MANIFEST}")
        golden = load(files[GOLDEN])
        few = all(value.shape and len(value) <= MOST_ROWS for value in golden.values())
        _require(f"{where}/{GOLDEN}", "rows", few)
        remembered = golden["state"].shape[1:] if "state" in golden else (0,)
        _require(f"{where}/{MANIFEST}", "state_sizes", remembered == (sum(networks.state_sizes),))
        wrong = difference(golden, answer(networks, networks.backend, golden))
    except ConfigError:
        raise
    except Exception as error:
        # The hashes are right, so it was written like this; ONNX Runtime and numpy then raise errors of any kind.
        why = str(error).replace("\n", " ")
        raise ConfigError(
            f"{where}: cannot act ({type(error).__name__}: {why:.120}), expected files that belong together; export "
            "the policy again"
        ) from error
    if wrong:
        raise ConfigError(
            f"{where}/{GOLDEN}: {wrong}, expected the outputs that were recorded; install the versions that "
            f"'written_with' in {MANIFEST} names, instead of {_versions()}, or export the policy again"
        )
    policy = NetworkPolicy(networks, 0, {}, read.seed)
    policy.explore = manifest.get("explore") is not False
    return policy


def _manifest(policy: NetworkPolicy, trained: Mapping[str, Any]) -> dict[str, Any]:
    networks = policy.networks
    own = networks.connectors[policy.index]
    return {
        "policy_id": policy.policy_id,
        "observation_space": space_to_json(networks.observation_space),
        "action_space": space_to_json(networks.action_space),
        "agent_connectors": own.agent.to_state()[1],
        "action_connectors": own.action.to_state()[1],
        "head": networks.backend.head.to_json(),
        "mask_width": networks.preprocess.mask_width,
        "row_width": networks.row_width,
        "state_sizes": list(networks.state_sizes),
        "seed": int(policy.seed),
        "explore": policy.explore,
        "trained": {"algorithm": policy.algorithm, "env_steps": None, **trained},
        "written_with": _versions(),
    }


class _Manifest(msgspec.Struct):
    """The entries of a manifest that are needed to act."""

    policy_id: str
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    agent_connectors: _Listed
    action_connectors: _Listed
    head: dict[str, Any]
    mask_width: int
    row_width: int
    state_sizes: Annotated[tuple[_Size, ...], Meta(max_length=64)]
    seed: int


def _networks(manifest: _Manifest, files: Mapping[str, bytes], where: str) -> NetworkGroup:
    spaces = SpaceDecoder()
    observation_space = spaces.read(manifest.observation_space, f"{where}, observation_space")
    action_space = spaces.read(manifest.action_space, f"{where}, action_space")
    head, state_sizes = head_from_json(manifest.head), manifest.state_sizes
    # Policies of groups know which members are there.
    marked = head.members
    preprocess = ObsPreprocessor(observation_space, action_space, marked)
    states = [np.zeros(size, np.float32) for size in state_sizes]
    ctx = ConnectorContext(
        {}, states, observation_space, action_space, is_policy_recurrent=bool(states), marked=marked
    )
    connectors = PolicyConnectors(
        _restored(AgentConnectorPipeline, ctx, manifest.agent_connectors, f"{where}: agent_connectors"),
        _restored(ActionConnectorPipeline, ctx, manifest.action_connectors, f"{where}: action_connectors"),
    )
    plan = action_plan(connectors.action)
    output = ActionOutput(action_space, normalize=plan.normalize, clip=plan.clip)
    _require(where, "head", _fits(head, output.space))
    _require(where, "mask_width", manifest.mask_width == preprocess.mask_width)
    _require(where, "mask_width", preprocess.mask_width in (0, head.mask_width))
    graphs = _stored({kind: files[name] for kind, name in _GRAPHS.items()})
    weights: dict[str, Floats] = load(files[WEIGHTS])
    _require(where, "weights", all(value.dtype == np.float32 for value in weights.values()))
    check_weights(f"{manifest.policy_id:.60}", weights)
    backend = OnnxBackend(graphs, head, [weights], sum(state_sizes))
    _require(where, "row_width", manifest.row_width == backend.obs_size)
    _require(where, "agent_connectors", _widens_to(connectors, observation_space, backend.obs_size))
    return NetworkGroup(
        policy_ids=[check_policy_id(manifest.policy_id)],
        observation_space=observation_space,
        action_space=action_space,
        preprocess=preprocess,
        backend=backend,
        output=output,
        state_sizes=state_sizes,
        connectors=[connectors],
        built=plan,
        row_width=backend.obs_size,
        row_dtype=connectors.rows_of(observation_space)[1],
        graphs=functools.partial(StoredGraphs, False, graphs.models, graphs.bounded),
    )


def _widens_to(connectors: PolicyConnectors, space: gym.Space[Any], width: int) -> bool:
    """Return whether agent connectors make rows of a width; custom connectors need not report it."""
    known = all(leaf.takes_rows for leaf in connectors.agent.connectors)
    return not known or connectors.agent.space(space, 0)[1] == width


def _restored(kind: type[P], ctx: ConnectorContext, listed: _Listed, where: str) -> P:
    try:
        return kind.from_state(ctx, listed)
    except UnknownNameError as error:
        raise ConfigError(f"{where}: {error}") from error


def _fits(head: ActionHead, space: gym.Space[Any]) -> bool:
    wanted = head_for_space(flat_action_space(space))
    return (head.sizes, head.numbers) == (wanted.sizes, wanted.numbers)


def _require(where: str, entry: str, right: bool) -> None:
    if not right:
        raise ConfigError(
            f"{where}: {entry!r} does not fit the rest, expected what was exported; export the policy again"
        )


@functools.cache
def _versions() -> dict[str, str]:
    # Loading a policy needs no versions, and this takes as long to import as gymnasium's spaces.
    import importlib.metadata

    names = ("numpy", "onnxruntime")
    return {"menv": menv.__version__, **{name: importlib.metadata.version(name) for name in names}}


Array = npt.NDArray[Any]

_BUNDLE = "packed policy"
_PACK_AGAIN = "ask for it again"


def pack_bundle(
    policy: NetworkPolicy, trained: Mapping[str, Any] | None = None, export_cache: ExportCache | None = None
) -> bytes:
    """Return a policy's folder as an uncompressed zip archive, the files that `export_checkpoint` writes.

    It takes as long as writing the folder, because the golden outputs are computed; use `pack_weights` for a client
    that has the rest already.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in policy_files(policy, trained or {}, export_cache).items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return packed.getvalue()


def policy_from_bytes(blob: bytes) -> NetworkPolicy:
    """Return the policy of `pack_bundle`, ready to act, after the checks of `from_checkpoint`."""
    files = _unpacked(blob)
    manifest = parse_manifest(files[MANIFEST], f"{_BUNDLE}/{MANIFEST}")
    check_files(files, manifest, _BUNDLE)
    return policy_of(manifest, files, _BUNDLE)


def _unpacked(blob: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            entries = {one.filename: one for one in archive.infolist()}
            if sorted(archive.namelist()) != sorted((MANIFEST, *FILES)):
                raise ValueError(f"{len(archive.namelist())} files")
            if any(one.compress_type != zipfile.ZIP_STORED for one in entries.values()):
                raise ValueError("compressed files")
            if any(entry.file_size > _most_bytes(name) for name, entry in entries.items()):
                raise ValueError("larger files than a policy has")
            return {name: archive.read(entry) for name, entry in entries.items()}
    except Exception as error:
        # zipfile raises errors of many kinds for damaged archives.
        raise ConfigError(
            f"{_BUNDLE}: {len(blob)} bytes are not a zip archive of a policy ({error!s:.80}), expected exactly "
            f"{', '.join((MANIFEST, *FILES))}, uncompressed; {_PACK_AGAIN}"
        ) from error


def pack_weights(policy: NetworkPolicy) -> bytes:
    """Return a policy's weights as safetensors."""
    return save({name: np.ascontiguousarray(value) for name, value in policy.get_weights().items()})


def unpack_weights(blob: bytes) -> dict[str, Array]:
    """Return the weights in what `pack_weights` returned, for `policy.set_weights`."""
    try:
        check_header(blob)
        return dict(load(blob))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"packed weights: {len(blob)} bytes are not safetensors, expected what pack_weights returned; {_PACK_AGAIN}"
        ) from error
