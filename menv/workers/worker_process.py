"""What runs in a process that `menv.workers.process_engine` started: it makes an object and calls its methods.

Questions come one by one on its stdin, which is a socket, and so go the answers. When the other end is gone, it ends:
after the call that is under way, or a few seconds later where that does not return and the driver is gone as well.
"""

from __future__ import annotations

import io
import logging
import os
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from menv.errors import end_if_forked
from menv.workers.engine import CapturedError
from menv.workers.pipe_channel import PackedMessage, Parts, PipeChannel, UnsendableError, pack, unpack

# SEAM menv.scale.home
# The home of an object: made in a process of its own, and asked for its methods.
#
# `menv.workers.worker_process` and `menv.workers.ray_worker` each have one, so that whoever asks sees no
# difference. It does not
# know how questions come.


ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables of the environment: a home has a core of its own, at most; threads beside it would take those of others."""
CREATE = ""
"""In place of a method's name: the first argument is what makes the object."""


def import_paths() -> list[str]:
    """Return where this process looks for modules, in a form that holds elsewhere."""
    # Python passes over what is no text, such as a Path that somebody has put there, and over a folder that is gone.
    here = ""
    with suppress(FileNotFoundError):
        here = os.getcwd()
    return [path or here for path in sys.path if isinstance(path, str) and (path or here)]


def question(label: str, method: str, args: tuple[Any, ...]) -> Parts:
    """Return a question for a home.

    Args:
        label: What messages call the home.
        method: The name of a method, or `CREATE`.
        args: What it is called with.

    Raises:
        UnsendableError: An argument cannot be sent.
    """
    where = f"{label}, {method}" if method else f"{label}, to make it"
    return pack((method, args), f"{where}: args", "[1]")


class WorkerProcess:
    """The object that was made here."""

    def __init__(self) -> None:
        self._object: Any = None
        self._failed: CapturedError | None = None

    def answer(self, question: Parts, parcel: Parts | None = None) -> Parts:
        """Answer one question.

        Args:
            question: The name of a method, and a tuple of what it is called with.
            parcel: One more argument.

        Returns:
            Whether it went well, and what was returned or a `CapturedError`.
        """
        method = "?"
        try:
            method, args = _opened(question, parcel)
            value = self._call(method, args)
            if isinstance(value, CapturedError):
                return pack((False, value))
            return pack((True, value), f"the answer of {method!r}", "[1]")
        except Exception as error:
            end_if_forked(error)
            raised = CapturedError.of(error)
            if self._object is None:
                self._failed = self._failed or raised
            return pack((False, raised))

    def stop(self) -> None:
        """Let the object end in its own way."""
        stop = getattr(self._object, "stop", None)
        if stop is not None:
            stop()

    def _call(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == CREATE:
            self._object = args[0](*args[1:])
            return None
        # Questions may have been on their way before it was known that there is nothing to ask.
        return self._failed if self._failed is not None else getattr(self._object, method)(*args)


def _opened(question: Parts, parcel: Parts | None) -> tuple[str, tuple[Any, ...]]:
    """Return the name of a method, and what it is called with.

    Raises:
        UnsendableError: Something is named in it that there is not in this process.
    """
    try:
        method, args = unpack(question)
        return method, args if parcel is None else (*args, unpack(parcel))
    except (ImportError, AttributeError) as error:
        raise UnsendableError(
            f"opened in another process: {type(error).__name__}: {error}, expected names of modules that can be "
            "imported there too; put the folder of the module on sys.path, or the class into the script"
        ) from error


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
    home = WorkerProcess()
    with suppress(EOFError, OSError):
        while True:
            _serve(home, link)
    home.stop()


def _link() -> PipeChannel:
    """Return the link; what the object reads from stdin is empty."""
    link = PipeChannel(socket.socket(fileno=os.dup(0)))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # A process that the object forks must not keep the link open when this one has ended.
    os.register_at_fork(after_in_child=link.leave)
    return link


def _serve(home: WorkerProcess, link: PipeChannel) -> None:
    """Answer one question.

    Raises:
        EOFError: Nobody asks any more.
        OSError: Likewise.
    """
    letter = link.receive()
    parcel = link.receive().parts if letter.more else None
    try:
        reply = PackedMessage(home.answer(letter.parts, parcel))
    except Exception as error:
        # There may be no memory left to share.
        reply = PackedMessage(pack((False, CapturedError.of(error))))
    link.send(reply)


def _watch(link: PipeChannel, driver: int) -> None:
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


# SEAM menv.scale.log_level
# The level of what a process of menv's own logs, which its driver chose.
#
# Workers set it (`menv.algorithms.rollout_worker`), and so do the processes of remote environments
# (`far_env`). In the user's own process logging is left to the user.


def set_log_level(level: str | None) -> None:
    """Let everything from a level on be written to stderr; None leaves logging alone."""
    if level is not None:
        logging.basicConfig(level=level)
        logging.getLogger().setLevel(level)
