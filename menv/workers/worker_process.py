"""The main program of a process that `process_engine` started: it creates an object and calls its methods.

Requests arrive on stdin, which is a socket, and answers leave there. The process ends when the other end is gone: after
the current call, or a few seconds later if that does not return and the driver is gone, too. This module stays light:
it imports neither numpy nor torch.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from menv.errors import in_words
from menv.workers.engine import CREATE, CapturedError
from menv.workers.messages import Parts, UnsendableError, pack, receive_parts, send_parts, unpack

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables: a worker has one core at most; more threads would slow down the others."""


def import_paths() -> list[str]:
    """Return this process's module paths, in a form that is valid in other processes."""
    # As Python does, skip entries that are not text, such as a Path, and a working directory that is gone.
    here = ""
    with suppress(FileNotFoundError):
        here = os.getcwd()
    return [path or here for path in sys.path if isinstance(path, str) and (path or here)]


class WorkerProcess:
    """Holds the object and answers requests for its methods. Processes and Ray actors have one each."""

    def __init__(self) -> None:
        self._object: Any = None
        self._creation_error: CapturedError | None = None

    def answer(self, request: Parts, parcel: Parts | None = None) -> Parts:
        """Call a method, with `parcel` as a last argument; return packed `(ok, value or CapturedError)`."""
        method = "?"
        try:
            method, args = _unpack_request(request, parcel)
            if method != CREATE and self._creation_error is not None:
                # Requests may be under way before the driver knows that the creation failed.
                return pack((False, self._creation_error))
            value = self._call(method, args)
            return pack((True, value), f"the answer of {method!r}", "[1]")
        except Exception as error:
            raised = CapturedError.of(error)
            if self._object is None:
                self._creation_error = self._creation_error or raised
            return pack((False, raised))

    def stop(self) -> None:
        stop = getattr(self._object, "stop", None)
        if stop is not None:
            stop()

    def _call(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == CREATE:
            self.stop()
            self._object = self._creation_error = None
            self._object = args[0](*args[1:])
            return None
        return getattr(self._object, method)(*args)


def _unpack_request(request: Parts, parcel: Parts | None) -> tuple[str, tuple[Any, ...]]:
    try:
        method, args = unpack(request)
        return method, args if parcel is None else (*args, unpack(parcel))
    except (ImportError, AttributeError) as error:
        raise UnsendableError(
            f"opened in another process: {in_words(error)}, expected names of modules that can be "
            "imported there too; put the folder of the module on sys.path, or the class into the script"
        ) from error


ORPHAN_S = 2.0
"""How long a call may last after its driver is gone."""
_CHECK_S = 0.5


def main() -> None:
    """Serve until the driver is gone."""
    end = _open_socket()
    requests: SimpleQueue[Parts | None] = SimpleQueue()
    threading.Thread(
        target=_read, args=(end, requests, os.getppid()), name="menv requests", daemon=True
    ).start()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Show printed lines at once; they would be lost when the process is killed.
        sys.stdout.reconfigure(line_buffering=True)
    worker = WorkerProcess()
    # Sending fails if the driver is gone.
    with suppress(OSError):
        while (request := requests.get()) is not None:
            send_parts(end, worker.answer(request))
    worker.stop()


def _open_socket() -> socket.socket:
    """Return the socket on stdin; the object itself reads an empty stdin."""
    end = socket.socket(fileno=os.dup(0))
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    # A fork of this process must not keep the socket open.
    os.register_at_fork(after_in_child=end.close)
    return end


def _read(end: socket.socket, requests: SimpleQueue[Parts | None], driver: int) -> None:
    """Receive requests during calls, so that the driver can always send; end this process if the driver is gone.

    A call that holds the interpreter in C prevents that. Linux could kill this process with its driver
    (PR_SET_PDEATHSIG), but does so when the thread ends that started it, and no environment would be closed.
    """
    try:
        with suppress(OSError, EOFError):
            while True:
                requests.put(receive_parts(end))
    finally:
        requests.put(None)
    while os.getppid() == driver:
        # A living driver decides how long to wait.
        time.sleep(_CHECK_S)
    time.sleep(ORPHAN_S)
    os._exit(1)


def set_log_level(level: str | None) -> None:
    """Set the driver's log level in this process and log to stderr; None leaves logging alone."""
    if level is not None:
        logging.basicConfig(level=level)
        logging.getLogger().setLevel(level)
