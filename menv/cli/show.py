"""`menv show`: prints the contents of a checkpoint or a policy folder, without torch, and checks every file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from menv.cli.arguments import Parser, parsed, print_text, take_imports
from menv.inference import checkpoint_folder, policy_bundle
from menv.policy import Policy
from menv.serialization import folder_given


def main(arguments: Sequence[str] | None = None, program: str = "menv show") -> int:
    """Print the contents of a folder and return the exit status."""
    parser = Parser(
        prog=program,
        description="Show the contents of a run, a checkpoint or a policy, and check their files.",
    )
    parser.add_argument("folder", help="a run folder, a folder of checkpoints, or a policy")
    take_imports(parser)
    args = parsed(parser, arguments)
    path = checkpoint_folder.checkpoint_root(folder_given("show", args.folder))
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
    print_text("\n".join(lines), program)
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
        f"  algorithm     {_printable(manifest, 'algorithm')}, {_printable(manifest, 'iteration')} iterations, menv "
        f"{_printable(manifest, 'menv_version')}",
        f"  environment   {_printable({'env': env}, 'env') if isinstance(env, str) else 'given by the program'}",
    ]


def _printable(manifest: dict[str, Any], name: str) -> str:
    return "".join(filter(str.isprintable, str(manifest.get(name))[:100]))
