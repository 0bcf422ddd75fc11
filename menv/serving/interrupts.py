"""Ctrl-C while clients are served in the main thread: held back until nothing is halfway done.

In the midst of a callback of the server's loop it would leave bodies unread, answers unsent, or the loop without one of
its tasks. `ServedEnvs` holds it back from poll to poll. It knows no server.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any


class Interrupts:
    """A context that holds Ctrl-C back in the main thread, unless somebody handles it in a way of their own.

    A second one is not held back, and what was is raised at the end.

    Args:
        wake: Called with the first one, from amidst anything: has whoever waits for clients look here.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._holds = self._held = False

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._holds = True
            signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *_: object) -> None:
        if self._holds:
            self._holds = False
            if signal.getsignal(signal.SIGINT) == self._note:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self.check()

    def check(self) -> None:
        """Raise what was held back.

        Raises:
            KeyboardInterrupt: There was one.
        """
        if self._held:
            self._held = False
            raise KeyboardInterrupt

    def _note(self, *_: Any) -> None:
        self.check()
        self._held = True
        self._wake()
