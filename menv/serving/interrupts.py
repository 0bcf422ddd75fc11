"""Ctrl-C in the main thread, held back until no step is half done: while clients are served, while policies learn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any


class Interrupts:
    """A context that holds back Ctrl-C in the main thread while the server's loop runs.

    Raised inside a callback of the loop, KeyboardInterrupt would leave bodies unread or answers unsent. A second Ctrl-C
    is raised at once. `wake` is called with the first one, at any point of the program. A program's own handler of
    SIGINT is left alone.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._holds = self._held = False

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._holds = True
            signal.signal(signal.SIGINT, self._on_sigint)

    def __exit__(self, *_: object) -> None:
        if self._holds:
            self._holds = False
            if signal.getsignal(signal.SIGINT) == self._on_sigint:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self.check()

    @property
    def due(self) -> bool:
        """Whether this thread is the main thread and a KeyboardInterrupt was held back."""
        return self._held and threading.current_thread() is threading.main_thread()

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if any."""
        if self.due:
            self._held = False
            raise KeyboardInterrupt

    def _on_sigint(self, *_: Any) -> None:
        self.check()
        self._held = True
        self._wake()


updates = Interrupts(lambda: None)
"""Entered while a policy learns, and while a result is written; optimizers call `check` between two gradient steps."""
