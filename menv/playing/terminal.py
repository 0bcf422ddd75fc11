"""Positions as lines of text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np

from menv.playing.game import Game, Picture, Position

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
