"""`menv match`: plays runs and snapshots against each other, and prints their ratings."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from menv.cli.arguments import Parser, count, option, parsed, print_text, seed
from menv.cli.reopen import reopened, take_env
from menv.playing.game import Game
from menv.playing.match import Match, play_match
from menv.tracking.curves import plot_points


def main(arguments: Sequence[str] | None = None, program: str = "menv match") -> int:
    """Play the match of the arguments, print its table and return the exit status."""
    parser = Parser(
        prog=program,
        description="Play runs and snapshots against each other, and print their ratings and their points: a win is "
        "one point, a draw half of one.",
    )
    option(
        parser, "players",
        "run folders, or snapshots of a league such as runs/game:snapshot_3, runs/game:easy, :medium and :hard",
        metavar="RUN[:SNAPSHOT]", nargs="+",
    )  # fmt: skip
    option(parser, "--games", "games of each pair of players", type=count, default=100)
    option(parser, "-o --output", "draw a heat map of the points, a .png, .svg or .pdf file", metavar="FILE")
    take_env(parser)
    option(parser, "--seed", "the seed of the games (default: a new one each time)", type=seed)
    args = parsed(parser, arguments)
    first = secrets.randbelow(1 << 31) if args.seed is None else args.seed
    with ExitStack() as stack:
        # Players with the same seed would sample alike.
        players = {
            name: stack.enter_context(_player(args, name, first + number))
            for number, name in enumerate(dict.fromkeys(args.players))
        }
        match = play_match(players, args.games)
    print_text("\n".join(_table(match)), program)
    if args.output:
        plot_points(args.output, match.players, match.points)
        print_text(f"wrote {args.output}", program)
    return 0


def _player(args: argparse.Namespace, name: str, seed: int) -> Game:
    run, _, snapshot = (name, "", "") if Path(name).exists() else name.rpartition(":")
    return reopened(args, run or name, lambda: Game(
        run or name, env=args.env, policies={"*": snapshot} if run and snapshot else None, seed=seed, greedy=False
    ))  # fmt: skip


def _table(match: Match) -> list[str]:
    """Return a line for each player: its rating, and its points against all and against each other one."""
    wide = max(map(len, match.players))
    rows = [["", f"{'player':<{wide}}", "rating", "points", *map(str, range(1, len(match.players) + 1))]]
    for number, (name, rating, row) in enumerate(
        zip(match.players, match.ratings, match.points, strict=True), start=1
    ):
        others = ["" if np.isnan(share) else f"{share:.0%}" for share in row]
        rows.append([str(number), f"{name:<{wide}}", f"{rating:,.0f}", f"{np.nanmean(row):.0%}", *others])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
