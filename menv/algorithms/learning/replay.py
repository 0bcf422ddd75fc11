"""What a policy experienced, kept to be learned from again: columns in a ring, drawn uniformly or by priority.

Learners that replay hold one. It knows names, shapes and types of columns from the first rows that it is
given, and nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from menv.algorithms.config.numbers import LARGEST, LEARNERS, check_stored
from menv.algorithms.learning.raffle import Raffle
from menv.errors import ConfigError
from menv.segments import Column

Columns = Mapping[str, Column]
Places = npt.NDArray[np.int64]

_FIRST_ROWS = 1024
_COLUMN = "column."


class Sample(NamedTuple):
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
        self._raffle = Raffle(capacity) if prioritized else None
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

    def sample(self, count: int, rng: np.random.Generator) -> Sample:
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
        return Sample(columns, indices, weights)

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
