"""Commands that play games with the policies of runs: `watch`, `play` and `match`.

`watch` shows texts in the terminal and pictures in a GIF; in `play` a person plays an agent, in the terminal or in a
browser; `match` lets runs and snapshots play against each other, and prints their ratings.
"""

from __future__ import annotations

import argparse
import io
import os
import secrets
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from menv.cli.arguments import (
    Parser,
    count,
    option,
    parsed,
    port,
    print_error,
    print_text,
    repeated,
    seed,
    switch,
)
from menv.cli.reopen import reopened, take_env, take_level
from menv.errors import ConfigError
from menv.plain_files import writing
from menv.playing.game import Game, Picture, Position, metadata_of
from menv.playing.match import Match, play_match
from menv.serialization import shell_word
from menv.tracking.curves import plot_points
from menv.wrappers.record_episodes import quantized, write_gif

_FPS = 10
_QUIT = ("q", "quit")
_PORT = 8765


def watch(arguments: Sequence[str], program: str) -> int:
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


def play(arguments: Sequence[str], program: str) -> int:
    """Play one game and return the exit status."""
    parser = Parser(prog=program, description="Play an agent against the policies of a run.")
    take_game(parser)
    option(parser, "--as", "the agent that you play", metavar="AGENT", dest="human")
    switch(parser, "--hints", "show how likely the policy of your agent takes each move")
    switch(parser, "--show-all", "without render_for: show the whole game, also what other agents may hide")
    switch(parser, "--browser", "play on a page that a browser on this machine shows")
    option(parser, "--port", "the port of the page; 0 chooses a free one", type=port, default=_PORT)
    args = parsed(parser, arguments)
    if args.browser:
        return _serve(args, program)
    with game_of(args, args.human, None) as game:
        if game.human is None:
            seats = game.seats(None)
            raise ConfigError(
                f"--as: no agent is given, expected one of {seats[:20]}; write --as {shell_word(seats[0])}"
            )
        game.show_all = args.show_all or (game.may_reveal and _may_show(program))
        _play(game, program, hints=args.hints)
    return 0


def _serve(args: argparse.Namespace, program: str) -> int:
    from menv.playing.browser import PlayServer

    game = game_of(args, args.human, "rgb_array")
    if getattr(game.env, "render_mode", None) != "rgb_array":
        game.close()
        game = game_of(args, args.human, None)
    game.show_all = args.show_all
    try:
        server = PlayServer(game, title=args.run, port=args.port)
    except BaseException:
        game.close()
        raise
    print_text(f"{program}: open {server.url} in a browser; Ctrl-C ends", program)
    server.run()
    return 0


def _may_show(program: str) -> bool:
    """Ask whether a person wants to see what other agents may hide; without a terminal the answer is no."""
    why = "the environment has no render_for, so its picture may show what other agents hide"
    if sys.stdin is None or not sys.stdin.isatty():
        print_error(f"{why}: it is shown at the end, or always with --show-all")
        return False
    print_text(f"{why}. Show it? [y/N] ", program, end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _play(game: Game, program: str, *, hints: bool) -> None:
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Bytes that are not text are no legal move.
        sys.stdin.reconfigure(errors="replace")
    position = game.start()
    while True:
        position, moves = _policies_move(game, position)
        _show(moves, position, program)
        if position.done:
            break
        question = "\n".join(question_lines(position, shutil.get_terminal_size().columns, hints=hints))
        action = _asked(position, question, program)
        if action is None:
            print_text("the game was left", program)
            return
        position = game.step(action)
    print_text(f"{position.outcome} after {position.steps} moves", program)


def _policies_move(game: Game, position: Position) -> tuple[Position, list[str]]:
    """Let policies act until it is the person's turn or the end; return also a line for each of their moves."""
    moves: list[str] = []
    movers: list[object] = []
    while not position.done and position.agent != game.human:
        steps = position.steps
        movers.append(position.agent)
        position = game.advance(1)
        if position.steps > steps:
            names = {agent: game.action_name(agent, position.last_actions[agent]) for agent in movers}
            moves += [f"{agent} plays {name}" for agent, name in names.items()]
            movers.clear()
    return position, moves


def _show(moves: list[str], position: Position, program: str) -> None:
    lines = moves[-shutil.get_terminal_size().lines :]
    # Colours are for terminals.
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if is_terminal else 0
    lines += ["", *picture_lines(position.picture, columns), ""]
    if any(position.returns.values()) and not position.done:
        lines.append(f"returns: {returns_text(position.returns)}")
    print_text("\n".join(lines), program, is_drawn=True)


def _asked(position: Position, question: str, program: str) -> int | None:
    """Return the person's legal action; None if the game is left."""
    print_text(question, program)
    while True:
        print_text("> ", program, end="")
        typed = sys.stdin.readline() if sys.stdin is not None else ""
        if not typed or typed.strip().lower() in _QUIT:
            return None
        action = chosen_action(position, typed)
        if action is not None:
            return action
        print_text(
            f"{typed.strip()[:40]!r} is not a legal move; type a number or a name from the list, or q",
            program,
        )


def match(arguments: Sequence[str], program: str) -> int:
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
        played = play_match(players, args.games)
    print_text("\n".join(_table(played)), program)
    if args.output:
        plot_points(args.output, played.players, played.points)
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


_MOST_AGENTS = 4


def picture_lines(picture: Picture | None, columns: int = 0) -> list[str]:
    """Return the lines of a text, or pixels as half blocks of colour, two above each other in a character.

    `columns` is the width for pixels; 0 leaves them out.
    """
    if picture is None or isinstance(picture, str):
        return [] if picture is None else picture.strip("\n").split("\n")
    height, width, _ = picture.shape
    wide = min(columns - 1, width)
    if wide < 1:
        return []
    high = 2 * max(1, round(height * wide / width / 2))
    small = picture[np.arange(high) * height // high][:, np.arange(wide) * width // wide]
    return [
        "".join(
            f"\x1b[38;2;{r};{g};{b};48;2;{x};{y};{z}m\N{UPPER HALF BLOCK}"
            for (r, g, b), (x, y, z) in zip(upper.tolist(), lower.tolist(), strict=True)
        )
        + "\x1b[0m"
        for upper, lower in zip(small[::2], small[1::2], strict=True)
    ]


def status_line(game: Game, position: Position, columns: int) -> str:
    """Return the step, the last actions and the returns, cut to the width."""
    parts = [f"step {position.steps}"]
    if len(game.agents) <= _MOST_AGENTS:
        parts += [f"{agent}: {game.action_name(agent, one)}" for agent, one in position.last_actions.items()]
        parts += [f"return {returns_text(position.returns)}"]
    else:
        parts += [f"mean return {sum(position.returns.values()) / len(position.returns):.2f}"]
    return "  ".join(parts)[: max(columns - 1, 1)]


def returns_text(returns: Mapping[object, float]) -> str:
    """Return the returns of all agents in a few characters."""
    return " ".join(f"{value:g}" if value == round(value) else f"{value:.2f}" for value in returns.values())


def question_lines(position: Position, columns: int, *, hints: bool) -> list[str]:
    """Return the legal actions with their names and, with `hints`, their probabilities, wrapped to the width."""
    words = []
    for action, name in zip(position.legal, position.names, strict=True):
        chance = f" {position.probabilities[action]:.0%}" if hints and position.probabilities else ""
        words.append(f"{action}{'' if name == str(action) else f' {name}'}{chance}".replace(" ", "\xa0"))
    text = f"{position.agent}, your move: {', '.join(words)}"
    return [line.replace("\xa0", " ") for line in _wrap(text, columns)]


def _wrap(text: str, columns: int) -> list[str]:
    # Unlike `str.split`, textwrap breaks at plain blanks only.
    return textwrap.wrap(text, max(columns - 1, 20), break_on_hyphens=False, subsequent_indent="  ")


def chosen_action(position: Position, typed: str) -> int | None:
    """Return the legal action that a number or a name means, None if it is not a legal one."""
    known = {name.casefold(): action for action, name in zip(position.legal, position.names, strict=True)}
    known |= {str(action): action for action in position.legal}
    return known.get(" ".join(typed.split()).casefold())
