"""Reads the command line and calls one of the commands, each in a file of this package.

Nothing heavy is imported before the command is known.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from importlib import import_module
from typing import Any, cast

import menv
from menv.cli.arguments import (
    Parser,
    import_modules,
    merge,
    run_command,
    settings_argument,
    stop_bounds,
    take_imports,
)

_CONFIG = (
    "settings of the algorithm: a JSON object, a .json or .toml file, or KEY=VALUE with dots for sections, such as "
    "model.fcnet_hiddens=[64,64]; may be repeated, later settings override earlier ones; a value @module:name is a "
    "Python object, such as multiagent.policy_mapping_fn=@my_game:policy_for"
)
_TRAIN = """\
examples:
  menv train CartPole-v1 --stop episode_reward_mean=450 --save run
  menv train tictactoe --policies each --config gamma=1.0 --stop time_total_s=60 --save run
  menv train my_game:Corridor --run DQN --config settings.toml --stop num_env_steps_sampled=100000
  menv train --resume run --stop training_iteration=200"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of the arguments and return the exit status."""
    # Unlike `python -m`, a console script does not have the working directory on the path.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] and given[0] in _FORWARDED:
        return run_command(
            f"menv {given[0]}", lambda: _imported(_FORWARDED[given[0]])(given[1:], program=f"menv {given[0]}")
        )
    args = _parser().parse_args(given)
    return run_command(f"menv {args.command}", lambda: _own(args))


def _own(args: argparse.Namespace) -> int:
    import_modules(args.modules)
    for option in ("config", "stop"):
        merged: dict[str, Any] = {}
        setattr(args, option, reduce(merge, getattr(args, option, []), merged))
    if args.command == "train":
        args.env = args.named if args.env is None else args.env
    return _imported(_COMMANDS[args.command])(args)


def _imported(place: str) -> Callable[..., int]:
    module, _, function = place.partition(":")
    return cast("Callable[..., int]", getattr(import_module(module), function))


_COMMANDS = {
    "train": "menv.cli.train:train",
    "evaluate": "menv.cli.evaluate:evaluate",
    "show": "menv.cli.show:show",
}
_FORWARDED = {"check": "menv.cli.check:main", "verify": "menv.cli.verify:main"}
"""Commands that read their own arguments."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="menv", description="Train agents in any environment; `menv COMMAND --help` shows the options."
    )
    parser.add_argument("--version", action="version", version=f"menv {menv.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    train = commands.add_parser(
        "train", help="train policies in an environment", description="Train policies in an environment.",
        epilog=_TRAIN, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    env = train.add_mutually_exclusive_group()
    env.add_argument(
        "env",
        nargs="?",
        help="a built-in name, a gymnasium id, or package.module:Class; optional with --resume",
    )
    env.add_argument("--env", dest="named", metavar="ENV", help="the same")
    train.add_argument("--run", choices=("PPO", "DQN", "QMIX"), help="the algorithm (PPO)")
    train.add_argument(
        "--policies", choices=("shared", "each"), default="shared",
        help="one policy for all agents, or one for each of possible_agents, named after it (%(default)s)",
    )  # fmt: skip
    train.add_argument(
        "--stop", metavar="KEY=VALUE", type=stop_bounds, action="append", default=[],
        help="stop when this result reaches VALUE, such as evaluation/episode_reward_mean=450; may be repeated, the "
        "first bound that is reached counts; without it, train until Ctrl-C",
    )  # fmt: skip
    train.add_argument("--save", metavar="FOLDER", help="write a checkpoint at the end, also after Ctrl-C")
    train.add_argument("--every", metavar="N", type=_count, help="also write a checkpoint every N iterations")
    train.add_argument("--keep", metavar="N", type=_count, help="keep only the N latest checkpoints")
    train.add_argument(
        "--resume",
        metavar="FOLDER",
        help="resume from the latest checkpoint in FOLDER, and save there by default",
    )
    evaluate = commands.add_parser(
        "evaluate", help="evaluate trained policies",
        description="Evaluate the policies of a checkpoint without learning.",
    )  # fmt: skip
    evaluate.add_argument("folder", help="the folder of --save, or a numbered folder in it")
    evaluate.add_argument("--env", help="the environment, as for train, if the checkpoint cannot name it")
    evaluate.add_argument("--episodes", type=_count, default=100, help="number of episodes (%(default)s)")
    evaluate.add_argument("--record", metavar="FOLDER", help="record each rendered episode in FOLDER")
    for command in (train, evaluate):
        command.add_argument(
            "--config", metavar="SETTINGS", type=settings_argument, action="append", default=[], help=_CONFIG
        )
        command.add_argument("--json", action="store_true", help="print results as JSON, one object per line")
    show = commands.add_parser(
        "show",
        help="show the contents of a folder",
        description="Show the contents of a checkpoint or a policy folder, and check its files.",
    )
    show.add_argument("folder")
    for command in (train, evaluate, show):
        take_imports(command)
    commands.add_parser("check", help="find errors in an environment (python -m menv.checking)")
    commands.add_parser("verify", help="check reproducibility across back-ends (python -m menv.verify)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)
