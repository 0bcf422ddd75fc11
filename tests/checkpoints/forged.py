"""Checkpoints that somebody changed who means harm: all their hashes are right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file


def forge(folder: Path, name: str, keys: list[Any], value: Any) -> None:
    """Change an entry of a file of a checkpoint and make all hashes right again."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("sha256")
    tree = manifest if name == "manifest.json" else json.loads((folder / name).read_text())
    part = tree
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    if name != "manifest.json":
        (folder / name).write_text(json.dumps(tree))
        _list(manifest, folder / name)
    _sign(folder, manifest)


def forge_array(folder: Path, name: str, key: str, change: Callable[[Any], Any]) -> None:
    """Change an array of a file of a checkpoint and make all hashes right again."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("sha256")
    arrays = load_file(folder / name)
    arrays[key] = np.array(change(arrays[key]), order="C")
    save_file(arrays, folder / name)
    _list(manifest, folder / name)
    _sign(folder, manifest)


def forge_file(folder: Path, name: str, data: bytes) -> None:
    """Change a file of a checkpoint and make all hashes right again."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("sha256")
    (folder / name).write_bytes(data)
    _list(manifest, folder / name)
    _sign(folder, manifest)


def _list(manifest: dict[str, Any], path: Path) -> None:
    data = path.read_bytes()
    manifest["files"][path.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _sign(folder: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest, indent=1, sort_keys=True)
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True))
