"""A tree of sums over priorities, whole batches at once: drawing in proportion to them, and changing them.

`menv.algorithms.replay` holds one. Each node has 16 children, not two: a batch then passes a handful of numpy
calls on its way down instead of one for each binary digit. It knows places and numbers, not what they rank.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from menv.errors import ConfigError

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

_CHILDREN_BITS = 4
_CHILDREN = 1 << _CHILDREN_BITS
# So many nodes at the top are summed up anew for every batch of draws.
_TOP = 512
# The largest factor whose product with any number is below it.
_BELOW = 1.0 - 2.0**-52
# As factors: the sum of all children, and the sums of the children up to each.
_ONES = np.ones(_CHILDREN)
_UP_TO = np.triu(np.ones((_CHILDREN, _CHILDREN)))


class SumTree:
    """Priorities of `capacity` places, all 0 at first.

    Args:
        capacity: Number of places, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f"SumTree: capacity {capacity}, expected at least 1; raise it")
        self.capacity = capacity
        # [groups, children] of each level, leaves first; the top is one row of nodes.
        self._levels: list[Floats] = []
        nodes = capacity
        while nodes > _TOP:
            nodes = -(-nodes // _CHILDREN)
            self._levels.append(np.zeros((nodes, _CHILDREN)))
        self._top: Floats = np.zeros(nodes)
        # [places] the same memory as the lowest level.
        self._leaves = self._levels[0].reshape(-1) if self._levels else self._top

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._top.sum())

    @property
    def min(self) -> float:
        """The least priority above 0, infinite if there is none; looks at every place."""
        return float(self._leaves.min(where=self._leaves > 0.0, initial=np.inf))

    def update(self, places: Places, priorities: Floats) -> None:
        """Set priorities.

        Args:
            places: [B]; of a place that occurs twice the last priority holds.
            priorities: [B] finite, at least 0; places of priority 0 are never drawn.

        Raises:
            ConfigError: A place or a priority is out of range.
        """
        if not len(places):
            return
        first, last = int(places.min()), int(places.max())
        if first < 0 or last >= self.capacity:
            raise ConfigError(
                f"SumTree.update: places {first} to {last}, expected 0 to {self.capacity - 1}; correct them"
            )
        least, most = float(priorities.min()), float(priorities.max())
        if not (least >= 0.0 and most < np.inf):
            raise ConfigError(
                f"SumTree.update: priorities from {least} to {most}, expected finite ones of at least 0; look for "
                "errors that are no numbers, as of a learning rate that is too high"
            )
        self._leaves[places] = priorities
        above = [level.reshape(-1) for level in self._levels[1:]] + [self._top]
        for level, parents in zip(self._levels, above, strict=False):
            places = places >> _CHILDREN_BITS
            parents[places] = level.take(places, axis=0) @ _ONES

    def sample(self, shares: Floats) -> Places:
        """Return the [B] places where the running sum of priorities passes `shares` of the total.

        Args:
            shares: [B] in [0, 1).

        Raises:
            ConfigError: All priorities are 0.
        """
        running = self._top.cumsum()
        if not running[-1] > 0.0:
            raise ConfigError("SumTree.sample: every priority is 0, expected one above it; update some first")
        # Staying below the sum as it was computed here keeps rounding from passing the last place.
        rest = np.minimum(shares * running[-1], running[-1] * _BELOW)
        nodes: Places = running.searchsorted(rest, "right")
        rest -= running.take(nodes) - self._top.take(nodes)
        places = self._descend(nodes, rest, exact=False)
        if not self._leaves.take(places).all():
            places = self._descend(nodes, rest, exact=True)
        return places

    def _descend(self, nodes: Places, rest: Floats, exact: bool) -> Places:
        """Return the places below `nodes` [B] of the top on which `rest` [B] of their sums falls.

        Running sums as a product are five times as fast, but where rounding decides they need not rise from child
        to child, and `rest` may lie outside them; the `exact` way takes care of both.
        """
        firsts = np.arange(len(nodes)) << _CHILDREN_BITS
        for level in reversed(self._levels):
            children = level.take(nodes, axis=0)
            if exact:
                running = children.cumsum(axis=1)
                rest = np.clip(rest, 0.0, running[:, -1] * _BELOW)
            else:
                running = children @ _UP_TO
            number = (running > rest[:, None]).argmax(axis=1)
            nodes = (nodes << _CHILDREN_BITS) + number
            chosen = firsts + number
            rest = rest - (running.take(chosen) - children.take(chosen))
        return nodes

    def get(self, places: Places) -> Floats:
        """Return the [B] priorities of places."""
        found: Floats = self._leaves.take(places)
        return found

    def first(self, count: int) -> Floats:
        """Return the priorities of the first `count` places, a copy."""
        return self._leaves[:count].copy()
