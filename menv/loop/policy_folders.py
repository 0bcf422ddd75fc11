"""The policies of a folder: one alone, several side by side, or those of a training checkpoint.

`Policy.from_checkpoint` reads with it, `Algorithm.save` puts the policies of a run into its checkpoint with it.
`menv.loop.bundle` knows what a policy on disk is, `menv.loop.checkpoint_folder` what a checkpoint is. How a run goes on
is not known here: of a checkpoint nothing is read but its manifest and the policies.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from menv.errors import ConfigError, UnknownNameError
from menv.loop import bundle_files, checkpoint_folder
from menv.loop.bundle import Rehearsals, read_policy, write_policy
from menv.loop.latest_checkpoint import read_checkpoint
from menv.loop.net_policy import NetPolicy
from menv.policy import Policy
from menv.policy_spec import ids_given

POLICIES, LEFT_OUT = "policies", "policies_left_out"
"""Entries of a checkpoint's manifest; the first is also the folder of the policies."""

_MOST_WHY = 500
_DEVICE = re.compile(r"(con|prn|aux|nul|(com|lpt)\d)(\.|$)")
"""What Windows takes for one whatever comes behind the dot; checkpoints are carried there."""


def write_policies(
    folder: Path, policies: Mapping[str, Policy], trained: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """Write those policies of a run that have a form on disk into a checkpoint that is being written.

    Args:
        folder: Of the checkpoint.
        policies: By id.
        trained: Returns how the policy of an id was trained; see `Policy.export_checkpoint`.

    Returns:
        What the checkpoint's manifest says of them: where each is, and why others are left out.
    """
    home, rehearsals = folder / POLICIES, Rehearsals()
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for (policy_id, policy), name in zip(policies.items(), _folder_names(policies), strict=True):
        try:
            if isinstance(policy, NetPolicy):
                write_policy(policy, home / name, trained(policy_id), rehearsals)
            else:
                # Whatever a subclass makes of it, only policies of networks are read again.
                Policy.export_checkpoint(policy, home / name)
        except OSError:
            raise
        except Exception as error:
            # The run goes on from its own state: no policy that cannot be written stops it from being saved.
            left_out[policy_id] = _why(error)
        else:
            found[policy_id] = {"folder": name, "sha256": _hash(home / name)}
    return {POLICIES: found, LEFT_OUT: left_out}


def read_policies(path: Path, policy_ids: Iterable[str] | None) -> Policy | dict[str, Policy]:
    """Return the policy in a folder, or those in a folder of several; see `Policy.from_checkpoint`."""
    if (path / bundle_files.MANIFEST).exists():
        return read_policy(path)
    chosen = None if policy_ids is None else ids_given("from_checkpoint", policy_ids)
    is_checkpoint = (path / checkpoint_folder.MANIFEST).exists()
    folders = {} if is_checkpoint else _side_by_side(path)
    if is_checkpoint or (path / checkpoint_folder.LATEST).exists():
        if folders:
            raise ConfigError(
                f"{path}: holds policies {sorted(folders)[:20]} and training checkpoints, expected one of both; name "
                "the folder of a policy, or a numbered one of a checkpoint"
            )
        return read_checkpoint(path, partial(_of_checkpoint, chosen=chosen))
    if not folders:
        raise ConfigError(
            f"{path}: holds no policy, expected {bundle_files.MANIFEST} in it, or in folders of policies, or a "
            "training checkpoint; name the folder that export_checkpoint or save wrote"
        )
    return {name: read_policy(folders[name]) for name in _chosen(path, chosen, folders)}


def _side_by_side(path: Path) -> dict[str, Path]:
    home = path / POLICIES if (path / POLICIES).is_dir() else path
    found = sorted(part.parent for part in home.glob(f"*/{bundle_files.MANIFEST}"))
    return {folder.name: folder for folder in found if not folder.name.startswith(".")}


def _of_checkpoint(folder: Path, chosen: list[str] | None) -> dict[str, Policy]:
    """Return policies of a training checkpoint.

    Raises:
        ConfigError: It is damaged, or holds none or not all of these policies.
    """
    manifest = checkpoint_folder.read_manifest(folder)
    where = folder / checkpoint_folder.MANIFEST
    found: Any = manifest.get(POLICIES)
    left_out = manifest.get(LEFT_OUT)
    if not _lists_policies(found) or not isinstance(left_out, dict):
        raise ConfigError(
            f"{where}: {POLICIES!r} does not list policies, expected what save wrote; save again"
        )
    for name in chosen or ([] if found else left_out):
        if name in left_out:
            raise ConfigError(
                f"{folder}: left out when it was saved: {str(left_out[name])[:_MOST_WHY]}; in it are "
                f"{sorted(found)[:20]}"
            )
    names = _chosen(folder, chosen, found)
    return {name: _of_run(folder, found[name]) for name in names}


def _of_run(checkpoint: Path, told: Mapping[str, str]) -> NetPolicy:
    """Return a policy of a checkpoint, whose manifest tells its folder and a hash.

    Raises:
        ConfigError: It is missing, damaged, or of another checkpoint.
    """
    home = checkpoint / POLICIES / told["folder"]
    # Its own manifest has the hashes of all other files, and is refused by name if it is missing.
    if (home / bundle_files.MANIFEST).is_file() and _hash(home) != told["sha256"]:
        raise ConfigError(
            f"{home / bundle_files.MANIFEST}: not what the checkpoint was saved with, expected an unchanged file; "
            "load another checkpoint"
        )
    return read_policy(home)


def _chosen(where: Path, chosen: list[str] | None, found: Iterable[str]) -> list[str]:
    """Return the ids that are asked for.

    Raises:
        UnknownNameError: Some are not there.
    """
    there = list(found)
    unknown = [name for name in chosen or () if name not in there]
    if unknown:
        raise UnknownNameError(
            f"{where}: policies {unknown[:5]} are not in it, expected some of {sorted(there)[:20]}; pass these as "
            "policy_ids"
        )
    return there if chosen is None else chosen


def _folder_names(policy_ids: Iterable[str]) -> list[str]:
    """Return a folder's name for each policy: its id, unless some systems take that for one before it or a device."""
    names: dict[str, str] = {}
    for policy_id in policy_ids:
        name = policy_id
        while (alike := unicodedata.normalize("NFC", name).casefold()) in names or _DEVICE.match(alike):
            name = f"+{name}"
        names[alike] = name
    return list(names.values())


def _lists_policies(found: Any) -> bool:
    return isinstance(found, dict) and all(
        isinstance(told, dict) and {*told} == {"folder", "sha256"} and _names_folder(told["folder"])
        for told in found.values()
    )


def _names_folder(name: Any) -> bool:
    return isinstance(name, str) and name.isprintable() and Path(name).name == name and name not in ("", "..")


def _why(error: Exception) -> str:
    named = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
    return f"{named}{error}".replace("\n", " ")[:_MOST_WHY]


def _hash(home: Path) -> str:
    with (home / bundle_files.MANIFEST).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
