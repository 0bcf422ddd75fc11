"""What runs in a process that `menv.scale.process_engine` started: it makes an object and calls its methods.

Questions come one by one on its stdin, which is a socket, and so go the answers. When the other end is gone, it ends:
after the call that is under way, or a few seconds later where that does not return and the driver is gone as well.
"""

from __future__ import annotations

import io
import os
import select
import socket
import sys
import threading
import time
from contextlib import suppress

from menv.scale.far_error import Raised
from menv.scale.home import Home
from menv.scale.link import Link, Packed
from menv.scale.packing import pack

ORPHAN_S = 2.0
"""How long a call may go on whose driver is gone."""
_LOOK_S = 0.5


def main() -> None:
    """Serve until the driver is gone."""
    link = _link()
    threading.Thread(target=_watch, args=(link, os.getppid()), name="menv watch", daemon=True).start()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What an environment prints is seen at once, and not lost when the process is killed.
        sys.stdout.reconfigure(line_buffering=True)
    home = Home()
    with suppress(EOFError, OSError):
        while True:
            _serve(home, link)
    home.stop()


def _link() -> Link:
    """Return the link; what the object reads from stdin is empty."""
    link = Link(socket.socket(fileno=os.dup(0)))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # A process that the object forks must not keep the link open when this one has ended.
    os.register_at_fork(after_in_child=link.leave)
    return link


def _serve(home: Home, link: Link) -> None:
    """Answer one question.

    Raises:
        EOFError: Nobody asks any more.
        OSError: Likewise.
    """
    letter = link.receive()
    parcel = link.receive().parts if letter.more else None
    try:
        reply = Packed(home.answer(letter.parts, parcel))
    except Exception as error:
        # There may be no memory left to share.
        reply = Packed(pack((False, Raised.of(error))))
    link.send(reply)


def _watch(link: Link, driver: int) -> None:
    """End this process if the driver is gone and a call does not return.

    Not if that call holds the interpreter in C. Linux would kill this process with its driver (PR_SET_PDEATHSIG), but
    does so when the thread ends that started it, which may have built an algorithm for others to train; and no
    environment would be closed, so that what these have started would stay instead.
    """
    poll = select.poll()
    # No event is asked for: it wakes up when the other end is gone, and then only.
    poll.register(link.fileno(), 0)
    poll.poll()
    while os.getppid() == driver:
        # A driver that lives gives us the time that it wants to give.
        time.sleep(_LOOK_S)
    time.sleep(ORPHAN_S)
    os._exit(1)
