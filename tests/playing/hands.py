"""A game in which each of two agents sees its own card only, for the tests of what a person sees."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tests.worlds import Several

SECRET = "birch"
"""A word that belongs to "b" alone."""


class Hands(Several):
    """Agents take turns twice; its pictures, and the names of actions, show the cards of both."""

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": ["ansi", "rgb_array"],
        "action_names": {"a": ["acorn", "ash"], "b": [SECRET, "beech"]},
    }
    length = 4

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.render_mode = self.config.get("render_mode", "ansi")

    def shown(self) -> Any:
        return "ab"[self.at % 2]

    def pay(self, actions: Any) -> Any:
        return {}

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"a has acorn, b has {SECRET}"
        return np.full((4, 4, 3), 200, np.uint8)


class OwnHands(Hands):
    """The same with a view of each agent: text for "a", a picture of 10 x 6 pixels for "b"."""

    def render_for(self, agent: Any) -> Any:
        return "you have acorn" if agent == "a" else np.full((6, 10, 3), (250, 10, 20), np.uint8)
