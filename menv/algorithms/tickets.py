"""Drawing places in proportion to priorities that change all the time, whole batches at once: a raffle.

`menv.algorithms.replay` holds one. Each place has tickets, as many as its priority is worth, rounded up. A draw
picks a ticket and counts with a chance of the priority over the worth of the place's tickets, so that the
rounding up does no harm, nor do tickets that a priority which fell has left over. Nothing is summed up on the
way: a draw is three look-ups, and a change appends what tickets are lacking. It knows places and numbers, not
what they rank.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Tickets = npt.NDArray[np.int32]

# Tickets of a place of mean priority, at least, after all are dealt anew; then 4 draws of 5 count, at least.
_TICKETS_EACH = 4
# Room for tickets to be appended: a part of those that were dealt, and some more.
_SPARE_PART, _SPARE = 4, 1024


class Draws(NamedTuple):
    """What was drawn.

    Attributes:
        places: [B]
        priorities: [B] of these places.
    """

    places: Places
    priorities: Floats


class Raffle:
    """Priorities of `capacity` places, all 0 at first.

    Args:
        capacity: Number of places, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"Raffle: capacity {capacity}, expected at least 1; raise it")
        self.capacity = capacity
        # Places that ever had a priority lie before this one.
        self._end = 0
        self._priorities: Floats = np.zeros(capacity)
        # What the tickets of each place are worth; never less than its priority.
        self._worth: Floats = np.zeros(capacity)
        # The place of each ticket, `_count` of them, and what one is worth: a power of two, so that sums are exact.
        self._tickets: Tickets = np.zeros(0, np.int32)
        self._count = 0
        self._unit = 1.0
        self._shares = _shares(0)

    def update(self, places: Places, priorities: Floats) -> float:
        """Set priorities.

        Args:
            places: [B], B at least 1; of a place that occurs twice the last priority holds.
            priorities: [B] finite, at least 0; places of priority 0 are never drawn.

        Returns:
            The highest of `priorities`.

        Raises:
            ConfigError: A place or a priority is out of range.
        """
        # Seen without a sign, a place below 0 is a very large one.
        last = int(places[places.view(np.uint64).argmax()])
        if not 0 <= last < self.capacity:
            raise ConfigError(
                f"Raffle.update: place {last}, expected 0 to {self.capacity - 1}; correct the places"
            )
        least, most = float(priorities[priorities.argmin()]), float(priorities[priorities.argmax()])
        if not (least >= 0.0 and most < np.inf):
            raise ConfigError(
                f"Raffle.update: priorities from {least} to {most}, expected finite ones of at least 0; look for "
                "errors that are no numbers, as of a learning rate that is too high"
            )
        self._priorities[places] = priorities
        self._end = max(self._end, last + 1)
        self._append(places, priorities, most)
        return most

    def sample(self, count: int, rng: np.random.Generator) -> Draws:
        """Draw places, with replacement.

        The tickets are divided into `count` equal shares and one is drawn from each; for those that do not count
        others are drawn from all tickets.

        Raises:
            ConfigError: All priorities are 0.
        """
        if len(self._shares.starts) != _tries(count):
            self._shares = _shares(count)
        draws = self._draw(self._shares, rng)
        while len(draws.places) < count:
            # So few count only if priorities have fallen a lot.
            self._deal()
            more = self._draw(_shares(count)._replace(...), rng)
        return Draws(draws.places[:count], draws.priorities[:count])
