"""OperationGuard: one operation of an algorithm at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from menv.errors import CallOrderError

_PATIENCE_S = 60.0


class OperationGuard:
    """A lock that refuses other threads, and calls by hooks while something is half done.

    Once the algorithm is `stopped`, every call is refused.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._lock = threading.RLock()
        self._brief = False
        # The operation in progress, in words, and the interrupted one that must be repeated.
        self._half: str | None = None
        self._undone: str | None = None

    @contextmanager
    def call(self, name: str, *, brief: bool = False) -> Iterator[None]:
        """Run an operation; it may be within another one that has nothing in progress.

        A brief call of another thread is waited for. Waiting for any other could deadlock: an environment may ask for a
        policy to be saved while the sampler waits for that environment.
        """
        self.refuse_stopped(name)
        self._acquire(name, "call it in that thread, or once that has finished")
        before = self._brief
        try:
            self._brief = brief
            if self._half is not None:
                raise CallOrderError(
                    f"{name}: {self._half}, expected a call between two fragments; call it after train() or sample(), "
                    "or in on_train_result"
                )
            if self._undone not in (None, name):
                raise CallOrderError(
                    f"{name}: {self._undone} was interrupted and left parts of two runs; call {self._undone} again, or "
                    "build a new algorithm"
                )
            yield
        finally:
            self._brief = before
            self._lock.release()

    @contextmanager
    def in_progress(self, what: str) -> Iterator[None]:
        """Mark something, described in words, as half done; only within a call."""
        before = self._half
        try:
            self._half = what
            yield
        finally:
            self._half = before

    @property
    def is_idle(self) -> bool:
        """Whether nothing is half done."""
        return self._half is None

    @contextmanager
    def must_finish(self, name: str) -> Iterator[None]:
        """Refuse every other operation until this one succeeds: interrupted, it leaves parts of two runs."""
        self._undone = name
        yield
        self._undone = None

    def refuse_stopped(self, name: str, instead: str = "build a new one") -> None:
        """Raise `CallOrderError` if the algorithm was stopped."""
        if self.stopped:
            raise CallOrderError(f"{name}: this algorithm was stopped; {instead}")

    def refuse_others(self, name: str, instead: str) -> None:
        """Raise `CallOrderError` if another thread is at work."""
        self._acquire(name, instead)
        self._lock.release()

    def _acquire(self, name: str, instead: str) -> None:
        if not self._lock.acquire(timeout=_PATIENCE_S if self._brief else 0.0):
            raise CallOrderError(f"{name}: another thread is using this algorithm; {instead}")
