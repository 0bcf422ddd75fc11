"""OperationGuard: what may not run at the same time, or within each other, on one algorithm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from menv.errors import CallOrderError

_BETWEEN = "expected to stand between two; call it after train() or sample(), or in on_train_result"


_ONCE = {
    "sample": "a fragment is being sampled, expected to stand between two; hooks, environments and other threads "
    "cannot begin one meanwhile: call it after train() or sample()",
    "evaluate": "an evaluation is going on, expected to stand between two; its own hooks cannot begin another",
}
"""Why calls cannot be within one of the same name."""


class OperationGuard:
    """The calls of one algorithm that are running, all in one thread.

    Other threads are refused or wait, so that no operation starts while another one is half done. Once the algorithm
    is `stopped`, every call is refused.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._free = threading.Condition()
        self._thread: int | None = None
        # The running calls of that thread, the outermost first, and whether they are brief.
        self._calls: tuple[str, ...] = ()
        self._brief = False
        # The operation in progress, in words.
        self._half: str | None = None
        # The interrupted operation that must be repeated.
        self._undone: str | None = None

    @contextmanager
    def call(self, name: str, *, whole: bool = False, brief: bool = False) -> Iterator[None]:
        """Run a call, which may be within another one of the same thread.

        A brief call of another thread is waited for. Waiting for any other could deadlock: an environment may ask for a
        policy to be saved while the sampler waits for that environment. `whole` requires that nothing is in progress.
        """
        self.refuse_stopped(name)
        before = None
        try:
            with self._free:
                self._free.wait_for(lambda: self._mine or not self._calls or not self._brief)
                self._check(name, whole)
                before = self._calls
                if not before:
                    self._thread, self._brief = threading.get_ident(), brief
                self._calls = (*before, name)
            yield
        finally:
            if before is not None:
                # First, and without a call: a Ctrl-C here must not leave a call that seems to run for ever.
                self._calls = before
                with self._free:
                    self._free.notify_all()

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
        """Until an operation succeeds, refuse every other one: interrupted, it leaves parts of two runs."""
        self._undone = name
        yield
        self._undone = None

    def refuse_stopped(self, name: str, instead: str = "build a new one") -> None:
        """Raise `CallOrderError` if the algorithm was stopped."""
        if self.stopped:
            raise CallOrderError(f"{name}: this algorithm was stopped; {instead}")

    def refuse_others(self, name: str, instead: str) -> None:
        """Raise `CallOrderError` if another thread is at work."""
        with self._free:
            if self._calls and not self._mine and not self._brief:
                raise CallOrderError(
                    f"{name}: {self._calls[0]}() runs in another thread, expected none; {instead}"
                )

    @property
    def _mine(self) -> bool:
        return self._thread == threading.get_ident()

    def _check(self, name: str, whole: bool) -> None:
        if self._calls and not self._mine:
            raise CallOrderError(
                f"{name}: {self._calls[0]}() runs in another thread, expected none; call it in that thread, or once "
                "that has returned"
            )
        if name in _ONCE and name in self._calls:
            raise CallOrderError(f"{name}: {_ONCE[name]}")
        if self._undone not in (None, name):
            raise CallOrderError(
                f"{name}: {self._undone} was broken off, expected it to come to its end, because there are parts of "
                f"two runs now; call {self._undone} again, or build a new algorithm"
            )
        if whole and self._half is not None:
            raise CallOrderError(f"{name}: {self._half}, {_BETWEEN}")
