"""The files of a policy on disk: written all or not at all, read whole, checked by their hashes.

`menv.loop.bundle` knows what is in them, `packed_bundle` puts them into one piece. Names of files are fixed here and
never taken from a file; the manifest holds the hash of each, and one of itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from menv.errors import ConfigError
from menv.plain_data import read_json

FORMAT = 1
"""Version of the layout: raised whenever readers of before could not understand what is written."""

MANIFEST = "policy.json"
WEIGHTS = "weights.safetensors"
GOLDEN = "golden.safetensors"
ACTING = "acting.onnx"
GREEDY = "greedy.onnx"
EVALUATE = "evaluate.onnx"
FILES = (WEIGHTS, GOLDEN, ACTING, GREEDY, EVALUATE)
"""All files beside the manifest."""

_KIND = "menv.policy"
_AGAIN = "copy the folder again"
_MEBIBYTE = 1 << 20
_MOST_BYTES = {MANIFEST: 48 * _MEBIBYTE, WEIGHTS: 2048 * _MEBIBYTE, GOLDEN: 512 * _MEBIBYTE}
_MOST_BYTES_OF_A_GRAPH = 64 * _MEBIBYTE


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write a policy's folder beside its place and move it there once all of it is on the disk.

    Args:
        folder: Where it shall be; parents are created.
        contents: The bytes of each of `FILES`, and of the manifest.

    Raises:
        ConfigError: Something is there already.
    """
    refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.parent / f".{folder.name[:100]}.{secrets.token_hex(6)}.tmp"
    draft.mkdir()
    try:
        for name in FILES:
            _write(draft / name, contents[name])
        _write(draft / MANIFEST, contents[MANIFEST])
        _sync(draft)
        # An empty folder that somebody made meanwhile is replaced; one that holds anything makes this fail.
        refuse_existing(folder)
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _sync(folder.parent)


def manifest_text(manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """Return the text of a manifest.

    Args:
        manifest: JSON values; format and hashes are added.
        files: The bytes of each of `FILES`.

    Raises:
        ConfigError: The manifest holds something else than JSON values.
    """
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
    """Return the manifest of a policy's folder, and the bytes of each of `FILES`, all checked.

    Raises:
        ConfigError: A file is missing, damaged, too large, no plain file, of a newer format, or something else's.
    """
    manifest = parse_manifest(_read(folder, MANIFEST), f"{folder / MANIFEST}")
    files = {name: _read(folder, name) for name in FILES}
    check_files(files, manifest, f"{folder}")
    return manifest, files


def parse_manifest(data: bytes, where: str) -> dict[str, Any]:
    """Return the manifest in the bytes of its file.

    Raises:
        ConfigError: It is damaged, of a newer format, something else's, or names other files than there are.
    """
    try:
        content = read_json(data)
    except (ValueError, RecursionError) as error:
        why = "" if isinstance(error, json.JSONDecodeError) else f" ({error!s:.80})"
        raise ConfigError(
            f"{where}: is no JSON{why}, expected what export_checkpoint wrote; {_AGAIN}"
        ) from error
    if not isinstance(content, dict) or content.get("type") != _KIND:
        raise ConfigError(
            f"{where}: is no manifest of a policy, expected type {_KIND!r}; name the folder of a policy"
        )
    version = content.get("format")
    if type(version) is int and version > FORMAT:
        raise ConfigError(f"{where}: format {version}, expected at most {FORMAT}; install a newer menv")
    if type(version) is not int or version < 1:
        raise ConfigError(f"{where}: format {version!r:.40}, expected 1 to {FORMAT}; {_AGAIN}")
    if content.get("sha256") != _own_hash(content):
        raise ConfigError(f"{where}: its sha256 differs, expected the file as it was written; {_AGAIN}")
    hashes = content.get("files")
    if not isinstance(hashes, dict) or set(hashes) != set(FILES):
        raise ConfigError(
            f"{where}: 'files' names others than {', '.join(FILES)}, expected exactly these; export the policy again"
        )
    return content


def check_files(files: Mapping[str, bytes], manifest: Mapping[str, Any], where: str) -> None:
    """Compare the bytes of each of `FILES` with the hashes in a manifest.

    Raises:
        ConfigError: One is another than the manifest says.
    """
    for name in FILES:
        if hashlib.sha256(files[name]).hexdigest() != manifest["files"][name]:
            raise ConfigError(
                f"{where}/{name}: its sha256 differs from the one in {MANIFEST}, expected the file as it was written; "
                f"{_AGAIN}"
            )


def check_size(name: str, size: int, where: str) -> None:
    """Refuse a file that is larger than it can be.

    Raises:
        ConfigError: It is.
    """
    most = _MOST_BYTES.get(name, _MOST_BYTES_OF_A_GRAPH)
    if size > most:
        raise ConfigError(f"{where}: {size} bytes, expected at most {most}; export the policy again")


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: is missing, expected a file that export_checkpoint wrote; copy the folder again"
        ) from error
    except OSError as error:
        if path.is_symlink():
            raise ConfigError(
                f"{path}: is a symbolic link, expected a plain file; copy the folder with what links lead to (cp -rL)"
            ) from error
        raise ConfigError(
            f"{path}: cannot be opened ({error.strerror}), expected a plain file; copy the folder again"
        ) from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path}: is no plain file, expected one; copy the folder again")
        check_size(name, found.st_size, f"{path}")
        with open(handle, "rb", closefd=False) as file:
            return file.read(found.st_size)
    finally:
        os.close(handle)


def refuse_existing(folder: Path) -> None:
    """Refuse to write where something is.

    Raises:
        ConfigError: Something is.
    """
    if os.path.lexists(folder):
        raise ConfigError(f"export_checkpoint: {folder} exists, expected a new folder; choose another name")


def _own_hash(content: Mapping[str, Any]) -> str:
    """Return the hash of a manifest but for the hash in it, however its text is laid out."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make the entries of a folder last, where folders can be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
