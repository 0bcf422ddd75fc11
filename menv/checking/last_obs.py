"""Whether the last observations that come with the first ones of the next episodes are last ones.

The stage of vectorised gymnasium environments asks at every step. An environment that writes all its observations into
one array has written the first one of the next episode over the last one, by the time anybody sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from menv.checking.report import Report
from menv.checking.transcript import same
from menv.nested import own_copy


class LastObs:
    """What the ends so far have shown."""

    def __init__(self, report: Report) -> None:
        self._report = report
        # By sub-environment: a last observation, and a copy of it.
        self._kept: dict[int, tuple[Any, Any]] = {}
        # By sub-environment: the first observation that was equal to the last one before it.
        self._firsts: dict[int, Any] = {}
        self._others = False

    def take(self, step: int, finals: Any, done: Sequence[int], rows: Sequence[Any]) -> None:
        """Look at the ends of an env step.

        Args:
            step: Env steps so far.
            finals: Last observations by index.
            done: Whose episodes ended.
            rows: The first observations after them, by index.
        """
        for index, (final, then) in self._kept.items():
            if not same(final, then):
                self._tell(index, "changes with the next step", step)
        self._kept.clear()
        for index in done:
            self._kept[index] = finals[index], own_copy(finals[index])
            if not same(finals[index], rows[index]):
                self._others = True
                continue
            first = self._firsts.setdefault(index, own_copy(rows[index]))
            # Episodes that begin differently do not end each where the next one begins.
            if not self._others and not same(first, rows[index]):
                self._tell(index, "is what the next episode begins with, at each end so far", step)

    def _tell(self, index: int, what: str, step: int) -> None:
        self._report.add(
            "ME101",
            f"env {index}: infos['final_obs'] {what}, expected the last observation of the episode",
            step,
        )
