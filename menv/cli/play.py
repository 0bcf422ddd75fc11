"""`menv play`: a person plays an agent against the policies of a run, in the terminal or in a browser."""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from collections.abc import Sequence

from menv.cli.arguments import Parser, option, parsed, port, print_error, print_text, switch
from menv.cli.watch import game_of, take_game
from menv.errors import ConfigError
from menv.playing.game import Game, Position
from menv.playing.terminal import chosen_action, picture_lines, question_lines, returns_text
from menv.serialization import shell_word

_QUIT = ("q", "quit")
_PORT = 8765


def main(arguments: Sequence[str] | None = None, program: str = "menv play") -> int:
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
