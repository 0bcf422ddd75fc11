"""`menv show`: what a training checkpoint or a policy's folder holds, without torch; every file is checked."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from menv.cli.command_line import tell
from menv.inference import checkpoint_folder, policy_bundle
from menv.policy import Policy
from menv.serialization import folder_given


def show(given: argparse.Namespace) -> int:
    """Print what lies in a folder.

    Raises:
        ConfigError: Nothing that menv wrote, or it is damaged.
        SystemExit: With status 1, if nothing takes what is printed.
    """
    path = folder_given("show", given.folder)
    policies: Any = Policy.from_checkpoint(path)
    if not isinstance(policies, dict):
        policies = {policies.policy_id: policies}
    lines = _run(path)
    for policy_id, policy in policies.items():
        lines += [
            f"policy {policy_id}",
            f"  observations  {policy.observation_space}",
            f"  actions       {policy.action_space}",
        ]
    tell("\n".join(lines), "menv show")
    return 0


def _run(path: Path) -> list[str]:
    if (path / policy_bundle.MANIFEST).exists():
        return []
    here = {checkpoint_folder.MANIFEST, checkpoint_folder.LATEST}
    if not any((path / name).exists() for name in here):
        return []
    folder = checkpoint_folder.find_checkpoint(path)
    manifest = checkpoint_folder.read_manifest(folder)
    config: Any = manifest.get("config")
    env = config.get("env") if isinstance(config, dict) else None
    return [
        f"checkpoint {folder}",
        f"  algorithm     {_told(manifest, 'algorithm')}, {_told(manifest, 'iteration')} iterations, menv "
        f"{_told(manifest, 'menv_version')}",
        f"  environment   {_told({'env': env}, 'env') if isinstance(env, str) else 'given by the program'}",
    ]


def _told(manifest: dict[str, Any], name: str) -> str:
    return "".join(filter(str.isprintable, str(manifest.get(name))[:100]))
