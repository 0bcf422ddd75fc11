"""`menv envs [WORD]`: lists the names that `env` may have; nothing is created."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from menv.cli.arguments import Parser, parsed, print_text, take_imports
from menv.registry import env_names, unknown_name


def main(arguments: Sequence[str] | None = None, program: str = "menv envs") -> int:
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


_MORE = """\
Other names: package.module:Class, and path/to/file.py:Class. Environments of PettingZoo and OpenSpiel are listed if
these are installed: pip install 'menv-rl[pettingzoo]' open_spiel"""
