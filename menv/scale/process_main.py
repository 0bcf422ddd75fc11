"""What runs in a process that `menv.scale.process_engine` started: it makes an object and calls its methods.

Questions come one by one, on the descriptor that it was started with, and so go the answers. When the other end is
gone, it ends.
"""

from __future__ import annotations

import signal
import socket
from contextlib import suppress

from menv.scale.far_error import Raised
from menv.scale.home import Home
from menv.scale.link import Packed, receive
from menv.scale.packing import pack


def main(fd: int) -> None:
    """Serve until the driver is gone."""
    # Whoever presses Ctrl-C means the driver, which ends this process in its own way.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    home = Home()
    with socket.socket(fileno=fd) as link, suppress(EOFError, OSError):
        while True:
            _serve(home, link)
    home.stop()


def _serve(home: Home, link: socket.socket) -> None:
    """Answer one question.

    Raises:
        EOFError: Nobody asks any more.
        OSError: Likewise.
    """
    letter = receive(link)
    parcel = receive(link).parts if letter.more else None
    try:
        reply = Packed(home.answer(letter.parts, parcel))
    except Exception as error:
        # There may be no memory left to share.
        reply = Packed(pack((False, Raised.of(error))))
    reply.send(link)
