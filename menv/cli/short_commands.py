"""Short commands: `menv plot` and `report` show runs, `export` copies policies, `envs` lists names."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from menv.cli.arguments import Parser, parsed, print_text, take_imports
from menv.errors import ConfigError
from menv.inference.checkpoint_folder import POLICIES, find_checkpoint, read_manifest
from menv.policy import Policy
from menv.registry import env_names, unknown_name
from menv.serialization import writing
from menv.tracking.report import plot_runs, write_report

_MORE = """\
Other names: package.module:Class, and path/to/file.py:Class. Environments of PettingZoo and OpenSpiel are listed if
these are installed: pip install 'menv-rl[pettingzoo]' open_spiel"""


def plot(arguments: Sequence[str], program: str) -> int:
    """Draw the picture of the arguments and return the exit status."""
    parser = Parser(prog=program, description="Draw a curve of each policy of runs of one environment.")
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="run folders; seeds of the same settings are one curve"
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="a .png or .svg file")
    parser.add_argument(
        "--key", default="policy_reward_mean", help="a result key, a column of progress.csv (%(default)s)"
    )
    args = parser.parse_args(arguments)
    path = plot_runs(args.runs, args.output, args.key)
    print_text(f"wrote {path}", program)
    return 0


def report(arguments: Sequence[str], program: str) -> int:
    """Write the report of the arguments and return the exit status."""
    parser = Parser(
        prog=program,
        description="Write a report of runs of one environment as an HTML file that opens offline.",
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="run folders; seeds of the same settings are summarized"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file (RUN/report.html; report.html for several runs)"
    )
    args = parser.parse_args(arguments)
    print_text(f"wrote {write_report(args.runs, args.output)}", program)
    return 0


def export(arguments: Sequence[str], program: str) -> int:
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


def envs(arguments: Sequence[str], program: str) -> int:
    """Print the names, one on each line, and return the exit status."""
    parser = Parser(
        prog=program, description="List environments by name.", epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("word", nargs="?", default="", metavar="WORD", help="only names that contain it")
    take_imports(parser)
    word = str(parsed(parser, arguments).word)
    lines = [
        f"{name:<44} {kind}"
        for kind, names in env_names().items()
        for name in names
        if word.lower() in name.lower() or word == kind
    ]
    if not lines:
        raise unknown_name(word)
    print_text("\n".join(lines), program)
    return 0
