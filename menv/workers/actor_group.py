"""A group of equal actors in other processes; lost ones are replaced a few times.

`menv.algorithms.worker_group` keeps its rollout workers in one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from menv.errors import EnvCrashError, WorkerLostError
from menv.workers.engine import Engine, RemoteActor, T, Ts

PAUSES = (0.0, 0.5, 2.0)
"""Seconds before each replacement without an answer in between; after the last one the actor is given up."""


class ActorGroup:
    """Remote actors by index.

    `create` makes an object in another process; its method `begin` gets `brief(index, times replaced)` first. `early`
    holds actors that were started already and not asked anything. `lost` counts lost actors, `replaced` the
    replacements of each.
    """

    def __init__(
        self,
        engine: Engine,
        create: Callable[[], Any],
        begin: Callable[[Any, T], None],
        brief: Callable[[int, int], T],
        count: int,
        label: str,
        early: Sequence[RemoteActor] = (),
    ) -> None:
        self._engine = engine
        self._create = create
        self._begin = begin
        self._brief = brief
        self._label = label
        self.replaced = [0] * count
        # Errors of each actor since its last answer, the first cause first.
        self._errors: list[list[WorkerLostError]] = [[] for _ in range(count)]
        # Outstanding answers to the creation and to the first request.
        self._first = [2] * count
        # Actors whose first request failed, and actors that were given up.
        self._unusable: set[int] = set()
        self.lost = 0
        self.actors: list[RemoteActor] = [
            self._initialized(index, early[index] if index < len(early) else None) for index in range(count)
        ]

    def ask(self, index: int, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        self.actors[index].ask(method, *args)

    def answer(self, index: int) -> Any:
        """Return an actor's answer; WorkerLostError if it is lost, or replaced a lost one and could not begin."""
        try:
            value = self._answer(index)
        except EnvCrashError as error:
            if not self._errors[index]:
                raise
            # Environments could be created before, so the cause may be temporary.
            self._unusable.add(index)
            reason = str(error).partition(", expected ")[0]
            raise WorkerLostError(
                f"{self.actors[index].label}: took the place of a lost one and could not begin: {reason}, expected it "
                "to; fix what raised"
            ) from error
        self._errors[index].clear()
        return value

    def _answer(self, index: int) -> Any:
        self._wait_until_initialized(index)
        return self.actors[index].answer()

    def _wait_until_initialized(self, index: int) -> None:
        while self._first[index]:
            try:
                self.actors[index].answer()
            except WorkerLostError:
                raise
            except Exception:
                self._unusable.add(index)
                raise
            self._first[index] -= 1

    def signal(self, index: int) -> bool:
        """Let an actor break off what it is doing, once it is initialized; return whether it can."""
        # The next request raises the error.
        with suppress(Exception):
            self._wait_until_initialized(index)
            return self.actors[index].signal()
        return False

    def settle(self, index: int) -> None:
        """Discard answers that no caller waits for any more; restart an actor that could not begin."""
        while self.actors[index].pending > self._first[index]:
            # Old errors do not concern the next request; a lost actor raises again.
            with suppress(Exception):
                self.answer(index)
        if index in self._unusable:
            self.renew(index)

    def outstanding(self, index: int) -> int:
        """Return how many answers are due, without the answers to first requests."""
        return max(0, self.actors[index].pending - self._first[index])

    def is_initialized(self, index: int) -> bool:
        """Return whether an actor has answered its first request."""
        return not self._first[index]

    def replace(self, index: int, error: WorkerLostError) -> None:
        """Start another actor in place of a lost one; the caller repeats its requests.

        Raises WorkerLostError with the first cause after too many losses without an answer in between. An interruption
        of this process does not count.
        """
        errors = self._errors[index]
        blamed = not self.actors[index].was_interrupted
        errors += [error] if blamed else []
        self.lost += 1
        self.replaced[index] += 1
        if len(errors) > len(PAUSES):
            self.give_up(index)
            head = str(error).partition(", expected ")[0]
            last = f", the last: {head}" if isinstance(error.__cause__, EnvCrashError) else ""
            raise WorkerLostError(
                f"{errors[0]}\n(the first of {len(errors)} times without a fragment in between{last}, expected at most "
                f"{len(PAUSES)}; fix what ends the process)"
            ) from error
        time.sleep(PAUSES[len(errors) - 1] if blamed else 0.0)
        self._start_again(index)

    def give_up(self, index: int) -> None:
        """Do not replace an actor before the next request, e.g. while a run is saved."""
        self._unusable.add(index)

    def renew(self, index: int) -> None:
        """Start an actor again and forget its errors."""
        self._errors[index].clear()
        self._start_again(index)

    def _start_again(self, index: int) -> None:
        """Replace an actor; after an interruption, `settle` finishes this."""
        self._unusable.add(index)
        self.actors[index].kill()
        self._first[index] = 2
        self.actors[index] = self._initialized(index)
        self._unusable.discard(index)

    def initialize_again(self, index: int) -> None:
        """Repeat the first request in the running process."""
        self.settle(index)
        self.actors[index].ask(self._begin, self._brief(index, self.replaced[index]))
        self._first[index] += 1

    def _initialized(self, index: int, actor: RemoteActor | None = None) -> RemoteActor:
        """Ask an actor its first request, a new one if none is given."""
        if actor is None:
            actor = self._engine.start(self._create, label=f"{self._label} {index + 1}")
        actor.ask(self._begin, self._brief(index, self.replaced[index]))
        return actor
