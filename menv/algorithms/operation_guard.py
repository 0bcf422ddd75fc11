"""What an algorithm is in the midst of, and in which thread: others are refused or wait, so that nothing is half done.

`menv.algorithms.algorithm` has one. It knows nothing of what is done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from menv.errors import CallOrderError

_BETWEEN = "expected to stand between two; call it after train() or sample(), or in on_train_result"


class OperationGuard:
    """The calls of one algorithm that are underway, all in one thread."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._thread: int | None = None
        # What that thread has called, the outermost first, and whether that soon returns whatever others do.
        self._calls: list[str] = []
        self._brief = False
        # What is half done, in words.
        self._half: str | None = None
        # What was broken off and has left nothing to go on from.
        self._undone: str | None = None

    @contextmanager
    def call(self, name: str, *, whole: bool = False, brief: bool = False) -> Iterator[None]:
        """Be in a call, which may be within another one of the same thread.

        Another thread's is waited for if it is brief. Others may wait for whoever calls now, as an environment waits
        that asks for a policy to be saved, so that both would wait.

        Args:
            name: The method.
            whole: Whether nothing may be half done.
            brief: Whether it returns whatever other threads do.

        Raises:
            CallOrderError: Another thread is in a call that is not brief, or something is half done.
        """
        own = False
        try:
            with self._free:
                self._free.wait_for(lambda: self._mine or not self._calls or not self._brief)
                self._check(name, whole)
                if not self._calls:
                    self._thread, self._brief = threading.get_ident(), brief
                self._calls.append(name)
                own = True
            yield
        finally:
            if own:
                with self._free:
                    self._calls.pop()
                    self._free.notify_all()

    @contextmanager
    def half(self, what: str) -> Iterator[None]:
        """Have something half done, said in words; only within a call."""
        before = self._half
        try:
            self._half = what
            yield
        finally:
            self._half = before

    @property
    def between(self) -> bool:
        """Whether nothing is half done."""
        return self._half is None

    @contextmanager
    def to_the_end(self, name: str) -> Iterator[None]:
        """Do what leaves nothing to go on from where it is broken off: nothing else can be called then but it again."""
        self._undone = name
        yield
        self._undone = None

    def refuse_others(self, name: str, instead: str) -> None:
        """Refuse a call of another thread than that which is at work.

        Raises:
            CallOrderError: There is such a thread.
        """
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
        if self._undone not in (None, name):
            raise CallOrderError(
                f"{name}: {self._undone} was broken off, expected it to come to its end, because there are parts of "
                f"two runs now; call {self._undone} again, or build a new algorithm"
            )
        if whole and self._half is not None:
            raise CallOrderError(f"{name}: {self._half}, {_BETWEEN}")
