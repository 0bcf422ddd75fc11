"""A group of peers that are alike: those that are lost are replaced, a few times.

`menv.algorithms.worker_rollouts` keeps its workers in one. It knows what they are asked as little as an engine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from menv.errors import WorkerLostError
from menv.scale.engine import Engine, Peer

PAUSES = (0.0, 0.5, 2.0)
"""Seconds before each replacement of a peer that has answered nothing since the last one; after them it is given up."""

Make = Callable[[int, int], tuple[Any, ...]]
"""`(index, times replaced) -> (make, *args)`, as `Engine.start` takes them."""


class PeerGroup:
    """Peers by index.

    Args:
        engine: Starts them.
        make: Says what is to be created for an index.
        count: How many there are.
        label: What messages call one; its number, from 1, comes behind.

    Attributes:
        peers: They.
        lost: How many have been lost so far.
    """

    def __init__(self, engine: Engine, make: Make, count: int, label: str) -> None:
        self._engine = engine
        self._make = make
        self._label = label
        self._replaced = [0] * count
        # Of each peer: the errors since its last answer, the first cause before the others.
        self._errors: list[list[WorkerLostError]] = [[] for _ in range(count)]
        self._born = [False] * count
        self.lost = 0
        self.peers: list[Peer] = [self._start(index) for index in range(count)]

    def ask(self, index: int, method: str, *args: Any, parcel: Any = None) -> None:
        """Ask one of them; see `Peer.ask`."""
        self.peers[index].ask(method, *args, parcel=parcel)

    def answer(self, index: int) -> Any:
        """Return the answer of one of them; see `Peer.answer`.

        Raises:
            WorkerLostError: It is lost; it may be replaced.
        """
        peer = self.peers[index]
        if not self._born[index]:
            peer.answer()
            self._born[index] = True
        value = peer.answer()
        self._errors[index].clear()
        return value

    def replace(self, index: int, error: WorkerLostError) -> None:
        """Start another one in the place of one that is lost; what it was asked is to be asked again.

        Raises:
            WorkerLostError: That has been done too often without an answer in between; it tells the first cause.
        """
        errors = self._errors[index]
        errors.append(error)
        self.lost += 1
        if len(errors) > len(PAUSES):
            raise WorkerLostError(
                f"{errors[0]}\n(the first of {len(errors)} times without a fragment in between, expected at most "
                f"{len(PAUSES)}; mend what ends the process)"
            ) from error
        time.sleep(PAUSES[len(errors) - 1])
        self.peers[index].kill()
        self._replaced[index] += 1
        self._born[index] = False
        self.peers[index] = self._start(index)

    def _start(self, index: int) -> Peer:
        make, *args = self._make(index, self._replaced[index])
        return self._engine.start(make, *args, label=f"{self._label} {index + 1}")
