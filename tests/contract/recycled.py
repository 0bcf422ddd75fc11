"""An engine whose processes are used again by one test after the other, because starting one takes a while.

Everything else is as it is: real processes, real sockets, pickles both ways. A process that is killed is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from menv.workers.engine import Engine, EngineName, RemoteActor, T, Ts


class Stage:
    """What really lives in the process: it holds the object of the moment."""

    def __init__(self) -> None:
        self.object: Any = None

    def open(self, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.object = make(*args)

    def ask(self, method: str, args: tuple[Any, ...]) -> Any:
        return getattr(self.object, method)(*args)

    def close(self) -> None:
        stop = getattr(self.object, "stop", None)
        self.object = None
        if stop is not None:
            stop()


class RecycledPeer(RemoteActor):
    """A peer that goes back where it came from when its engine is stopped."""

    def __init__(self, inner: RemoteActor, label: str) -> None:
        self.inner, self.label, self.killed = inner, label, False
        inner.label = label

    @property
    def pid(self) -> int | None:
        return self.inner.pid

    @property
    def pending(self) -> int:  # type: ignore[override]
        return self.inner.pending

    def ask(self, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        self.inner.ask(Stage.ask, method.__name__, args)

    def create(self, make: Callable[..., Any], *args: Any) -> None:
        self.inner.ask(Stage.open, make, args)

    def answer(self) -> Any:
        return self.inner.answer()

    def kill(self) -> None:
        self.killed = True
        self.inner.kill()


class RecycledEngine(Engine):
    """Takes processes from a pool that outlives it.

    Args:
        inner: Starts them, when the pool is empty.
        pool: Processes that nobody uses.
    """

    name: ClassVar[EngineName] = "process"

    def __init__(self, inner: Engine, pool: list[RemoteActor]) -> None:
        self.inner, self.pool = inner, pool
        self.peers: list[RecycledPeer] = []

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> RemoteActor:
        peer = RecycledPeer(self._any(), label)
        peer.create(make, *args)
        self.peers.append(peer)
        return peer

    def put(self, value: T) -> T:
        return self.inner.put(value)

    def wait(self, actors: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
        by_inner = {id(peer.inner): peer for peer in actors if isinstance(peer, RecycledPeer)}
        found = self.inner.wait([peer.inner for peer in actors if isinstance(peer, RecycledPeer)], timeout)
        return [by_inner[id(peer)] for peer in found]

    def stop(self, grace: float = 5.0) -> None:
        peers, self.peers = self.peers, []
        for peer in peers:
            with suppress(Exception):
                peer.inner.ask(Stage.close)
        for peer in peers:
            while not peer.killed and peer.inner.pending:
                if not self.inner.wait([peer.inner], 1.0):
                    peer.kill()
                    break
                try:
                    peer.inner.answer()
                except Exception as error:
                    # An answer that nobody waited for may be an error; the process goes on.
                    peer.killed = type(error).__name__ == "WorkerLostError"
            if not peer.killed:
                self.pool.append(peer.inner)

    def _any(self) -> RemoteActor:
        if self.pool:
            return self.pool.pop()
        peer = self.inner.start(Stage, label="stage")
        peer.answer()
        return peer
