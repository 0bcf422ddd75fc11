"""The episodes in which something was said that the sampler has not taken.

`menv.switchboard` keeps them, and guards them with its lock. Whatever costs the sampler time is taken a little at a
time: thousands of episodes that end at once, or are played elsewhere, must not keep those waiting who ask for actions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from operator import attrgetter

from menv.backlog import Backlog
from menv.line import Line, Turn
from menv.played import Played

_MOST_AT_ONCE = 16
# The end of an episode takes the sampler several times as long as a question.
_MOST_ENDS = 4
# A piece costs the sampler several times as much as the end of an episode.
_MOST_PIECES = 2


class ReadyLines:
    """Lines by id.

    Attributes:
        room: How many more steps the sampler wants. Without room only pieces of episodes that it has begun count, and
            are taken.
        by_rows: Whether the steps of all agents count, not env steps.
    """

    def __init__(self) -> None:
        self.room: float = float("inf")
        self.by_rows = False
        self._asking: dict[str, Line] = {}
        # Lines that are over: those that the sampler had begun before, those that it has not begun, and those of
        # `_under_way`.
        self._ended: dict[str, Line] = {}
        self._logged: dict[str, Line] = {}
        self._going_on: dict[str, Line] = {}
        # Lines with pieces, by client; the client whose turn it is comes first.
        self._playing: dict[Backlog, dict[str, Line]] = {}
        self._kinds = (self._asking, self._ended, self._logged, self._going_on)
        self._pieces = self._begun_pieces = 0
        self._latest = 0
        # The ids of those that were over when they were begun, and have steps left.
        self._under_way: set[str] = set()

    def __len__(self) -> int:
        pieces = self._pieces if self.room > 0 else self._begun_pieces
        return sum(map(len, self._kinds)) + pieces

    def __iter__(self) -> Iterator[Line]:
        for lines in (*self._kinds, *self._playing.values()):
            yield from lines.values()

    def clear(self) -> None:
        """Forget all lines."""
        for lines in (*self._kinds, self._playing):
            lines.clear()
        self._pieces = self._begun_pieces = 0

    def add(self, line: Line) -> None:
        """Add a line, or note that more was said in it."""
        name, before = line.episode_id, None
        if line.plays:
            lines = self._playing.setdefault(line.backlog, {})
            self._pieces += name not in lines
            self._begun_pieces += line.begun and name not in lines
        elif line.over:
            before = self._asking.pop(name, None)
            begun = self._going_on if name in self._under_way else self._ended
            lines = begun if line.begun else self._logged
        else:
            lines = self._asking
        if name not in lines:
            lines[name] = line
            if before is None:
                self._latest = line.place = self._latest + 1

    def take(self, others: int = 0) -> list[Line]:
        """Take out what the sampler is to take next, in the order in which it was said.

        Args:
            others: How many episodes ask for actions that are not here.
        """
        lines = list(self._asking.values())
        self._asking.clear()
        more = self._take_over(len(lines) + others) + self._take_pieces()
        return sorted(lines + more, key=attrgetter("place")) if more else lines

    def _take_over(self, asking: int) -> list[Line]:
        """Take out a few lines that are over.

        Of a caller that only logs, hundreds of episodes may be over before the sampler takes the first step of one.
        Each of them completes a step at most, so a fragment takes no more of them than it lacks steps.
        """
        room = self.room if self.room > 0 else _MOST_AT_ONCE
        most = min(_MOST_AT_ONCE, room)
        # Every episode asks once at least: where as many ends as questions are taken, ends do not pile up.
        ended = _first(self._ended, max(min(_MOST_ENDS, room), asking), self.by_rows)
        taken = _first(self._going_on, most, self.by_rows)
        begun = _first(self._logged, most - max(len(taken), len(self._under_way)), self.by_rows)
        self._under_way.update(line.episode_id for line in begun)
        return ended + taken + begun

    def _take_pieces(self) -> list[Line]:
        """Take out a few lines with pieces, of each client in turn, while there is room."""
        taken: list[Line] = []
        room, full = self.room, self.room <= 0
        while len(taken) < _MOST_PIECES and (self._begun_pieces if full else self._pieces and room > 0):
            client = next(iter(self._playing))
            lines = self._playing.pop(client)
            line = next((one for one in lines.values() if one.begun or not full), None)
            if line is not None:
                del lines[line.episode_id]
                self._pieces -= 1
                self._begun_pieces -= line.begun
                room -= self._steps(line.turns[0])
                # An end that comes without a step needs no room.
                ends = takewhile(lambda said: not self._steps(said), islice(line.turns, 1, None))
                taken += [line, *(line for _ in ends)]
            if lines:
                self._playing[client] = lines
        return taken

    def _steps(self, said: Turn | Played) -> int:
        """Return how many steps a piece has; the loss of an episode has none."""
        if not isinstance(said, Played):
            return 0
        return sum(len(moves.rewards) for moves in said.agents.values()) if self.by_rows else said.env_steps

    def used_up(self, line: Line) -> None:
        """Note that nothing is left of an episode that is over."""
        self._under_way.discard(line.episode_id)


def _first(lines: dict[str, Line], most: float, by_rows: bool) -> list[Line]:
    """Take out the first lines, at most so many, or where rows count about so many agents."""
    taken = []
    while lines and most > 0:
        line = lines.pop(next(iter(lines)))
        taken.append(line)
        said = line.turns[0] if by_rows and line.turns else None
        most -= max(1, len(said.obs or ())) if isinstance(said, Turn) else 1
    return taken
