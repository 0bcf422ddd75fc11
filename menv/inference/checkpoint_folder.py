"""Checkpoints on disk: numbered folders that are complete or absent, and `LATEST`, a file that names the newest.

A folder is written under a temporary name, synced and renamed; then `LATEST` is replaced. So a process that is killed
at any moment leaves a checkpoint that loads. The manifest holds the hash of every file and its own; policies inside
keep theirs. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from menv.errors import ConfigError, UnknownNameError
from menv.inference import policy_bundle
from menv.inference.network_policy import NetworkPolicy
from menv.inference.policy_bundle import ExportCache, read_policy, write_policy
from menv.plain_files import MOST_BYTES, folder_given, inside, opened, read, replacing, writing
from menv.policy import Policy
from menv.policy_spec import ids_given
from menv.redaction import without_secrets
from menv.serialization import HEADER_SIZE, check_header, read_json, values_in

FORMAT = 1
"""Raised whenever older versions could not read new checkpoints."""

MANIFEST = "manifest.json"
LATEST = "LATEST"
RUN_CHECKPOINTS = "checkpoints"
"""The folder of checkpoints in a run folder."""

Arrays = Mapping[str, npt.NDArray[Any]]
Files: TypeAlias = Mapping[str, Arrays | Mapping[str, Any]]
Add: TypeAlias = Callable[[Path], Mapping[str, Any]]

_NUMBER = re.compile(r"\d{6,18}")
_MOST_JSON, _MOST_VALUES = MOST_BYTES, 1 << 21
"""Bytes of a JSON file, and values in it; `save` refuses more."""
_MOST_IN_MANIFEST, _MOST_NAME = 1 << 19, 1 << 10
_LONGEST_SAVE = 3600


class _File(msgspec.Struct):
    bytes: int
    sha256: str


_FileName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z_]{1,40}\.(json|safetensors)$")]
_Folder: TypeAlias = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[^/\\\x00-\x1f]+$")]


class _Manifest(msgspec.Struct):
    """The entries of a manifest whose form matters before anything else is read."""

    format: int
    files: Annotated[dict[_FileName, _File], Meta(max_length=16)]
    menv_version: str = ""
    policies: dict[str, _Folder] = {}
    policies_left_out: dict[str, str] = {}
    snapshots: dict[str, dict[str, _Folder]] = {}


def check_root(root: Path) -> None:
    """Raise ConfigError if `root` is a file, or a checkpoint itself."""
    if root.exists() and not root.is_dir():
        raise ConfigError(f"save: {root} is a file, expected a folder or a new name; choose another name")
    if (root / MANIFEST).is_file():
        # Loading this folder would still find the checkpoint that it is.
        raise ConfigError(
            f"save: {root} is a checkpoint itself, expected the folder of checkpoints; pass {str(root.parent)!r}, "
            "or another name"
        )


def write_checkpoint(
    root: Path,
    number: int,
    manifest: Mapping[str, Any],
    files: Files,
    add: Add | None = None,
) -> Path:
    """Write a numbered folder, replacing an earlier one of this number, and let `LATEST` name it.

    `files` are arrays by name for `*.safetensors`, JSON values for `*.json`. `add` gets the folder before it has its
    name, may write and sync folders in it, and returns more of the manifest.
    """
    check_root(root)
    name, tag = f"{number:06d}", secrets.token_hex(4)
    folder, target, replaced = root / f".writing-{name}-{tag}", root / name, root / f".replaced-{name}-{tag}"
    with writing("save", f"checkpoint {number} in {root}"):
        root.mkdir(parents=True, exist_ok=True)
        try:
            _fill(folder, manifest, files, add)
        except BaseException:
            # On a full disk a draft would block the next save.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if target.exists():
            # Until `folder` has its name, readers use this one.
            os.replace(target, replaced)
        os.replace(folder, target)
        policy_bundle.sync(root)
        with replacing(root / LATEST) as draft:
            draft.write_text(f"{name}\n", "ascii")
            policy_bundle.sync(draft)
        policy_bundle.sync(root)
        with suppress(OSError):
            _remove(replaced)
        _sweep(root)
    return target


def _sweep(root: Path) -> None:
    """Delete what killed processes left, but not what one writes now."""
    for path in (path for kind in ("writing", "replaced", "removed") for path in root.glob(f".{kind}-*")):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _LONGEST_SAVE:
                _remove(path)


def _fill(
    folder: Path,
    manifest: Mapping[str, Any],
    files: Files,
    add: Add | None,
) -> None:
    folder.mkdir()
    hashes = {}
    for file_name, content in files.items():
        path = folder / file_name
        if path.suffix == ".json":
            path.write_bytes(_json_bytes(path, content))
        else:
            _write_arrays(path, content)
        policy_bundle.sync(path)
        hashes[file_name] = {"sha256": _sha256(path), "bytes": path.stat().st_size}
    more = {} if add is None else add(folder)
    complete = {"format": FORMAT, **manifest, **more, "files": hashes}
    (folder / MANIFEST).write_text(_manifest_text(complete), "utf-8")
    policy_bundle.sync(folder / MANIFEST)
    policy_bundle.sync(folder)


def _json_bytes(path: Path, content: Mapping[str, Any]) -> bytes:
    data = json.dumps(content, allow_nan=False).encode()
    if len(data) > _MOST_JSON or values_in(data) > _MOST_VALUES:
        raise ConfigError(
            f"save: {path.name} would be {len(data)} bytes with about {values_in(data)} values, expected at most "
            f"{_MOST_JSON} and {_MOST_VALUES}; use fewer sub-environments in a process"
        )
    return data


@contextmanager
def without_secrets_in(folder: Path) -> Iterator[Path]:
    """Give a checkpoint that others may read: a copy whose settings name secrets only, where it holds any."""
    manifest = read_manifest(folder)
    del manifest["sha256"]
    # As settings that a checkpoint holds by name, which are asked for when it is loaded.
    config = without_secrets(manifest["config"], left_out={"$named": "a secret"})
    if config == manifest["config"]:
        yield folder
        return
    with TemporaryDirectory() as place:
        copy = shutil.copytree(folder, Path(place) / folder.name)
        text = _manifest_text({**manifest, "config": config})
        (copy / MANIFEST).write_text(text, "utf-8")
        yield copy


def keep_only(root: Path, names: set[str]) -> None:
    """Delete all checkpoints except `names` and the latest one."""
    latest = _named(root)
    for folder in numbered(root):
        if folder.name not in names and folder.name != latest:
            gone = root / f".removed-{folder.name}-{secrets.token_hex(4)}"
            os.replace(folder, gone)
            _remove(gone)


def numbered(root: Path) -> list[Path]:
    """Return the numbered folders of `root`, in order."""
    found = [path for path in root.iterdir() if _NUMBER.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def as_written(root: Path) -> list[Path]:
    """Return the numbered folders of `root` by the time they were written, then by number."""

    def when(folder: Path) -> tuple[int, int]:
        manifest = folder / MANIFEST
        return manifest.stat().st_mtime_ns if manifest.is_file() else 0, int(folder.name)

    return sorted(numbered(root), key=when)


def checkpoint_root(path: object) -> Path:
    """Return the folder of checkpoints: `checkpoints/` of a run folder, else `path` itself."""
    folder = folder_given("checkpoint", path)
    inner = inside(folder, RUN_CHECKPOINTS)
    return inner if (inner / LATEST).is_file() and not (folder / MANIFEST).is_file() else folder


def find_checkpoint(path: object) -> Path:
    """Return `path` if it is a numbered folder, or the one that its `LATEST` names; ConfigError without one."""
    folder = checkpoint_root(path)
    if (folder / MANIFEST).is_file():
        return folder
    if not (folder / LATEST).is_file():
        raise ConfigError(
            f"checkpoint {str(path)!r}: neither {MANIFEST} nor {LATEST} in it, expected a folder that save wrote; pass "
            "the folder that was given to save, a numbered one in it, or a run after its first checkpoint"
        )
    name = _named(folder)
    # A folder that is being replaced has another name between two renames.
    names = (
        [name, *(one.name for one in folder.glob(f".replaced-{name}-*"))] if _NUMBER.fullmatch(name) else []
    )
    for candidate in (inside(folder, one) for one in names):
        if (candidate / MANIFEST).is_file():
            return candidate
    raise ConfigError(
        f"checkpoint {str(path)!r}: {LATEST} names {name!r:.60}, which is missing, expected a numbered folder next to "
        f"{LATEST}; pass one of {[one.name for one in numbered(folder)][-8:]}"
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; ConfigError if it changed, or is of a newer format."""
    path = folder / MANIFEST
    text = read(path)
    try:
        manifest = read_json(text, _MOST_IN_MANIFEST)
        known = msgspec.convert(manifest, _Manifest)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, _why(error)) from error
    if known.format > FORMAT:
        raise ConfigError(
            f"{path}: format {known.format}, expected at most {FORMAT}; it was written by menv "
            f"{known.menv_version[:40]}, load it with that version or a later one"
        )
    if _manifest_text({key: manifest[key] for key in manifest if key != "sha256"}).encode() != text:
        raise _damaged(path, "changed bytes")
    return dict(manifest)


def read_files(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of all files of a checkpoint by name; ConfigError names a missing or changed one."""
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise _damaged(path, "missing")
        if path.stat().st_size != entry["bytes"] or _sha256(path) != entry["sha256"]:
            raise _damaged(path, "changed bytes")
    return {name: _read(folder / name) for name in manifest["files"]}


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".json":
            return read_json(read(path), _MOST_VALUES)
        with opened(path) as file:
            check_header(file.read(HEADER_SIZE))
        return load_file(path)
    except ConfigError:
        raise
    except (ValueError, RecursionError, SafetensorError, AttributeError, LookupError, TypeError) as error:
        raise _damaged(path, _why(error)) from error


def _why(error: Exception) -> str:
    return f"{error!s:.200}" if isinstance(error, ValueError) else type(error).__name__


def _write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays, with the permissions of other new files, instead of for the owner alone."""
    path.touch()
    mode = path.stat().st_mode
    # Copies only where needed; zero-dimensional arrays keep their shape.
    contiguous = {key: np.ascontiguousarray(array).reshape(array.shape) for key, array in arrays.items()}
    try:
        save_file(contiguous, path)
    except SafetensorError as error:
        # A full disk is an OSError for every kind of file.
        raise OSError(f"{path}: {error}") from error
    path.chmod(mode)


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    write = partial(json.dumps, indent=1, sort_keys=True, allow_nan=False)
    return write({**manifest, "sha256": hashlib.sha256(write(manifest).encode()).hexdigest()})


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{path}: {what}, expected the original file; load another checkpoint")


def _remove(path: Path) -> None:
    """Delete a file or a folder; of a symbolic link, the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _sha256(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


T = TypeVar("T")
_TRIES = 20


def read_checkpoint(path: object, read: Callable[[Path], T]) -> T:
    """Return the result of `read` for the numbered folder of a checkpoint.

    A save may delete the folder meanwhile; then the next latest one is read.
    """
    root = checkpoint_root(path)
    for left in reversed(range(_TRIES)):
        named = _named(root)
        try:
            return read(find_checkpoint(root))
        except (ConfigError, FileNotFoundError) as error:
            if left and _named(root) != named:
                continue
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"checkpoint {str(root)!r}: {error}, expected a folder that does not change while it is read; load "
                "another"
            ) from error
    raise AssertionError


def _named(root: Path) -> str:
    """Return the content of `LATEST`, "" if there is none."""
    try:
        return read(root / LATEST, _MOST_NAME).decode("ascii", "replace").strip()
    except OSError:
        return ""


POLICIES, LEFT_OUT = "policies", "policies_left_out"
"""Entries of a checkpoint's manifest; the first is also the folder of the policies."""
LEAGUE, SNAPSHOTS = "league", "snapshots"
"""The folder of a league's snapshots in a checkpoint, and the manifest's entry of their names.

A name, which may be a level, has the folders of some policies; the others are the run's.
"""
LEVELS = {"easy": 1 / 3, "medium": 2 / 3, "hard": 1.0}
"""How far from the lowest to the highest rating in a league an opponent of a person is."""

_MOST_WHY = 500


def write_policies(
    folder: Path,
    policy_ids: Iterable[str],
    policy_of: Callable[[str], Policy],
    trained: Callable[[str], Mapping[str, Any]],
) -> dict[str, Any]:
    """Write the policies of a run into the folder of a checkpoint, and return the entries of its manifest.

    They say where each policy is, and why others, which cannot be exported, are left out. `policy_of` returns the
    policy of an id, and `trained` how it was trained; see `Policy.export_checkpoint`.
    """
    home = folder / POLICIES
    cache: ExportCache = {}
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    ids = list(policy_ids)
    for policy_id, name in zip(ids, _folder_names(ids), strict=True):
        try:
            policy = policy_of(policy_id)
            if isinstance(policy, NetworkPolicy):
                write_policy(policy, home / name, trained(policy_id), cache)
            else:
                # Not an override of a subclass: only network policies can be loaded.
                Policy.export_checkpoint(policy, home / name)
        except OSError:
            raise
        except Exception as error:
            # The run has its own state: a policy that cannot be exported must not prevent saving.
            left_out[policy_id] = _why_not_loadable(error)
        else:
            found[policy_id] = name
    return {POLICIES: found, LEFT_OUT: left_out}


def read_policies(
    path: Path, policy_ids: Iterable[str] | None, snapshot: str | None
) -> Policy | dict[str, Policy]:
    """Return the policy in a folder, or the policies of several folders; see `Policy.from_checkpoint`."""
    chosen = None if policy_ids is None else ids_given("from_checkpoint", policy_ids)
    of_checkpoint = partial(_of_checkpoint, chosen=chosen, snapshot=snapshot)
    if snapshot is not None:
        return read_checkpoint(path, of_checkpoint)
    if (path / policy_bundle.MANIFEST).exists():
        return read_policy(path)
    path = checkpoint_root(path)
    is_checkpoint = (path / MANIFEST).exists()
    folders = {} if is_checkpoint else _side_by_side(path)
    if is_checkpoint or (path / LATEST).exists():
        if folders:
            raise ConfigError(
                f"{path}: holds policies {sorted(folders)[:20]} and training checkpoints, expected one of both; name "
                "the folder of a policy, or a numbered one of a checkpoint"
            )
        return read_checkpoint(path, of_checkpoint)
    if not folders:
        raise ConfigError(
            f"{path}: holds no policy, expected {policy_bundle.MANIFEST} in it, or in folders of policies, or a "
            "training checkpoint; name the folder that export_checkpoint or save wrote"
        )
    return {name: read_policy(folders[name]) for name in _chosen(path, chosen, folders)}


def _side_by_side(path: Path) -> dict[str, Path]:
    home = inside(path, POLICIES) if (path / POLICIES).is_dir() else path
    found = sorted(part.parent for part in home.glob(f"*/{policy_bundle.MANIFEST}"))
    return {folder.name: folder for folder in found if not folder.name.startswith(".")}


def policy_folders(folder: Path, manifest: Mapping[str, Any], snapshot: str | None = None) -> dict[str, Path]:
    """Return the folders of the policies of a numbered folder by id, some as they were in a snapshot."""
    found = {name: inside(folder, POLICIES, own) for name, own in manifest[POLICIES].items()}
    if snapshot is None:
        return found
    known = manifest.get(SNAPSHOTS, {})
    if snapshot not in known:
        raise UnknownNameError(
            f"{folder}: snapshot {snapshot!r:.60} is not in it, expected "
            + (f"one of {list(known)[-20:]}" if known else "one of a league; train with --self-play")
        )
    return found | {name: inside(folder, LEAGUE, own) for name, own in known[snapshot].items()}


def _of_checkpoint(folder: Path, chosen: list[str] | None, snapshot: str | None) -> dict[str, Policy]:
    """Return policies of a training checkpoint."""
    manifest = read_manifest(folder)
    found, left_out = policy_folders(folder, manifest, snapshot), manifest[LEFT_OUT]
    for name in chosen or ([] if found else left_out):
        if name in left_out:
            raise ConfigError(
                f"{folder}: left out when it was saved: {str(left_out[name])[:_MOST_WHY]}; in it are "
                f"{sorted(found)[:20]}"
            )
    names = _chosen(folder, chosen, found)
    return {name: read_policy(found[name]) for name in names}


def _chosen(where: Path, chosen: list[str] | None, found: Iterable[str]) -> list[str]:
    """Return the chosen ids, all by default; UnknownNameError for a missing one."""
    there = list(found)
    unknown = [name for name in chosen or () if name not in there]
    if unknown:
        raise UnknownNameError(
            f"{where}: policies {unknown[:5]} are not in it, expected some of {sorted(there)[:20]}; pass these as "
            "policy_ids"
        )
    return there if chosen is None else chosen


def _folder_names(policy_ids: Iterable[str]) -> list[str]:
    """Return a folder name for each policy: its id, unless some system confuses it with another one."""
    names: dict[str, str] = {}
    for policy_id in policy_ids:
        name = policy_id
        while (alike := unicodedata.normalize("NFC", name).casefold()) in names:
            name = f"+{name}"
        names[alike] = name
    return list(names.values())


def _why_not_loadable(error: Exception) -> str:
    named = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
    return f"{named}{error}".replace("\n", " ")[:_MOST_WHY]
