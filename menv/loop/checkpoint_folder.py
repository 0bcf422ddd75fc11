"""Checkpoints on disk: numbered folders that are whole or not there, and the one-line file that names the latest.

Algorithms write and read with it. A folder is written under another name, synced and renamed; then `LATEST` is
replaced. So a process that is killed at any moment leaves a checkpoint that loads. Every file's hash is in the
manifest, and the manifest's own in itself; folders that others add to it keep themselves whole. It knows arrays and
JSON, not what they mean; nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from menv.errors import ConfigError
from menv.paths import folder_given, writing
from menv.plain_data import HEADER_SIZE, check_header, read_json, values_in

FORMAT = 1
"""Raised whenever what is written can no longer be read by the code of before."""

MANIFEST = "manifest.json"
LATEST = "LATEST"

Arrays = Mapping[str, npt.NDArray[Any]]

_NUMBER = re.compile(r"\d{6,18}")
_FILE = re.compile(r"[a-z_]{1,40}\.(json|safetensors)")
_MOST_FILES = 16
_MOST_JSON, _MOST_VALUES = 1 << 26, 1 << 21
"""Bytes of a file of JSON, and values in it; what would be more is refused when it is saved."""
_MOST_IN_MANIFEST = 1 << 19
_BLOCK = 1 << 20
_here = threading.local()


def check_root(root: Path) -> None:
    """Refuse a place in which no checkpoint can lie.

    Raises:
        ConfigError: `root` is a file, or a checkpoint itself.
    """
    if root.exists() and not root.is_dir():
        raise ConfigError(
            f"save: {root} is a file, expected a folder or a name that is free; choose another name"
        )
    if (root / MANIFEST).is_file():
        # Whoever loads this folder would go on finding the checkpoint that it is.
        raise ConfigError(
            f"save: {root} is a checkpoint itself, expected the folder that such lie in; pass {str(root.parent)!r}, "
            "or another name"
        )


def try_root(root: Path) -> None:
    """Refuse a place in which nothing can be written, before there is anything to write; it stays as it was.

    Raises:
        ConfigError: No file can be made there, or no checkpoint can lie there.
    """
    try:
        check_root(root)
        new = not root.exists()
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root):
            draft = root / f".writing-{secrets.token_hex(4)}"
            try:
                draft.mkdir()
                (draft / MANIFEST).write_bytes(b"\n")
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        if new:
            # Another process may write there by now.
            with suppress(OSError):
                root.rmdir()
    except OSError as error:
        raise ConfigError(
            f"save: {root} cannot be written ({error}), expected a folder, or a name for one, in which files can be "
            "made; choose another one"
        ) from error


def write_checkpoint(
    root: Path,
    number: int,
    manifest: Mapping[str, Any],
    files: Mapping[str, Arrays | Mapping[str, Any]],
    add: Callable[[Path], Mapping[str, Any]] | None = None,
) -> Path:
    """Write a checkpoint and let `LATEST` name it.

    Args:
        root: Where the numbered folders are; made if it is not there.
        number: Of the checkpoint; one that is there under this number is replaced.
        manifest: What JSON can hold; format and hashes are added.
        files: Arrays by name for `*.safetensors`, what JSON can hold for `*.json`.
        add: Called with the folder before that has its name: writes folders into it that `read_files` does not read,
            syncs them, and returns more of the manifest.

    Returns:
        The numbered folder.

    Raises:
        ConfigError: `root` is a file, or a checkpoint itself.
        NotWrittenError: There is no room; what was there before is whole.
    """
    check_root(root)
    with writing("save", f"checkpoint {number} in {root}"):
        root.mkdir(parents=True, exist_ok=True)
        return _write_alone(root, f"{number:06d}", manifest, files, add)


def _write_alone(root: Path, name: str, *content: Any) -> Path:
    with _alone(root) as outermost:
        written = _written(root, name, *content)
        if outermost:
            _sweep(root)
    return written


def _written(
    root: Path,
    name: str,
    manifest: Mapping[str, Any],
    files: Mapping[str, Arrays | Mapping[str, Any]],
    add: Callable[[Path], Mapping[str, Any]] | None,
) -> Path:
    tag = secrets.token_hex(4)
    folder = root / f".writing-{name}-{tag}"
    try:
        _fill(folder, manifest, files, add)
    except BaseException:
        # On a full disk a draft would stand in the way of the next save.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    target = root / name
    if target.exists():
        # Until `folder` has its name this is the one that counts: readers find it.
        os.replace(target, root / f".replaced-{name}-{tag}")
    os.replace(folder, target)
    _sync(root)
    _point(root, name, tag)
    return target


def _fill(
    folder: Path,
    manifest: Mapping[str, Any],
    files: Mapping[str, Arrays | Mapping[str, Any]],
    add: Callable[[Path], Mapping[str, Any]] | None,
) -> None:
    folder.mkdir()
    hashes = {}
    for file_name, content in files.items():
        path = folder / file_name
        if path.suffix == ".json":
            path.write_bytes(_json_bytes(path, content))
        else:
            _write_arrays(path, content)
        _sync(path)
        hashes[file_name] = {"sha256": _sha256(path), "bytes": path.stat().st_size}
    more = {} if add is None else add(folder)
    told = {"format": FORMAT, **manifest, **more, "files": hashes}
    (folder / MANIFEST).write_text(_manifest_text(told), "utf-8")
    _sync(folder / MANIFEST)
    _sync(folder)


def _json_bytes(path: Path, content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file of JSON.

    Raises:
        ConfigError: It would be too large to be read again.
    """
    data = json.dumps(content, allow_nan=False).encode()
    if len(data) > _MOST_JSON or values_in(data) > _MOST_VALUES:
        raise ConfigError(
            f"save: {path.name} would be {len(data)} bytes with about {values_in(data)} values, expected at most "
            f"{_MOST_JSON} and {_MOST_VALUES}; play fewer sub-environments in a process"
        )
    return data


def keep_only(root: Path, names: set[str]) -> None:
    """Delete all checkpoints but some; the latest one stays whatever is asked."""
    with _alone(root):
        latest = (root / LATEST).read_text("ascii").strip()
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
    """Return the numbered folders of `root`, those that were written last at the end; of equal times by number."""

    def when(folder: Path) -> tuple[int, int]:
        manifest = folder / MANIFEST
        return manifest.stat().st_mtime_ns if manifest.is_file() else 0, int(folder.name)

    return sorted(numbered(root), key=when)


def find_checkpoint(path: Any) -> Path:
    """Return the numbered folder that `path` is, or that its `LATEST` names.

    Raises:
        ConfigError: There is none.
    """
    folder = folder_given("checkpoint", path)
    if (folder / MANIFEST).is_file():
        return folder
    if not (folder / LATEST).is_file():
        raise ConfigError(
            f"checkpoint {str(path)!r}: neither {MANIFEST} nor {LATEST} in it, expected a folder that save wrote; pass "
            "the folder that was given to save, or a numbered one in it"
        )
    name = (folder / LATEST).read_bytes()[:64].decode("ascii", "replace").strip()
    if not _NUMBER.fullmatch(name):
        raise ConfigError(
            f"checkpoint {str(path)!r}: {LATEST} says {name!r}, expected the name of a numbered folder; pass one of "
            f"{[one.name for one in numbered(folder)][-8:]}"
        )
    # Between two renames of one that is written again it has another name.
    for candidate in (folder / name, *sorted(folder.glob(f".replaced-{name}-*"))):
        if (candidate / MANIFEST).is_file():
            return candidate
    raise ConfigError(
        f"checkpoint {str(path)!r}: {LATEST} names {name}, which is missing, expected it beside; pass one of "
        f"{[one.name for one in numbered(folder)][-8:]}"
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint.

    Raises:
        ConfigError: It is not as it was written, or of a newer format.
    """
    path = folder / MANIFEST
    _check_size(path)
    text = path.read_bytes()
    try:
        manifest = read_json(text, _MOST_IN_MANIFEST)
        if not isinstance(manifest, dict):
            raise TypeError
        changed = _manifest_text({key: manifest[key] for key in manifest if key != "sha256"}).encode() != text
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(path, _why(error)) from error
    if isinstance(manifest.get("format"), int) and manifest["format"] > FORMAT:
        raise ConfigError(
            f"{path}: format {manifest['format']}, expected at most {FORMAT}; it was written by menv "
            f"{str(manifest.get('menv_version'))[:40]}, load it with that or a later one"
        )
    if changed or not _lists_files(manifest.get("files")):
        raise _damaged(path, "changed bytes")
    return dict(manifest)


def read_files(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of all files of a checkpoint by name, once each of them is as it was written.

    Raises:
        ConfigError: One is missing or has changed; it is named.
    """
    for name, told in manifest["files"].items():
        path = folder / name
        if not path.is_file() or path.is_symlink():
            raise ConfigError(
                f"{path}: missing, expected a file of {told['bytes']} bytes; load another checkpoint"
            )
        if path.stat().st_size != told["bytes"]:
            raise _damaged(path, f"{path.stat().st_size} instead of {told['bytes']} bytes")
        if _sha256(path) != told["sha256"]:
            raise _damaged(path, "changed bytes")
    return {name: _read(folder / name) for name in manifest["files"]}


def _read(path: Path) -> Any:
    if path.suffix == ".json":
        _check_size(path)
    try:
        if path.suffix == ".json":
            return read_json(path.read_bytes(), _MOST_VALUES)
        with path.open("rb") as file:
            check_header(file.read(HEADER_SIZE))
        return load_file(path)
    except (ValueError, RecursionError, SafetensorError, AttributeError, LookupError, TypeError) as error:
        raise _damaged(path, _why(error)) from error


def _check_size(path: Path) -> None:
    if path.stat().st_size > _MOST_JSON:
        raise ConfigError(
            f"{path}: {path.stat().st_size} bytes, expected at most {_MOST_JSON}; load another checkpoint"
        )


def _why(error: Exception) -> str:
    return f"{error!s:.80}" if type(error) is ValueError else type(error).__name__


def _write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays; readable for whom other new files are, which would be their owner alone."""
    path.touch()
    mode = path.stat().st_mode
    # Without a copy where there is no need for one; zero-dimensional ones keep their shape.
    own = {key: np.ascontiguousarray(array).reshape(array.shape) for key, array in arrays.items()}
    try:
        save_file(own, path)
    except SafetensorError as error:
        # A full disk is the same error whichever file it comes to.
        raise OSError(f"{path}: {error}") from error
    path.chmod(mode)


def _lists_files(files: Any) -> bool:
    few = isinstance(files, dict) and len(files) <= _MOST_FILES
    return few and all(
        _FILE.fullmatch(name) and isinstance(told, dict) and {"bytes", "sha256"} <= told.keys()
        for name, told in files.items()
    )


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
    return json.dumps(
        {**manifest, "sha256": hashlib.sha256(text.encode()).hexdigest()},
        indent=1,
        sort_keys=True,
        allow_nan=False,
    )


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{path}: {what}, expected the file as it was written; load another checkpoint")


def _point(root: Path, name: str, tag: str) -> None:
    temporary = root / f".latest-{tag}"
    temporary.write_text(f"{name}\n", "ascii")
    _sync(temporary)
    os.replace(temporary, root / LATEST)
    _sync(root)


@contextmanager
def _alone(root: Path) -> Iterator[bool]:
    """Let others that write into the same folder wait, who would take what is half written for a killed process's.

    Yields False to the handler of a signal that saves in the midst of a save, which cannot wait.
    """
    outermost = not getattr(_here, "writes", False)
    if os.name == "nt" or not outermost:
        yield outermost
        return
    import fcntl

    handle = os.open(root, os.O_RDONLY)
    _here.writes = True
    try:
        # There are file systems that know no locks; a lock ends with its process.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield True
    finally:
        _here.writes = False
        with suppress(OSError):
            # Closing is not enough where a fork has the handle, too.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _sweep(root: Path) -> None:
    for pattern in (".writing-*", ".replaced-*", ".removed-*", ".latest-*"):
        for path in root.glob(pattern):
            with suppress(OSError):
                _remove(path)


def _remove(path: Path) -> None:
    """Delete a file or a folder; of a link to one, which somebody has put in its place, the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":
        # There folders cannot be opened, and renames are not delayed.
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
