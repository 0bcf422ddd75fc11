"""Positions as lines of text for a terminal; pictures become half-block characters, two pixels each."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from menv.playing.game import Game, Picture, Position

_MOST_AGENTS = 4


def picture_lines(picture: Picture | None, columns: int, rows: int, *, colours: bool) -> list[str]:
    """Return the lines of a picture in at most [rows, columns] characters; texts keep their size.

    Without `colours` a picture of pixels has no lines.
    """
    if isinstance(picture, str):
        return picture.strip("\n").split("\n")
    return [] if picture is None or not colours else _half_blocks(picture, columns, rows)


def _half_blocks(picture: npt.NDArray[np.uint8], columns: int, rows: int) -> list[str]:
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * rows / height)
    # An even number of pixel rows.
    size = max(2 * round(height * scale / 2), 2), max(round(width * scale), 1)
    pixels = _resized(picture, size)
    lines = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        cells, before = [], ""
        for above, below in zip(upper, lower, strict=True):
            colour = "\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*above, *below)
            cells.append("▀" if colour == before else f"{colour}▀")
            before = colour
        lines.append(f"{''.join(cells)}\x1b[0m")
    return lines


def _resized(picture: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return a picture of another size: means of pixels where it shrinks, copies where it grows."""
    pixels = picture.astype(np.float64)
    for axis, length in enumerate(size):
        before = pixels.shape[axis]
        starts = np.arange(length) * before // length
        if length > before:
            pixels = np.take(pixels, starts, axis)
        else:
            counts = np.diff(starts, append=before).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
            pixels = np.add.reduceat(pixels, starts, axis) / counts
    return pixels.astype(np.uint8)


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
    """Return the legal action that a number or a name means, None if it is no legal one."""
    known = {name.casefold(): action for action, name in zip(position.legal, position.names, strict=True)}
    known |= {str(action): action for action in position.legal}
    return known.get(" ".join(typed.split()).casefold())
