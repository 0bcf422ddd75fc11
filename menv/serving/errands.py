"""Errands: what sessions want done in the sampler's thread, at a moment when nobody learns.

Weights are read and policies are packed there, because a learner changes them in place. A session hands in an errand
in the server's loop and is called back there.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from menv.errors import MenvError
from menv.serving.trainer import Trainer

Do = Callable[[Trainer], Any]
Then = Callable[[Any], None]


class Errands:
    """Errands that wait, and those that wait for new weights first.

    Args:
        wake: Lets a sampler that waits for callers look here.
        post: Has the loop call something.
    """

    def __init__(self, wake: Callable[[], None], post: Callable[[Callable[[], object]], None]) -> None:
        self._wake = wake
        self._post = post
        self._due: deque[tuple[Do, Then]] = deque()
        self._later: dict[object, list[tuple[Do, Then]]] = {}

    def add(self, do: Do, then: Then) -> None:
        """Have something done soon.

        Args:
            do: Called in the sampler's thread.
            then: Called in the server's loop with what `do` returned, or with the `MenvError` that it raised.
        """
        self._due.append((do, then))
        self._wake()

    def add_later(self, who: object, do: Do, then: Then) -> None:
        """Have something done once the weights have changed; `who` may have several such errands."""
        self._later[who] = [*self._later.get(who, ()), (do, then)]
        self._wake()

    def drop(self, who: object) -> None:
        """Forget what somebody waits for."""
        self._later.pop(who, None)
        self._wake()

    @property
    def waiting(self) -> int:
        """How many different `who` wait for new weights."""
        return len(self._later)

    def look_again(self) -> None:
        """Have the sampler's thread see who waits, though nothing new has come."""
        self._wake()

    def waits(self, who: object) -> bool:
        """Return whether `who` waits for new weights."""
        return who in self._later

    def weights_changed(self) -> None:
        """Let those go on who wait for new weights. In the sampler's thread."""
        for who in list(self._later):
            self._due.extend(self._later.pop(who, ()))

    def fail(self, error: MenvError) -> None:
        """Tell everybody who waits why nothing will come of it. In any thread, also while the sampler's does some."""
        self.weights_changed()
        thens = [then for _, then in self._taken_out()]
        if thens:
            self._post(lambda: [then(error) for then in thens])

    def run(self, trainer: Trainer) -> None:
        """Do what is due. In the sampler's thread."""
        done = []
        for do, then in self._taken_out():
            result: Any
            try:
                result = do(trainer)
            except MenvError as error:
                result = error
            done.append((then, result))
        if done:
            self._post(lambda: [then(result) for then, result in done])

    def _taken_out(self) -> Iterator[tuple[Do, Then]]:
        """Yield what is due, and what comes meanwhile; another thread may take some of it, too."""
        with contextlib.suppress(IndexError):
            while self._due:
                yield self._due.popleft()
