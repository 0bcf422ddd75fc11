"""The `menv` command: reads the command line and hands it to one of the commands, each of which is a file beside this.

Nothing heavy is imported before a command is known.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import menv
from menv.cli.arguments import CommandSettings, Stop
from menv.cli.command_line import Parser, ends
from menv.registry import import_first, take_imports

_CONFIG = (
    "settings of the algorithm: a JSON object, a .json or .toml file, or KEY=VALUE with dots for sections, such as "
    "model.fcnet_hiddens=[64,64]; may be given again, later ones are put over earlier ones; a value @module:name is a "
    "Python object, such as multiagent.policy_mapping_fn=@my_game:policy_for"
)
_TRAIN = """\
examples:
  menv train CartPole-v1 --stop episode_reward_mean=450 --save run
  menv train tictactoe --policies each --config gamma=1.0 --stop time_total_s=60 --save run
  menv train my_game:Corridor --run DQN --config settings.toml --stop num_env_steps_sampled=100000
  menv train --resume run --stop training_iteration=200"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Args:
        arguments: Those of the command line by default.

    Returns:
        The exit status: 0; 1 where an environment or policy failed, `check` or `verify` found something, or nobody
        takes what is printed; 2 where a setting is wrong; 130 after Ctrl-C.

    Raises:
        SystemExit: With status 2, if the arguments are wrong; 1, if nothing takes what is printed.
    """
    # A script has the folder of its own file on the path, `python -m` the working directory; this has neither.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] and given[0] in _HANDED_ON:
        return ends(f"menv {given[0]}", lambda: _HANDED_ON[given[0]](given[1:]))
    read = _parser().parse_args(given)
    return ends(f"menv {read.command}", lambda: _own(read))


def _own(read: argparse.Namespace) -> int:
    import_first(read.modules)
    return _COMMANDS[read.command](read)


def _train(given: argparse.Namespace) -> int:
    from menv.cli.train import train

    given.env = given.named if given.env is None else given.env
    return train(given)


def _evaluate(given: argparse.Namespace) -> int:
    from menv.cli.evaluate import evaluate

    return evaluate(given)


def _show(given: argparse.Namespace) -> int:
    from menv.cli.show import show

    return show(given)


def _check(arguments: Sequence[str]) -> int:
    from menv.cli.check import main as check

    return check(arguments, program="menv check")


def _verify(arguments: Sequence[str]) -> int:
    from menv.cli.verify import main as verify

    return verify(arguments, program="menv verify")


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "show": _show,
}
_HANDED_ON: dict[str, Callable[[Sequence[str]], int]] = {"check": _check, "verify": _verify}


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="menv", description="Train many agents in any environment; `menv COMMAND --help` tells more."
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
        help="a built-in name, a gymnasium id, or package.module:Class; not needed with --resume",
    )
    env.add_argument("--env", dest="named", metavar="ENV", help="the same")
    train.add_argument("--run", choices=("PPO", "DQN", "QMIX"), help="the algorithm (PPO)")
    train.add_argument(
        "--policies", choices=("shared", "each"), default="shared",
        help="one policy for all agents, or one for each that is listed, called as the agent is (%(default)s)",
    )  # fmt: skip
    train.add_argument(
        "--stop", metavar="KEY=VALUE", action=Stop, default={},
        help="end when this key of a result has reached VALUE, such as evaluation/episode_reward_mean=450; the first "
        "of several; without it until Ctrl-C",
    )  # fmt: skip
    train.add_argument("--save", metavar="FOLDER", help="write a checkpoint at the end, also at Ctrl-C")
    train.add_argument("--every", metavar="N", type=_count, help="write one every N iterations too")
    train.add_argument(
        "--keep", metavar="N", type=_count, help="delete all checkpoints but the N written last"
    )
    train.add_argument(
        "--resume", metavar="FOLDER", help="go on from its latest checkpoint, and save there by default"
    )
    evaluate = commands.add_parser(
        "evaluate", help="let trained policies play",
        description="Let the policies of a checkpoint play without learning.",
    )  # fmt: skip
    evaluate.add_argument("folder", help="what --save was given, or a numbered folder in it")
    evaluate.add_argument("--env", help="where the checkpoint cannot know it, as for train")
    evaluate.add_argument("--episodes", type=_count, default=100, help="how many (%(default)s)")
    evaluate.add_argument(
        "--record", metavar="FOLDER", help="write each episode there as it is rendered, to look at"
    )
    for command in (train, evaluate):
        command.add_argument("--config", metavar="SETTINGS", action=CommandSettings, default={}, help=_CONFIG)
        command.add_argument("--json", action="store_true", help="print results as JSON, one object a line")
    show = commands.add_parser(
        "show",
        help="tell what a folder holds",
        description="Tell what a checkpoint or a policy's folder holds.",
    )
    show.add_argument("folder")
    for command in (train, evaluate, show):
        take_imports(command)
    commands.add_parser("check", help="find what is wrong with an environment (python -m menv.checking)")
    commands.add_parser("verify", help="compare an environment in all back-ends (python -m menv.verify)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number from 1")
    return int(text)
