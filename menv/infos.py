"""Infos: the info dicts of a batch, as references that are put in order when somebody asks.

`menv.ledger` notes which list of dicts came in with which rows, one reference a poll. What is never read
costs no work per row. The dicts are those of the environment; nothing here copies or changes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Info = Mapping[str, Any]

NOTHING_CAME = -1
"""The source of a row that no info dict belongs to."""


class InfoLog:
    """The info dicts of one fragment: those that came in with its rows, then those of its ends."""

    __slots__ = ("_dicts", "_ends", "_polls", "_rows")

    def __init__(
        self,
        rows: int,
        polls: Sequence[tuple[int, Sequence[Info], npt.NDArray[np.int64] | None]],
        ends: Sequence[Info],
    ) -> None:
        """Keep references.

        Args:
            rows: N, the rows of the fragment.
            polls: The first row of each poll, its dicts, and the places of its rows among them if not all.
            ends: The dicts of the M ends.
        """
        self._rows = rows
        self._polls = polls
        self._ends = ends
        self._dicts: npt.NDArray[np.object_] | None = None

    def __len__(self) -> int:
        """Return N + M."""
        return self._rows + len(self._ends)

    def entries(self, name: str) -> list[tuple[int, Any]]:
        """Return the value of an entry wherever there is one, with its place among the N + M dicts."""
        found = []
        for start, infos, places in self._polls:
            names = getattr(infos, "names", None)
            # A sequence that knows its names is not taken apart for nothing.
            if names is None or name in names:
                mine = infos if places is None else [infos[place] for place in places.tolist()]
                found += [(start + row, info[name]) for row, info in enumerate(mine) if info and name in info]
        ends = enumerate(self._ends, self._rows)
        return found + [(place, info[name]) for place, info in ends if info and name in info]

    def dicts(self) -> npt.NDArray[np.object_]:
        """Return [N + M] dicts, None where nothing came in; computed once."""
        if self._dicts is None:
            found: list[Info | None] = [None] * self._rows
            for start, infos, places in self._polls:
                mine = infos if places is None else [infos[place] for place in places.tolist()]
                found[start : start + len(mine)] = mine
            # Not by assignment from a list: numpy would take a mapping of somebody's own for a sequence.
            self._dicts = np.fromiter([*found, *self._ends], np.object_, len(self))
            self._polls, self._ends, self._rows = (), (), len(self)
        return self._dicts


class Infos:
    """The info dicts of B rows.

    Args:
        logs: Where they are.
        source: [B] index of each row's dict among those of all logs, `NOTHING_CAME` for none.
    """

    __slots__ = ("_logs", "_source")

    def __init__(self, logs: Sequence[InfoLog], source: npt.NDArray[np.int64]) -> None:
        self._logs = tuple(logs)
        self._source = source

    @classmethod
    def nothing(cls, count: int) -> Infos:
        """Return the infos of `count` rows to which nothing belongs."""
        return cls((), np.full(count, NOTHING_CAME))

    def take(self, rows: slice | npt.NDArray[np.int64]) -> Infos:
        """Return those of some rows."""
        return Infos(self._logs, self._source[rows])

    def placed(self, places: npt.NDArray[np.int64], count: int) -> Infos:
        """Return those of `count` rows, where row i has become row `places[i]` and the others have nothing."""
        source = np.full(count, NOTHING_CAME)
        source[places] = self._source
        return Infos(self._logs, source)

    def column(self) -> npt.NDArray[np.object_]:
        """Return [B] dicts, an empty one for a row to which nothing belongs."""
        column = np.empty(len(self._source), np.object_)
        offset = 0
        for log in self._logs:
            size = len(log)
            mine = (self._source >= offset) & (self._source < offset + size)
            column[mine] = log.dicts()[self._source[mine] - offset]
            offset += size
        for row, info in enumerate(column):
            if info is None:
                column[row] = {}
        return column

    @staticmethod
    def concat(parts: Sequence[Infos]) -> Infos:
        """Return the infos of several batches, in order."""
        logs: dict[InfoLog, int] = {}
        offset = 0
        sources = []
        for part in parts:
            moved = np.full(len(part._source), NOTHING_CAME)
            before = 0
            for log in part._logs:
                # Parts of one fragment share its log; it is kept once.
                if log not in logs:
                    logs[log] = offset
                    offset += len(log)
                mine = (part._source >= before) & (part._source < before + len(log))
                moved[mine] = part._source[mine] - before + logs[log]
                before += len(log)
            sources.append(moved)
        return Infos(tuple(logs), np.concatenate(sources))
