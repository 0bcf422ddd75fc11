"""Checkpoints that somebody changed who means harm: all their hashes are right."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


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
        data = json.dumps(tree).encode()
        (folder / name).write_bytes(data)
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps(manifest, indent=1, sort_keys=True)
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True))
