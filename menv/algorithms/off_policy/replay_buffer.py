"""ReplayBuffer: the latest rows of a policy, sampled uniformly or by priority.

Learners that replay experience own one. The first rows define the names, shapes and types of the columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from menv.algorithms.config.setting import LARGEST, LEARNERS, check_stored
from menv.base_env import Column
from menv.errors import ConfigError

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

# Minimum average of tickets per place after a rebuild, with which at least 3 in 4 samples are accepted.
_TICKETS_EACH = 3
# Room for tickets to be appended: a fraction of the rebuilt tickets, and a few more.
_TICKETS_BY_SPARE, _FEW = 2, 1024
# A rebuild gives a place at most twice its share and one more; the array has at most twice the room needed.
_MOST_ROOM_EACH = 4 * (2 * _TICKETS_EACH + 1)
# The sampled span includes blanks, which later tickets replace: at most one per so many tickets.
_COUNT_BY_BLANKS = 64
# Extra samples if too few are accepted; if less than this fraction of them is accepted, all tickets are rebuilt.
_MORE, _LEAST_ACCEPTED = 1024, 2 / 3
# Keeps points below the end in spite of rounding.
_BELOW = 1.0 - 2.0**-50
# numpy reads arrays faster than Python numbers.
_ZERO = np.array(0.0)


class ReplayBuffer:
    """The latest rows, at most `capacity`; the columns double in size as they fill.

    With priorities, the probability of a row is proportional to `(|td error| + eps) ** alpha` (Schaul et al.
    2016, "Prioritized experience replay", equation 1), and its importance weight is `(rows * probability) ** -beta`
    (section 3.4), divided by the largest of the batch. New rows have the highest priority seen so far.
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
        self.capacity = capacity
        self.rows = 0
        self._next = 0
        self._columns: dict[str, Column] = {}
        self._room = 0
        self._sampler = PrioritizedSampler(capacity) if prioritized else None
        self._alpha, self._minus_beta, self._eps = np.array(alpha), np.array(-beta), np.array(eps)
        self._highest = 1.0

    def add(self, columns: Columns) -> None:
        """Copy N rows in; they replace the oldest ones once the buffer is full."""
        count = self._checked(columns)
        skipped = max(0, count - self.capacity)
        places = (self._next + np.arange(skipped, count)) % self.capacity
        if not len(places):
            return
        self._reserve(columns, min(self.capacity, self.rows + count))
        for name, column in columns.items():
            self._columns[name][places] = column[skipped:]
        if self._sampler is not None:
            self._sampler.update(places, np.full(len(places), self._highest))
        self._next = (self._next + count) % self.capacity
        self.rows = min(self.capacity, self.rows + count)

    def sample(self, count: int, rng: np.random.Generator) -> ReplaySample:
        """Sample rows with replacement; prioritized samples are stratified, with exact probabilities."""
        if self._sampler is None:
            indices: Places = rng.integers(0, self.rows, count)
            weights = np.ones(count, np.float32)
        else:
            indices, priorities = self._sampler.sample(count, rng)
            # The number of rows and the total cancel out against the largest weight.
            priorities /= priorities[priorities.argmin()]
            priorities **= self._minus_beta
            weights = priorities.astype(np.float32)
        columns = {name: column.take(indices, axis=0) for name, column in self._columns.items()}
        return ReplaySample(columns, indices, weights)

    def kept(self, name: str) -> Column:
        """Return a view of a column of all rows, in no particular order."""
        return self._columns[name][: self.rows]

    def has(self, name: str) -> bool:
        """Return whether rows have a column."""
        return name in self._columns

    def update_priorities(self, indices: Places, td_errors: Column) -> None:
        """Set the priorities of rows [B] from their TD errors [B]; does nothing without priorities."""
        if self._sampler is None or not len(indices):
            return
        priorities = np.abs(td_errors, dtype=np.float64)
        priorities += self._eps
        priorities **= self._alpha
        self._highest = max(self._highest, self._sampler.update(indices, priorities))

    def state(self) -> dict[str, Column]:
        """Return copies of the rows and of all state that later samples depend on, as arrays."""
        state = {_COLUMN + name: column[: self.rows].copy() for name, column in self._columns.items()}
        state["next"] = np.array(self._next, np.int64)
        if self._sampler is not None:
            state |= self._sampler.state()
            state["highest"] = np.array(self._highest)
        return state

    def check_state(self, state: Columns) -> None:
        """Refuse a state that `set_state` could not restore; nothing changes."""
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
                f"ReplayBuffer.set_state: {rows} rows, the next one at {position}, expected the state of a buffer of "
                f"capacity {self.capacity}; keep the capacity"
            )
        if (self._sampler is not None) != ("tickets" in state):
            raise ConfigError(
                f"ReplayBuffer.set_state: priorities {'lacking' if self._sampler else 'given'}, expected "
                f"{'some' if self._sampler else 'none'}; keep prioritized_replay unchanged"
            )
        if self._sampler is not None:
            check_stored(LEARNERS, "replay.highest", state["highest"], "f", 1, LARGEST)
            self._sampler.check_state(state, rows)

    def set_state(self, state: Columns) -> None:
        """Restore what `state` of a buffer of the same kind and capacity returned."""
        self.check_state(state)
        columns = {key.removeprefix(_COLUMN): state[key] for key in state if key.startswith(_COLUMN)}
        self._columns, self._room, self.rows, self._next = {}, 0, 0, 0
        if columns:
            self.add(columns)
        self._next = int(state["next"])
        if self._sampler is not None:
            self._highest = float(state["highest"])
            self._sampler.set_state(state)

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


class ReplaySample(NamedTuple):
    """Copies of sampled columns [B, ...], their indices [B], and importance weights [B] float32, at most 1."""

    columns: dict[str, Column]
    indices: Places
    weights: npt.NDArray[np.float32]


class PrioritizedSampler:
    """Samples places in proportion to priorities that change all the time, whole batches at once.

    A place has tickets: as many as its priority is worth, rounded up. Sampling picks a ticket and accepts it with the
    probability priority / value of all tickets of the place (rejection sampling), so neither rounding nor tickets left
    from a higher priority change the distribution. There is no sum tree: a sample is three look-ups, an update appends
    the missing tickets, and from time to time all tickets are rebuilt. Priorities are 0 at first.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # One past the last place that ever had a priority.
        self._end = 0
        # [capacity + 1, 2]: the priority of a place and the value of its tickets, adjacent in memory. Blanks have the
        # last place.
        self._table: Floats = np.zeros((capacity + 1, 2))
        self._priorities, self._ticket_sums = self._table[:, 0], self._table[:, 1]
        # The place of each ticket: `_count` tickets, then blanks, which are never accepted.
        self._tickets: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._count = 0
        # The value of one ticket: a power of 2, so that sums are exact.
        self._ticket_value = 1.0
        self._unit = np.array(1.0)
        # The number of tickets and blanks to sample from; grows in steps.
        self.span = 0
        self._strata = _stratify(1, 0)
        # The last sample, whose places are within `_end`.
        self._last_sample: Places | None = None

    def update(self, places: Places, priorities: Floats) -> float:
        """Set the priorities [B], finite and at least 0, of places [B], B > 0, and return the highest one.

        The last priority of a repeated place counts; places of priority 0 are never sampled.
        """
        if places is not self._last_sample:
            self._end = max(self._end, places.item(places.argmax()) + 1)
        most = priorities.item(priorities.argmax())
        self._priorities[places] = priorities
        lacking = priorities - self._ticket_sums[places]
        lacking /= self._unit
        np.maximum(np.ceil(lacking, out=lacking), _ZERO, out=lacking)
        room = len(self._tickets) - self._count
        # The first condition is fast, the second exact.
        if len(places) * (most + self._ticket_value) > room * self._ticket_value and lacking.sum() > room:
            self._rebuild()
        else:
            self._append(places.repeat(lacking.astype(np.int64)))
        return most

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Places, Floats]:
        """Return `count` places and their priorities, sampled with replacement.

        The span is divided into `count` equal strata with one sample each; samples from the whole span replace rejected
        ones.
        """
        if self._strata[0] != (count, self.span):
            self._strata = _stratify(count, self.span)
        _, starts, widths = self._strata
        points = rng.random(len(starts))
        points += starts
        points *= widths
        places, priorities = self.accepted(points, count)
        if len(places) == count:
            self._last_sample = places
            return places, priorities
        while len(places) < count:
            more, more_priorities = self.accepted(rng.random(_MORE) * (self.span * _BELOW), _MORE)
            if len(more) < _LEAST_ACCEPTED * _MORE:
                self._rebuild()
            places, priorities = np.concatenate((places, more)), np.concatenate((priorities, more_priorities))
        return places[:count], priorities[:count]

    def accepted(self, points: Floats, most: int) -> tuple[Places, Floats]:
        """Return the places and priorities of the first `most` accepted points [N], each in [0, span).

        The whole part of a point picks a ticket, the fraction decides whether it is accepted.
        """
        numbers = points.astype(np.int64)
        rest = points - numbers
        places = self._tickets[numbers].astype(np.int64)
        priorities = self._priorities[places]
        rest *= self._ticket_sums[places]
        accepted = (rest < priorities).nonzero()[0][:most]
        return places[accepted], priorities[accepted]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all state that later samples depend on, as arrays."""
        return {
            "priorities": self._priorities[: self._end].copy(),
            "tickets": self._tickets[: self._count].copy(),
            "raffle": np.array((self._ticket_value, len(self._tickets), self.span)),
        }

    def check_state(self, state: Mapping[str, npt.NDArray[Any]], rows: int) -> None:
        """Refuse a state that `set_state` could not restore with `rows` places in use; nothing changes."""
        tickets, (value, room, span) = state["tickets"], state["raffle"].tolist()
        check_stored(LEARNERS, "rows of replay.priorities", len(state["priorities"]), least=rows, most=rows)
        # Sampling would never end if all priorities were 0.
        check_stored(LEARNERS, "replay.priorities", state["priorities"], "f", 1 / LARGEST, LARGEST)
        check_stored(LEARNERS, "replay.tickets", tickets, most=max(0, rows - 1))
        check_stored(LEARNERS, "replay.raffle[0]", value, "f", 1 / LARGEST, LARGEST)
        most = _MOST_ROOM_EACH * self.capacity + 4 * _FEW
        check_stored(LEARNERS, "replay.raffle[1]", room, "f", max(len(tickets), min(rows, 1)), most)
        check_stored(LEARNERS, "replay.raffle[2]", span, "f", most=room)

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what `state` of a sampler of the same capacity returned."""
        tickets, (value, room, span) = state["tickets"], state["raffle"].tolist()
        self._end, self._count = len(state["priorities"]), len(tickets)
        self._set_ticket_value(value)
        self._last_sample = None
        self._table[:] = 0.0
        self._priorities[: self._end] = state["priorities"]
        self._ticket_sums[: self._end] = np.bincount(tickets, minlength=self._end) * value
        self._tickets = np.full(int(room), self.capacity, np.int32)
        self._tickets[: self._count] = tickets
        self.span = int(span)

    def _append(self, tickets: Places) -> None:
        begin, end = self._count, self._count + len(tickets)
        self._tickets[begin:end] = tickets
        np.add.at(self._ticket_sums, tickets, self._unit)
        self._count = end
        if end > self.span:
            self._widen()

    def _widen(self) -> None:
        self.span = min(len(self._tickets), self._count + self._count // _COUNT_BY_BLANKS + 1)

    def _set_ticket_value(self, value: float) -> None:
        self._ticket_value, self._unit = value, np.array(value)

    def _rebuild(self) -> None:
        priorities = self._priorities[: self._end]
        total = float(priorities.sum())
        if total > 0.0:
            self._set_ticket_value(math.ldexp(0.5, math.frexp(total / (_TICKETS_EACH * self._end))[1]))
        numbers = np.ceil(priorities / self._unit)
        self._ticket_sums[: self._end] = numbers * self._unit
        tickets = np.repeat(np.arange(self._end, dtype=np.int32), numbers.astype(np.int64))
        self._count = len(tickets)
        room = self._count + self._count // _TICKETS_BY_SPARE + _FEW
        if not room <= len(self._tickets) <= 2 * room:
            self._tickets = np.empty(room, np.int32)
        self._tickets[: self._count] = tickets
        self._tickets[self._count :] = self.capacity
        self._widen()


def _stratify(count: int, span: int) -> tuple[tuple[int, int], Floats, Floats]:
    """Return (count, span), and where each sample begins on `span` tickets and the width of its stratum."""
    instead = count // 2 + 8
    starts = np.concatenate((np.arange(count, dtype=np.float64), np.zeros(instead)))
    parts = np.concatenate((np.full(count, 1.0 / count), np.ones(instead)))
    return (count, span), starts, parts * (span * _BELOW)


Columns = Mapping[str, Column]

_FIRST_ROWS = 1024

_COLUMN = "column."


def column_of(state: Columns, name: str) -> Column | None:
    """Return a column in the state of a buffer, None if it has no rows."""
    return state.get(_COLUMN + name)
