"""Signals that end a run, held back until no step is half done: while clients are served, while policies learn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, Self

_TERMINATIONS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class Interrupts:
    """A context that holds back Ctrl-C in the main thread while the server's loop runs, and what `Terminations` sees.

    Raised inside a callback of the loop, KeyboardInterrupt would leave bodies unread or answers unsent. A second Ctrl-C
    is raised at once. `wake` is called with the first one, at any point of the program. A program's own handler of
    SIGINT is left alone.
    """

    holder: Interrupts | None = None
    """The outermost one that the main thread has entered."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._held = False

    def __enter__(self) -> None:
        if Interrupts.holder is None and _in_main_thread():
            Interrupts.holder = self
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self.hold)

    def __exit__(self, *_: object) -> None:
        if Interrupts.holder is self and _in_main_thread():
            Interrupts.holder = None
            if signal.getsignal(signal.SIGINT) == self.hold:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self.check()

    @property
    def due(self) -> bool:
        """Whether this thread is the main thread and a KeyboardInterrupt was held back."""
        return self._held and _in_main_thread()

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if any."""
        if self.due:
            self._held = False
            raise KeyboardInterrupt

    def hold(self, *_: Any) -> None:
        """Raise KeyboardInterrupt later, or now if one is held back already; a handler of signals."""
        self.check()
        self._held = True
        self._wake()


class Terminations:
    """A context in which SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that a run is saved.

    Where it leaves the context, it becomes SystemExit with the status that shells give to the signal.

    In other threads than the main one it does nothing. Only the first of these signals counts: `timeout`, a service
    that stops and a terminal that closes send several at once. `number` is the one that came, 0 without one.

    Args:
        program: menv is the program, so handlers that libraries have set are replaced, and Ctrl-C counts too where the
            shell ignores it, as in what it starts in the background. Otherwise a handler of the program is left alone.
            An ignored SIGHUP, as of `nohup`, stays ignored.
    """

    def __init__(self, *, program: bool = False) -> None:
        self.number = 0
        self._program = program
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if _in_main_thread():
            for number in _TERMINATIONS:
                handler = signal.getsignal(number)
                if handler is signal.SIG_DFL or (self._program and callable(handler)):
                    self._before[number] = signal.signal(number, self._interrupt)
            if self._program and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.number and kind is KeyboardInterrupt:
            # A script that would continue after Ctrl-C ends here.
            raise SystemExit(128 + self.number) from None

    def _interrupt(self, number: int, _: Any) -> None:
        if self.number:
            return
        self.number = number
        if Interrupts.holder is not None:
            Interrupts.holder.hold()
        else:
            raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


updates = Interrupts(lambda: None)
"""Entered while a policy learns, and while a result is written; optimizers call `check` between two gradient steps."""
