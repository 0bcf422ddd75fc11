"""Game: an open external episode as the sampler has it.

`menv.adapters.external` keeps one for each, and answers its turns. It knows neither callers nor policies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from menv.adapters.external_roster import ExternalRoster
from menv.line import Line, Turn


class Game:
    """An open episode: its line, its agents, and the turn that waits for an answer.

    Attributes:
        line: As given; so is `roster`.
        turn: None where nobody waits, or a whole round does.
        acted: Whether an agent has been asked, or has acted elsewhere; without it there was no episode.
    """

    __slots__ = ("acted", "line", "roster", "turn")

    def __init__(self, line: Line, roster: ExternalRoster) -> None:
        self.line = line
        self.roster = roster
        self.turn: Turn | None = None
        self.acted = False


def chosen_actions(games: Iterable[Game]) -> dict[int, Any]:
    """Return the actions that callers chose themselves, by slot."""
    return {
        slot: game.turn.actions[agent]
        for game in games
        if game.turn is not None and game.turn.actions is not None
        for agent, slot in zip(game.roster.waiting.agents, game.roster.waiting.slot_list, strict=True)
    }
