"""Drawing places in proportion to priorities that change all the time, whole batches at once: a raffle.

`menv.algorithms.learning.replay` holds one. A place has tickets, as many as its priority is worth, rounded up. A draw
picks a ticket, and counts with a chance of the priority by the worth of all tickets of its place. So neither
rounding up nor the tickets left over from a higher priority change what is drawn how often. There are no sums
to walk down or to keep: a draw is three look-ups, a change appends the tickets that are lacking, and now and
then all are dealt anew. It knows places and numbers, not what they rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from menv.algorithms.config.numbers import LARGEST, LEARNERS, check_stored
from menv.errors import ConfigError

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

# Tickets that a place has on average after a deal, at least. Of the draws then count 3 in 4 at least.
_TICKETS_EACH = 3
# Room for tickets to be appended: one for so many that were dealt, and a few more.
_DEALT_BY_SPARE, _FEW = 2, 1024
# A deal gives a place two times its share and one more at most; with the spare ones there is room for twice as many.
_MOST_ROOM_EACH = 4 * (2 * _TICKETS_EACH + 1)
# Tickets are drawn from together with blanks, one for so many at most, that later ones replace.
_COUNT_BY_BLANKS = 64
# So many draws make up for a batch of which too few count. If then less than this part counts, all are dealt anew.
_MORE, _LEAST_COUNTING = 1024, 2 / 3
# A factor that keeps points below the end, whatever becomes of them by rounding.
_BELOW = 1.0 - 2.0**-50
# As an array numpy gets at it in half the time.
_ZERO = np.array(0.0)


class Raffle:
    """Priorities of `capacity` places, all 0 at first.

    A chance is exact but for the 53 bits of a random number, which tell 2**53 points of the whole apart.

    Args:
        capacity: Number of places, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"Raffle: capacity {capacity}, expected at least 1; raise it")
        self.capacity = capacity
        # All places that ever had a priority lie before this one.
        self._end = 0
        # [capacity + 1, 2] priorities, and the worth of all tickets of a place, at least its priority: side by
        # side, because what takes time is reaching for either. The last place is that of blanks.
        self._held: Floats = np.zeros((capacity + 1, 2))
        self._priorities, self._worth = self._held[:, 0], self._held[:, 1]
        # The places that tickets belong to: `_count` that were given away, and then blanks, which never count.
        self._tickets: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._count = 0
        # What one is worth: a power of 2, so that sums are exact. As an array numpy gets at it in half the time.
        self._worth_of_one = 1.0
        self._unit = np.array(1.0)
        # The number of tickets that are drawn from, some blanks among them; moves on by steps.
        self.span = 0
        self._spread = _spread(1, 0)
        # What was drawn last. As a rule its priorities come next, and it need not be looked at again.
        self._drawn: Places | None = None

    def update(self, places: Places, priorities: Floats) -> float:
        """Set priorities.

        Args:
            places: [B] of at least one; of a place that occurs twice the last priority holds.
            priorities: [B] finite, at least 0; places of priority 0 are never drawn.

        Returns:
            The highest of `priorities`.

        Raises:
            ConfigError: A place or a priority is out of range.
        """
        if places is not self._drawn:
            self._reach(places)
        least, most = priorities.item(priorities.argmin()), priorities.item(priorities.argmax())
        if not (least >= 0.0 and most < np.inf):
            raise ConfigError(
                f"Raffle.update: priorities from {least} to {most}, expected finite ones of at least 0; look for "
                "errors that are no numbers, as of a learning rate that is too high"
            )
        self._priorities[places] = priorities
        lacking = priorities - self._worth[places]
        lacking /= self._unit
        np.maximum(np.ceil(lacking, out=lacking), _ZERO, out=lacking)
        room = len(self._tickets) - self._count
        # The first of these is quick and the second exact.
        if len(places) * (most + self._worth_of_one) > room * self._worth_of_one and lacking.sum() > room:
            self._deal()
        else:
            self._append(places.repeat(lacking.astype(np.int64)))
        return most

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Places, Floats]:
        """Draw `count` places, with replacement.

        The tickets are divided into `count` equal shares and one is drawn from each; instead of those that do not
        count others are drawn from all tickets.

        Returns:
            Places and their priorities.

        Raises:
            ConfigError: All priorities are 0.
        """
        spread = self._spread
        if spread.draws != count or spread.span != self.span:
            spread = self._spread = _spread(count, self.span)
        points = rng.random(len(spread.starts))
        points += spread.starts
        points *= spread.widths
        places, priorities = self.drawn(points, count)
        if len(places) == count:
            self._drawn = places
            return places, priorities
        while len(places) < count:
            more, theirs = self.drawn(rng.random(_MORE) * (self.span * _BELOW), _MORE)
            if len(more) < _LEAST_COUNTING * _MORE:
                self._deal()
            places, priorities = np.concatenate((places, more)), np.concatenate((priorities, theirs))
        return places[:count], priorities[:count]

    def drawn(self, points: Floats, most: int) -> tuple[Places, Floats]:
        """Return what is drawn at points: the first ones that count, `most` of them at most.

        Args:
            points: [N] at least 0 and below `span`. The whole part picks a ticket, the rest decides if it counts.
            most: How many.

        Returns:
            Places and their priorities.

        Raises:
            ConfigError: All priorities are 0.
        """
        if not self._count:
            raise ConfigError("Raffle: every priority is 0, expected one above it; update some first")
        numbers = points.astype(np.int64)
        rest = points - numbers
        places = self._tickets[numbers].astype(np.int64)
        priorities = self._priorities[places]
        rest *= self._worth[places]
        counting = (rest < priorities).nonzero()[0][:most]
        return places[counting], priorities[counting]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all that decides what is drawn, as arrays."""
        return {
            "priorities": self._priorities[: self._end].copy(),
            "tickets": self._tickets[: self._count].copy(),
            "raffle": np.array((self._worth_of_one, len(self._tickets), self.span)),
        }

    def check_state(self, state: Mapping[str, npt.NDArray[Any]], rows: int) -> None:
        """Refuse what `set_state` could not take over, for so many places in use; nothing changes.

        Raises:
            ConfigError: There is something that no dealing of tickets leads to.
        """
        tickets, (worth, room, span) = state["tickets"], state["raffle"].tolist()
        check_stored(LEARNERS, "rows of replay.priorities", len(state["priorities"]), least=rows, most=rows)
        check_stored(LEARNERS, "replay.priorities", state["priorities"], "f", most=LARGEST)
        check_stored(LEARNERS, "replay.tickets", tickets, most=max(0, rows - 1))
        check_stored(LEARNERS, "replay.raffle[0]", worth, "f", 1 / LARGEST, LARGEST)
        most = _MOST_ROOM_EACH * self.capacity + 4 * _FEW
        check_stored(LEARNERS, "replay.raffle[1]", room, "f", len(tickets), most)
        check_stored(LEARNERS, "replay.raffle[2]", span, "f", most=room)

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` of one of the same capacity returned."""
        tickets, (worth, room, span) = state["tickets"], state["raffle"].tolist()
        self._end, self._count = len(state["priorities"]), len(tickets)
        self._set_worth_of_one(worth)
        self._drawn = None
        self._held[:] = 0.0
        self._priorities[: self._end] = state["priorities"]
        self._worth[: self._end] = np.bincount(tickets, minlength=self._end) * worth
        self._tickets = np.full(int(room), self.capacity, np.int32)
        self._tickets[: self._count] = tickets
        self.span = int(span)

    def _reach(self, places: Places) -> None:
        # Read without a sign a place below 0 is the last of all.
        last = places.item(places.view(np.uint64).argmax())
        if not 0 <= last < self.capacity:
            raise ConfigError(
                f"Raffle.update: place {last}, expected 0 to {self.capacity - 1}; correct the places"
            )
        self._end = max(self._end, last + 1)

    def _append(self, tickets: Places) -> None:
        begin, end = self._count, self._count + len(tickets)
        self._tickets[begin:end] = tickets
        np.add.at(self._worth, tickets, self._unit)
        self._count = end
        if end > self.span:
            self._widen()

    def _widen(self) -> None:
        """Draw from all tickets that were given away, and some blanks, so that what depends on it seldom changes."""
        self.span = min(len(self._tickets), self._count + self._count // _COUNT_BY_BLANKS + 1)

    def _set_worth_of_one(self, worth: float) -> None:
        self._worth_of_one, self._unit = worth, np.array(worth)

    def _deal(self) -> None:
        priorities = self._priorities[: self._end]
        total = float(priorities.sum())
        if total > 0.0:
            self._set_worth_of_one(math.ldexp(0.5, math.frexp(total / (_TICKETS_EACH * self._end))[1]))
        numbers = np.ceil(priorities / self._unit)
        self._worth[: self._end] = numbers * self._unit
        dealt = np.repeat(np.arange(self._end, dtype=np.int32), numbers.astype(np.int64))
        self._count = len(dealt)
        room = self._count + self._count // _DEALT_BY_SPARE + _FEW
        if not room <= len(self._tickets) <= 2 * room:
            self._tickets = np.empty(room, np.int32)
        self._tickets[: self._count] = dealt
        self._tickets[self._count :] = self.capacity
        self._widen()


class _Spread(NamedTuple):
    """Where on `span` tickets so many draws begin, and how wide the part is in which each falls."""

    draws: int
    span: int
    starts: Floats
    widths: Floats


def _spread(count: int, span: int) -> _Spread:
    """Return equal parts for `count` draws, and after them, for draws instead of others, the whole each."""
    instead = count // 2 + 8
    starts = np.concatenate((np.arange(count, dtype=np.float64), np.zeros(instead)))
    parts = np.concatenate((np.full(count, 1.0 / count), np.ones(instead)))
    return _Spread(count, span, starts, parts * (span * _BELOW))
