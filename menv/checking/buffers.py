"""Whether what an environment returned changes later, because it is one buffer.

The long play asks at every turn.
"""

from __future__ import annotations

import copy
from typing import Any

from menv.checking.report import Report
from menv.checking.stage import Turn
from menv.checking.transcript import same
from menv.nested import own_copy


class Buffers:
    """The turn before, as it was and as it is."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._turn: Turn | None = None
        self._obs: Any = None
        self._infos: dict[Any, Any] = {}

    def keep(self, turn: Turn) -> None:
        """Remember a turn."""
        self._turn = turn
        self._obs = own_copy(turn.shown)
        self._infos = {key: copy.copy(info) for key, info in turn.infos.items() if isinstance(info, dict)}

    def compare(self, step: int) -> None:
        """Note what has changed since."""
        assert self._turn is not None
        for key, obs in self._turn.shown.items():
            if not same(obs, self._obs.get(key)):
                message = f"agent {key[1]!r}: the observation of the turn before has changed"
                self._report.add("ME070", message, step)
        for name, info in self._infos.items():
            if not same(self._turn.infos[name], info):
                self._report.add("ME074", f"the info of {name!r} of the turn before has changed", step)
