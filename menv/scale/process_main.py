"""What runs in a process that `menv.scale.process_engine` started: it makes an object and calls its methods.

Questions come one by one, on the descriptor that it was started with, and so go the answers. When the other end is
gone, it ends.
"""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from typing import Any

from menv.scale.far_error import Raised
from menv.scale.link import Letter, Packed, receive

CREATE = ""
"""In place of a method's name: the first argument is what makes the object."""


def main(fd: int) -> None:
    """Serve until the driver is gone."""
    # Whoever presses Ctrl-C means the driver, which ends this process in its own way.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    home = _Home()
    with socket.socket(fileno=fd) as link, suppress(EOFError, OSError):
        while True:
            home.serve(link)
    home.stop()


class _Home:
    """The object that was made here."""

    def __init__(self) -> None:
        self._object: Any = None

    def serve(self, link: socket.socket) -> None:
        """Answer one question.

        Raises:
            EOFError: Nobody asks any more.
            OSError: Likewise.
        """
        letter = receive(link)
        parcel = receive(link) if letter.more else None
        try:
            reply = Packed((True, self._answer(letter, parcel)))
        except Exception as error:
            reply = Packed((False, Raised.of(error)))
        reply.send(link)

    def stop(self) -> None:
        """Let the object end in its own way."""
        stop = getattr(self._object, "stop", None)
        if stop is not None:
            stop()

    def _answer(self, letter: Letter, parcel: Letter | None) -> Any:
        method, args = letter.open()
        if parcel is not None:
            args = (*args, parcel.open())
        if method == CREATE:
            self._object = args[0](*args[1:])
            return None
        return getattr(self._object, method)(*args)
