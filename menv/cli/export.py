"""`menv export`: copies the policies of a run into folders of their own, without code and without torch."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from menv.cli.arguments import Parser, parsed, print_text, take_imports
from menv.errors import ConfigError
from menv.inference.checkpoint_folder import POLICIES, find_checkpoint, read_manifest
from menv.policy import Policy
from menv.serialization import writing


def main(arguments: Sequence[str] | None = None, program: str = "menv export") -> int:
    """Copy policies of the latest checkpoint and return the exit status."""
    parser = Parser(
        prog=program,
        description="Copy the policies of a run into folders that Policy.from_checkpoint reads without torch.",
    )
    parser.add_argument("run", help="a run folder, or a checkpoint")
    parser.add_argument("-o", "--output", metavar="DIR", help="a new folder (NAME-policies)")
    parser.add_argument("--policy", metavar="ID", help="copy this policy alone, into DIR itself")
    take_imports(parser)
    args = parsed(parser, arguments)
    checkpoint = find_checkpoint(args.run)
    target = Path(args.output or f"{Path(args.run).resolve().name}-{POLICIES}")
    if target.exists():
        raise ConfigError(f"-o {target}: exists, expected a name that is free; choose another name")
    # Every file is checked before anything is copied.
    found: Any = Policy.from_checkpoint(checkpoint)
    entries: Any = read_manifest(checkpoint)[POLICIES]
    if args.policy is not None and args.policy not in found:
        raise ConfigError(
            f"--policy {args.policy}: not in {checkpoint}, expected one of {sorted(found)[:20]}; choose one of these"
        )
    with writing("export", f"policies in {target}"):
        for policy_id in found if args.policy is None else [args.policy]:
            folder = entries[policy_id]["folder"]
            shutil.copytree(
                checkpoint / POLICIES / folder, target if args.policy is not None else target / folder
            )
    print_text(f"{target}\n  show it: menv show {shlex.quote(str(target))}", program)
    return 0
