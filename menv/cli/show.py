"""`menv show`: prints the contents of a run, a checkpoint or a policy folder, without torch, and checks every file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from menv.cli.arguments import Parser, option, parsed, print_text
from menv.cli.reopen import take_level
from menv.errors import ConfigError
from menv.inference import checkpoint_folder, policy_bundle
from menv.inference.checkpoint_folder import (
    POLICIES,
    SNAPSHOTS,
    find_checkpoint,
    policy_folders,
    read_manifest,
)
from menv.plain_files import folder_given, writing
from menv.policy import Policy
from menv.serialization import shell_word
from menv.tracking.run_folder import Run, scalars

_SHOWN = (
    "training_iteration", "num_env_steps_sampled", "time_total_s", "episodes_total", "episode_reward_mean",
    "episode_len_mean", "evaluation/episode_reward_mean",
)  # fmt: skip
"""The last results that are shown."""

_COMMAND = 10_000
"""Most characters of a command, which is shown whole."""


def main(arguments: Sequence[str] | None = None, program: str = "menv show") -> int:
    """Print the contents of a folder and return the exit status."""
    parser = Parser(
        prog=program,
        description="Show the contents of a run, a checkpoint or a policy, and check their files.",
    )
    option(parser, "folder", "a run folder, a folder of checkpoints, or a policy")
    args = parsed(parser, arguments)
    given = folder_given("show", args.folder)
    path = checkpoint_folder.checkpoint_root(given)
    run, policies = None, {}
    with suppress(ConfigError):
        run = Run(given)
    if run is None or run.checkpoints.is_dir():
        found: Any = Policy.from_checkpoint(path)
        policies = found if isinstance(found, dict) else {found.policy_id: found}
    lines = [*(() if run is None else _run(run)), *_checkpoint(path)]
    for policy_id, policy in policies.items():
        lines.append(f"policy {policy_id}")
        lines += [f"  observations  {policy.observation_space}", f"  actions       {policy.action_space}"]
    print_text("\n".join(lines), program)
    return 0


def _run(run: Run) -> Iterator[str]:
    yield f"run {run.path}{' (is being written)' if run.is_running else ''}"
    yield from (f"  command       {_clean(line, _COMMAND)}" for line in run.command.splitlines())
    yield f"  digest        {_clean(run.digest) or 'no result yet'}"
    yield "  last results"
    last = deque(run.results(), maxlen=1)
    numbers = dict(scalars(last[0] if last else {}))
    yield from (f"    {key:<30}  {numbers[key]:,.6g}" for key in _SHOWN if key in numbers)


def _checkpoint(path: Path) -> Iterator[str]:
    here = (checkpoint_folder.MANIFEST, checkpoint_folder.LATEST)
    if (path / policy_bundle.MANIFEST).exists() or not any((path / name).exists() for name in here):
        return
    folder = find_checkpoint(path)
    manifest = {"config": None, SNAPSHOTS: {}, **read_manifest(folder)}
    env = manifest["config"].get("env") if isinstance(manifest["config"], dict) else None
    yield f"checkpoint {folder}"
    if others := [one.name for one in checkpoint_folder.numbered(path) if one.name != folder.name]:
        yield f"  others        {', '.join(sorted(others)[-8:])}"
    run, number, version = (_clean(manifest.get(key)) for key in ("algorithm", "iteration", "menv_version"))
    yield f"  algorithm     {run}, {number} iterations, menv {version}"
    if names := sorted(manifest[SNAPSHOTS], key=lambda name: (len(name), name)):
        yield f"  snapshots     {', '.join(map(_clean, names[-12:]))}"
    yield f"  environment   {_clean(env) if isinstance(env, str) else 'given by the program'}"


def _clean(value: Any, most: int = 200) -> str:
    """Return the beginning of a text of a file, in one line."""
    return str(value)[:most].replace("\n", "\\n")


def export(arguments: Sequence[str], program: str) -> int:
    """Copy policies of the latest checkpoint and return the exit status."""
    parser = Parser(
        prog=program,
        description="Copy the policies of a run into folders that Policy.from_checkpoint reads without torch.",
    )
    option(parser, "run", "a run folder, or a checkpoint")
    option(parser, "-o --output", "a new folder (default: NAME-policies)", metavar="DIR")
    either = parser.add_mutually_exclusive_group()
    option(either, "--policy", "copy one policy, or one snapshot of a league, into DIR itself", metavar="ID")
    take_level(either)
    args = parsed(parser, arguments)
    checkpoint = find_checkpoint(args.run)
    target = Path(args.output or f"{Path(args.run).resolve().name}-{POLICIES}")
    if target.exists():
        raise ConfigError(f"-o {target}: exists, expected a name that is free; choose another name")
    manifest = read_manifest(checkpoint)
    snapshot = args.level or (args.policy if args.policy in manifest.get(SNAPSHOTS, {}) else None)
    folders = policy_folders(checkpoint, manifest, snapshot)
    if args.policy is not None:
        chosen = manifest[SNAPSHOTS][snapshot] if snapshot else {args.policy}
        folders = {name: folder for name, folder in folders.items() if name in chosen}
    if not folders:
        raise ConfigError(
            f"--policy {args.policy}: not in {checkpoint}, expected one of "
            f"{[*manifest[POLICIES], *manifest.get(SNAPSHOTS, {})][:20]}; choose one of these"
        )
    # Every file is checked before anything is copied.
    Policy.from_checkpoint(checkpoint, folders, snapshot=snapshot)
    alone = args.policy is not None and len(folders) == 1
    with writing("export", f"policies in {target}"):
        for policy_id, folder in folders.items():
            policy_bundle.copy_folder(folder, target if alone else target / manifest[POLICIES][policy_id])
    print_text(f"{target}\n  show it: menv show {shell_word(str(target))}", program)
    return 0
