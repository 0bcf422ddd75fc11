"""A group of peers that are alike: those that are lost are replaced, a few times.

`menv.algorithms.remote_rollouts` keeps its workers in one. It knows what they are asked as little as an
engine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from menv.errors import EnvCrashError, WorkerLostError
from menv.workers.engine import Engine, RemoteActor

PAUSES = (0.0, 0.5, 2.0)
"""Seconds before each replacement of a peer that has answered nothing since the last one; after them it is given up."""

Brief = Callable[[int, int], tuple[Any, ...]]
"""`(index, times replaced) -> (method, *args)`: what a peer is asked first, which makes it what it is to be."""


class ActorGroup:
    """Peers by index.

    Args:
        engine: Starts them.
        create: Creates an object elsewhere that can be briefed.
        brief: Says how.
        count: How many there are.
        label: What messages call one; its number, from 1, comes behind.
        early: Peers that have been started already and not been asked anything.

    Attributes:
        peers: They.
        lost: How many have been lost so far.
        replaced: How often each has been replaced, or is said to have been.
    """

    def __init__(
        self,
        engine: Engine,
        create: Callable[[], Any],
        brief: Brief,
        count: int,
        label: str,
        early: Sequence[RemoteActor] = (),
    ) -> None:
        self._engine = engine
        self._create = create
        self._brief = brief
        self._label = label
        self.replaced = [0] * count
        # Of each peer: the errors since its last answer, the first cause before the others.
        self._errors: list[list[WorkerLostError]] = [[] for _ in range(count)]
        # Answers that tell no more than that it is there, and that it is briefed.
        self._first = [2] * count
        # Those that raised when they were briefed, and are nothing yet, and those that were given up.
        self._unmade: set[int] = set()
        self.lost = 0
        self.peers: list[RemoteActor] = [
            self._briefed(index, early[index] if index < len(early) else None) for index in range(count)
        ]

    def ask(self, index: int, method: str, *args: Any, parcel: Any = None) -> None:
        """Ask one of them; see `RemoteActor.ask`."""
        self.peers[index].ask(method, *args, parcel=parcel)

    def answer(self, index: int) -> Any:
        """Return the answer of one of them; see `RemoteActor.answer`.

        Raises:
            WorkerLostError: It is lost, or took the place of a lost one and could not begin; it may be replaced.
        """
        try:
            value = self._answer(index)
        except EnvCrashError as error:
            if not self._errors[index]:
                raise
            # Its predecessor's environments could be made; what these wait for may be back in a moment.
            self._unmade.add(index)
            told = str(error).partition(", expected ")[0]
            raise WorkerLostError(
                f"{self.peers[index].label}: took the place of a lost one and could not begin: {told}, expected it to; "
                "mend what raised"
            ) from error
        self._errors[index].clear()
        return value

    def _answer(self, index: int) -> Any:
        peer = self.peers[index]
        while self._first[index]:
            try:
                peer.answer()
            except WorkerLostError:
                raise
            except Exception:
                self._unmade.add(index)
                raise
            self._first[index] -= 1
        return peer.answer()

    def settle(self, index: int) -> None:
        """Let go of answers that nobody waits for any more, because whoever did was interrupted or told of an error.

        One that could not be briefed, or was given up, is started anew.
        """
        while self.peers[index].pending > self._first[index]:
            # What went wrong over there does not concern who comes next; one that is lost tells again.
            with suppress(Exception):
                self.answer(index)
        if index in self._unmade:
            self.renew(index)

    def outstanding(self, index: int) -> int:
        """Return how many answers of one of them are still to come, without those that come first."""
        return max(0, self.peers[index].pending - self._first[index])

    def is_briefed(self, index: int) -> bool:
        """Return whether one of them has told that it is what it is to be."""
        return not self._first[index]

    def replace(self, index: int, error: WorkerLostError) -> None:
        """Start another one in the place of one that is lost; what it was asked is to be asked again.

        Raises:
            WorkerLostError: That has been done too often without an answer in between, not because this process was
                interrupted; it tells the first cause.
        """
        errors = self._errors[index]
        blamed = not self.peers[index].broken_off
        errors += [error] if blamed else []
        self.lost += 1
        self.replaced[index] += 1
        if len(errors) > len(PAUSES):
            self.give_up(index)
            head = str(error).partition(", expected ")[0]
            last = f", the last: {head}" if isinstance(error.__cause__, EnvCrashError) else ""
            raise WorkerLostError(
                f"{errors[0]}\n(the first of {len(errors)} times without a fragment in between{last}, expected at most "
                f"{len(PAUSES)}; mend what ends the process)"
            ) from error
        time.sleep(PAUSES[len(errors) - 1] if blamed else 0.0)
        self._start_again(index)

    def give_up(self, index: int) -> None:
        """Start no other one in the place of one that is lost, until it is asked again, as by who saves the run."""
        self._unmade.add(index)

    def renew(self, index: int) -> None:
        """Start one of them anew, as if it had never been asked anything."""
        self._errors[index].clear()
        self._start_again(index)

    def _start_again(self, index: int) -> None:
        """Put a new peer in the place of one; if that is interrupted, `settle` does it."""
        self._unmade.add(index)
        self.peers[index].kill()
        self._first[index] = 2
        self.peers[index] = self._briefed(index)
        self._unmade.discard(index)

    def brief_again(self, index: int) -> None:
        """Let one of them become anew what it is to be by now, in the process that it has."""
        self.settle(index)
        method, *args = self._brief(index, self.replaced[index])
        self.peers[index].ask(method, *args)
        self._first[index] += 1

    def _briefed(self, index: int, peer: RemoteActor | None = None) -> RemoteActor:
        """Return a peer that knows what it is to be, a new one if none is given."""
        if peer is None:
            peer = self._engine.start(self._create, label=f"{self._label} {index + 1}")
        method, *args = self._brief(index, self.replaced[index])
        peer.ask(method, *args)
        return peer
