"""What a policy experienced, kept to be learned from again: columns in a ring, drawn uniformly or by priority.

Learners that replay hold one. It knows names, shapes and types of columns from the first rows that it is
given, and nothing of what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from menv.algorithms.config.field_checks import LARGEST, LEARNERS, check_stored
from menv.base_env import Column
from menv.errors import ConfigError

# SEAM menv.algorithms.learning.raffle
# Drawing places in proportion to priorities that change all the time, whole batches at once: a raffle.
#
# `menv.algorithms.dqn.replay_buffer` holds one. A place has tickets, as many as its priority is worth,
# rounded up. A draw
# picks a ticket, and counts with a chance of the priority by the worth of all tickets of its place. So
# neither
# rounding up nor the tickets left over from a higher priority change what is drawn how often. There are no
# sums
# to walk down or to keep: a draw is three look-ups, a change appends the tickets that are lacking, and now
# and
# then all are dealt anew. It knows places and numbers, not what they rank.


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


class PrioritizedSampler:
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


class _PrioritySpread(NamedTuple):
    """Where on `span` tickets so many draws begin, and how wide the part is in which each falls."""

    draws: int
    span: int
    starts: Floats
    widths: Floats


def _spread(count: int, span: int) -> _PrioritySpread:
    """Return equal parts for `count` draws, and after them, for draws instead of others, the whole each."""
    instead = count // 2 + 8
    starts = np.concatenate((np.arange(count, dtype=np.float64), np.zeros(instead)))
    parts = np.concatenate((np.full(count, 1.0 / count), np.ones(instead)))
    return _PrioritySpread(count, span, starts, parts * (span * _BELOW))


Columns = Mapping[str, Column]

_FIRST_ROWS = 1024
_COLUMN = "column."


class ReplaySample(NamedTuple):
    """Rows that were drawn.

    Attributes:
        columns: [B, ...] by name; copies.
        indices: [B] where they lie, for `update_priorities`.
        weights: [B] float32 importance weights, at most 1; all 1 without priorities.
    """

    columns: dict[str, Column]
    indices: Places
    weights: npt.NDArray[np.float32]


class ReplayBuffer:
    """The latest rows, `capacity` of them at most; memory doubles as they come.

    With priorities a row is drawn with a chance proportional to `(|td error| + eps) ** alpha` (Schaul et al.
    2016, "Prioritized experience replay", equation 1), and its importance weight is `(rows * chance) ** -beta`
    (section 3.4), divided by the largest of the batch. New rows have the highest priority seen so far.

    Args:
        capacity: Rows.
        prioritized: False draws uniformly.
        alpha: How much priorities count; 0 is uniform.
        beta: How much of the bias of uneven chances is corrected; 1 is all of it.
        eps: Added to every error, so that no row's chance is 0.
    """

    def __init__(
        self,
        capacity: int,
        *,
        prioritized: bool = False,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"ReplayBuffer: capacity {capacity}, expected at least 1; raise it")
        self.capacity = capacity
        self.rows = 0
        self._next = 0
        self._columns: dict[str, Column] = {}
        self._room = 0
        self._raffle = PrioritizedSampler(capacity) if prioritized else None
        # As arrays, which take numpy half the time to get at.
        self._alpha, self._minus_beta, self._eps = np.array(alpha), np.array(-beta), np.array(eps)
        self._highest = 1.0

    def add(self, columns: Columns) -> None:
        """Copy N rows in, over the oldest ones once there are `capacity`.

        Raises:
            ConfigError: Names, shapes or types differ from those of earlier rows, or lengths from each other.
        """
        count = self._checked(columns)
        skipped = max(0, count - self.capacity)
        places = (self._next + np.arange(skipped, count)) % self.capacity
        if not len(places):
            return
        self._reserve(columns, min(self.capacity, self.rows + count))
        for name, column in columns.items():
            self._columns[name][places] = column[skipped:]
        if self._raffle is not None:
            self._raffle.update(places, np.full(len(places), self._highest))
        self._next = (self._next + count) % self.capacity
        self.rows = min(self.capacity, self.rows + count)

    def sample(self, count: int, rng: np.random.Generator) -> ReplaySample:
        """Draw rows, with replacement.

        By priority the whole is divided into `count` equal shares and one row drawn from most of them, the others
        from the whole; every row of every draw has its exact chance.

        Raises:
            ConfigError: The buffer is empty.
        """
        if not self.rows:
            raise ConfigError("ReplayBuffer.sample: 0 rows, expected at least 1; add rows first")
        if self._raffle is None:
            indices: Places = rng.integers(0, self.rows, count)
            weights = np.ones(count, np.float32)
        else:
            indices, priorities = self._raffle.sample(count, rng)
            # The number of rows and the total cancel out against the largest weight.
            priorities /= priorities[priorities.argmin()]
            priorities **= self._minus_beta
            weights = priorities.astype(np.float32)
        columns = {name: column.take(indices, axis=0) for name, column in self._columns.items()}
        return ReplaySample(columns, indices, weights)

    def kept(self, name: str) -> Column:
        """Return a column of all rows, in no order; not a copy."""
        return self._columns[name][: self.rows]

    def update_priorities(self, indices: Places, td_errors: Column) -> None:
        """Set the priorities of rows [B] from their errors [B] of any sign; does nothing without priorities.

        Raises:
            ConfigError: An error is no finite number.
        """
        if self._raffle is None or not len(indices):
            return
        priorities = np.abs(td_errors, dtype=np.float64)
        priorities += self._eps
        priorities **= self._alpha
        self._highest = max(self._highest, self._raffle.update(indices, priorities))

    def state(self) -> dict[str, Column]:
        """Return copies of the rows and all that decides what is drawn, as arrays."""
        state = {_COLUMN + name: column[: self.rows].copy() for name, column in self._columns.items()}
        state["next"] = np.array(self._next, np.int64)
        if self._raffle is not None:
            state |= self._raffle.state()
            state["highest"] = np.array(self._highest)
        return state

    def check_state(self, state: Columns) -> None:
        """Refuse what `set_state` could not take over; nothing changes.

        Raises:
            ConfigError: It has more rows than there is room for, or lacks priorities.
        """
        columns = {key: state[key] for key in state if key.startswith(_COLUMN)}
        rows, position = max(map(len, columns.values()), default=0), int(state["next"])
        check_stored(
            LEARNERS,
            "rows of replay columns",
            np.array([*map(len, columns.values())], np.int64),
            least=rows,
            most=rows,
        )
        fits = position < self.capacity if rows == self.capacity else position == rows < self.capacity
        if not fits:
            raise ConfigError(
                f"ReplayBuffer.set_state: {rows} rows, the next one at {position}, expected those of a buffer of "
                f"capacity {self.capacity}; keep the capacity"
            )
        if (self._raffle is not None) != ("tickets" in state):
            raise ConfigError(
                f"ReplayBuffer.set_state: priorities {'lacking' if self._raffle else 'given'}, expected "
                f"{'some' if self._raffle else 'none'}; keep prioritized_replay as it was"
            )
        if self._raffle is not None:
            check_stored(LEARNERS, "replay.highest", state["highest"], "f", most=LARGEST)
            self._raffle.check_state(state, rows)

    def set_state(self, state: Columns) -> None:
        """Take over what `state` of a buffer of the same kind and capacity returned.

        Raises:
            ConfigError: As for `check_state`.
        """
        self.check_state(state)
        columns = {key.removeprefix(_COLUMN): state[key] for key in state if key.startswith(_COLUMN)}
        self._columns, self._room, self.rows, self._next = {}, 0, 0, 0
        if columns:
            self.add(columns)
        self._next = int(state["next"])
        if self._raffle is not None:
            self._highest = float(state["highest"])
            self._raffle.set_state(state)

    def _checked(self, columns: Columns) -> int:
        found = {name: (column.shape[1:], column.dtype) for name, column in columns.items()}
        wanted = {name: (column.shape[1:], column.dtype) for name, column in self._columns.items()} or found
        counts = {len(column) for column in columns.values()}
        if found != wanted or len(counts) != 1:
            wrong = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
            what = f"column {wrong[0]!r} is {found.get(wrong[0])}" if wrong else f"lengths {sorted(counts)}"
            rule = wanted.get(wrong[0]) if wrong else "one for all columns"
            raise ConfigError(
                f"ReplayBuffer.add: {what}, expected {rule}; add rows of one kind to one buffer"
            )
        return counts.pop()

    def _reserve(self, columns: Columns, rows: int) -> None:
        if rows <= self._room:
            return
        room = max(self._room, min(_FIRST_ROWS, self.capacity))
        while room < rows:
            room = min(2 * room, self.capacity)
        for name, column in columns.items():
            wider = np.empty((room, *column.shape[1:]), column.dtype)
            if self.rows:
                wider[: self.rows] = self._columns[name][: self.rows]
            self._columns[name] = wider
        self._room = room


def column_of(state: Columns, name: str) -> Column | None:
    """Return a column of the rows that the state of a buffer holds, None if there are no rows."""
    return state.get(_COLUMN + name)
