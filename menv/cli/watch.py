"""`menv watch`: renders the policies of a run in the terminal, or into a GIF."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from menv.cli.arguments import Parser, count, parsed, print_text, take_imports
from menv.cli.reopen import reopened, take_trust
from menv.errors import ConfigError
from menv.plain_files import writing
from menv.playing.game import Game, Position
from menv.playing.terminal import picture_lines, status_line
from menv.wrappers.record_episodes import quantized, write_gif

_FPS = 10
_MOST_FPS_SHOWN = 30


def main(arguments: Sequence[str] | None = None, program: str = "menv watch") -> int:
    """Show episodes of policies and return the exit status."""
    parser = Parser(prog=program, description="Watch the policies of a run.")
    take_game(parser)
    parser.add_argument("--episodes", type=count, default=1, help="number of episodes (%(default)s)")
    parser.add_argument("--fps", type=_rate, help="pictures a second (that of the environment, else 10)")
    parser.add_argument("--gif", metavar="FILE", help="write an animated GIF")
    args = parsed(parser, arguments)
    path = args.gif
    if path and not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {Path(path).parent}, expected one; create it")
    with ExitStack() as stack:
        game = stack.enter_context(game_of(args, None, "rgb_array" if path else None))
        fps = args.fps or float((getattr(game.env, "metadata", None) or {}).get("render_fps") or _FPS)
        shown: _Screen | _Film = _Screen(game, program, fps if args.fps else min(fps, _MOST_FPS_SHOWN))
        if path:
            shown = stack.enter_context(_gif(path, fps))
        for episode in range(args.episodes):
            position = _played(game, shown)
            line = f"episode {episode + 1}: {position.outcome}, {position.steps} env steps"
            print_text(line, program)
    if path:
        print_text(f"wrote {path}", program)
    return 0


def _played(game: Game, shown: _Screen | _Film) -> Position:
    position = game.start()
    shown.show(position, first=True)
    while not position.done:
        steps = position.steps
        position = game.advance(1)
        if position.steps != steps:
            shown.show(position)
    return position


def take_game(parser: argparse.ArgumentParser) -> None:
    """Add what `game_of` reads."""
    parser.add_argument("run", help="a run folder, or a folder of checkpoints")
    parser.add_argument("--env", help="the environment, as for train, if the run cannot name it")
    parser.add_argument(
        "--policy", metavar="[AGENT=]ID", dest="policies", action="append", default=[],
        help="the policy of an agent, or of all; AGENT may be a pattern such as 'car_*'; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, help="of the environment and of sampled actions (another one each time)"
    )
    chooses = parser.add_mutually_exclusive_group()
    chooses.add_argument("--greedy", action="store_true", help="take the most likely actions (the default)")
    chooses.add_argument("--sample", action="store_true", help="sample actions")
    take_trust(parser)
    take_imports(parser)


def game_of(args: argparse.Namespace, human: str | None, render_mode: str | None) -> Game:
    """Return the game of the arguments."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        # Without a display SDL prints an error.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    pairs = [one.rpartition("=") for one in args.policies]
    seed = secrets.randbelow(1 << 31) if args.seed is None else args.seed
    return reopened(args, args.run, lambda: Game(
        args.run, human=human, env=args.env, policies={agent or "*": name for agent, _, name in pairs},
        seed=seed, greedy=not args.sample, render_mode=render_mode,
    ))  # fmt: skip


class _Screen:
    """Draws in place on a terminal; prints each position one below the other elsewhere."""

    def __init__(self, game: Game, program: str, fps: float) -> None:
        self._game, self._program, self._pause = game, program, 1 / fps
        self._in_place = sys.stdout is not None and sys.stdout.isatty()
        self._drawn = 0
        self._due = 0.0

    def show(self, position: Position, first: bool = False) -> None:
        columns, rows = shutil.get_terminal_size()
        if isinstance(position.picture, np.ndarray) and not self._in_place:
            raise ConfigError(
                "stdout: no terminal, expected one to show pictures in; write them to a file with --gif FILE"
            )
        lines = picture_lines(position.picture, columns, rows - 3, colours=True)
        lines.append(status_line(self._game, position, columns))
        if not self._in_place:
            print_text("\n".join(lines), self._program, is_drawn=True)
            return
        time.sleep(max(self._due - time.monotonic(), 0.0))
        self._due = time.monotonic() + self._pause
        up = f"\x1b[{self._drawn}A" if self._drawn and not first else ""
        # Lines that are too long are cut by the terminal, not wrapped.
        body = "\n".join(f"{line}\x1b[K" for line in lines)
        print_text(f"{up}\x1b[?7l{body}\x1b[J\x1b[?7h", self._program, is_drawn=True)
        self._drawn = len(lines)


class _Film:
    """Collects the pictures of a GIF, which shows the last one of an episode for a second."""

    def __init__(self, path: str, fps: float) -> None:
        self._path, self._hold = path, round(fps)
        self.frames: list[Any] = []

    def show(self, position: Position, first: bool = False) -> None:
        if not isinstance(position.picture, np.ndarray):
            raise ConfigError(
                f"{self._path}: the environment renders {'text' if position.picture else 'nothing'}, expected pictures "
                "(render_mode rgb_array); watch it in the terminal"
            )
        frame = quantized(position.picture, f"--gif {self._path}")
        self.frames += [frame] * (self._hold if position.done else 1)


@contextmanager
def _gif(path: str, fps: float) -> Iterator[_Film]:
    film = _Film(path, fps)
    try:
        yield film
    finally:
        # Ctrl-C keeps what was played.
        if film.frames:
            with writing("--gif", path):
                write_gif(film.frames, Path(path), fps)


def _rate(text: str) -> float:
    with suppress(ValueError):
        if 0.1 <= float(text) <= 1000:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}, expected a number from 0.1 to 1000")
