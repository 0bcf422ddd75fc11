"""`menv watch`: renders the policies of a run: texts in the terminal, pictures into a GIF."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from menv.cli.arguments import Parser, count, option, parsed, print_text, repeated, switch
from menv.cli.reopen import reopened, take_env, take_level
from menv.errors import ConfigError
from menv.plain_files import writing
from menv.playing.game import Game, Position, metadata_of
from menv.playing.terminal import picture_lines, status_line
from menv.wrappers.record_episodes import quantized, write_gif

_FPS = 10


def main(arguments: Sequence[str] | None = None, program: str = "menv watch") -> int:
    """Show episodes of policies and return the exit status."""
    parser = Parser(prog=program, description="Watch the policies of a run.")
    take_game(parser)
    option(parser, "--episodes", "number of episodes", type=count, default=1)
    option(parser, "--fps", "pictures per second (default: that of the environment, or 10)", type=_rate)
    option(parser, "--gif", "write pictures as an animated GIF (default: RUN.gif)", metavar="FILE")
    args = parsed(parser, arguments)
    path = args.gif
    if path and not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {Path(path).parent}, expected one; create it")
    with ExitStack() as stack:
        game = stack.enter_context(game_of(args, None, "rgb_array" if path else None))
        if path is None and getattr(game.env, "render_mode", None) == "rgb_array":
            path = f"{Path(args.run).resolve().name}.gif"
        fps = args.fps or float(metadata_of(game.env).get("render_fps") or _FPS)
        show: Callable[[Position], None] = partial(_print, game, program, fps)
        if path:
            show = (film := _Film(path, fps)).show
            # Ctrl-C keeps what was played.
            stack.callback(film.write)
        for episode in range(args.episodes):
            position = _played(game, show)
            print_text(f"episode {episode + 1}: {position.outcome}, {position.steps} env steps", program)
    if path:
        print_text(f"wrote {path}", program)
    return 0


def _played(game: Game, show: Callable[[Position], None]) -> Position:
    position = game.start()
    show(position)
    while not position.done:
        steps = position.steps
        position = game.advance(1)
        if position.steps != steps:
            show(position)
    return position


def take_game(parser: argparse.ArgumentParser) -> None:
    """Add what `game_of` reads."""
    option(parser, "run", "a run folder, or a folder of checkpoints")
    take_env(parser)
    either = parser.add_mutually_exclusive_group()
    repeated(
        either, "--policy",
        "the policy of an agent, or of all, or a snapshot of a league, such as snapshot_3; AGENT may be a pattern such "
        "as 'car_*'", metavar="[AGENT=]ID", dest="policies",
    )  # fmt: skip
    take_level(either)
    option(parser, "--seed", "the seed of episodes and sampled actions (default: a new one)", type=int)
    switch(parser, "--sample", "sample actions, not the most likely ones")


def game_of(args: argparse.Namespace, human: str | None, render_mode: str | None) -> Game:
    """Return the game of the arguments."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        # Without a display SDL prints an error.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    pairs = [one.rpartition("=") for one in ([args.level] if args.level else args.policies)]
    seed = secrets.randbelow(1 << 31) if args.seed is None else args.seed
    return reopened(args, args.run, lambda: Game(
        args.run, human=human, env=args.env, policies={agent or "*": name for agent, _, name in pairs},
        seed=seed, greedy=not args.sample, render_mode=render_mode,
    ))  # fmt: skip


def _print(game: Game, program: str, fps: float, position: Position) -> None:
    """Print a position below the one before it."""
    columns = shutil.get_terminal_size().columns
    lines = [*picture_lines(position.picture), status_line(game, position, columns)]
    print_text("\n".join(lines), program, is_drawn=True)
    if sys.stdout is not None and sys.stdout.isatty():
        time.sleep(1 / fps)


class _Film:
    """Collects the pictures of a GIF, which shows the last one of an episode for a second."""

    def __init__(self, path: str, fps: float) -> None:
        self._path, self._fps, self._hold = path, fps, round(fps)
        self._frames: list[Any] = []

    def show(self, position: Position) -> None:
        if not isinstance(position.picture, np.ndarray):
            raise ConfigError(
                f"{self._path}: the environment renders {'text' if position.picture else 'nothing'}, expected pictures "
                "(render_mode rgb_array); watch it in the terminal"
            )
        frame = quantized(position.picture, f"--gif {self._path}")
        self._frames += [frame] * (self._hold if position.done else 1)

    def write(self) -> None:
        if self._frames:
            with writing("--gif", self._path):
                write_gif(self._frames, Path(self._path), self._fps)


def _rate(text: str) -> float:
    with suppress(ValueError):
        if 0.1 <= float(text) <= 1000:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}, expected a number from 0.1 to 1000")
