"""An engine whose processes are used again by one test after the other, because starting one takes a while.

Everything else is as it is: real processes, real sockets, pickles both ways. A process that is killed is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tests.engines.peers import Engine, EngineName, RemoteActor, T


class RecycledEngine(Engine):
    """Takes processes from a pool that outlives it.

    Args:
        inner: Starts them, when the pool is empty.
        pool: Processes that nobody uses.
    """

    name: ClassVar[EngineName] = "process"

    def __init__(self, inner: Engine, pool: list[RemoteActor]) -> None:
        super().__init__()
        self.inner, self.pool = inner, pool
        self.used: list[RemoteActor] = []

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> RemoteActor:
        if self.pool:
            actor = self.pool.pop()
            actor.label = label
            actor.create(make, *args)
        else:
            actor = self.inner.start(make, *args, label=label)
        self.used.append(actor)
        return actor

    def put(self, value: T) -> T:
        return self.inner.put(value)

    def wait(self, actors: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
        return self.inner.wait(actors, timeout)

    def _end(self, actors: Sequence[Any], grace: float) -> Mapping[Any, str]:
        used, self.used = self.used, []
        for actor in used:
            # The object is stopped, and another one is in its place.
            actor.create(dict)
        self.pool += [actor for actor in used if self._idle(actor)]
        return {}

    def _idle(self, actor: RemoteActor) -> bool:
        """Receive all that was asked; whether the process may be used again."""
        error = None
        while actor.pending:
            if not self.inner.wait([actor], 1.0):
                actor.kill()
            try:
                error = actor.answer()
            except Exception as raised:
                # Answers that nobody waited for may be errors; the last one is about the object in place.
                error = raised
        return error is None
