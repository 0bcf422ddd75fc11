"""Processes on this machine: the engine that needs nothing but Python.

A process is a new interpreter that imports what it is asked to and no more: not the driver's script, and no torch. See
`menv.scale.engine` for what it does, `menv.scale.process_main` for the other end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from menv.errors import WorkerLostError
from menv.scale.engine import Engine, EngineName, Peer
from menv.scale.home import CREATE, question
from menv.scale.last_words import LastWords
from menv.scale.link import Packed, receive
from menv.scale.packing import pack

_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from menv.scale.process_main import main; main(int(sys.argv[2]))"
)
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A worker has a core of its own, at most; threads beside it would take those of the others."""


class ProcessPeer(Peer):
    """An object in a process of its own.

    Args:
        label: What messages call it.
        packed: Creates the object.
    """

    def __init__(self, label: str, packed: Packed) -> None:
        self.label = label
        self.pending = 0
        self.link, far = socket.socketpair()
        paths = [path or os.getcwd() for path in sys.path]
        try:
            with far:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _MAIN, json.dumps(paths), str(far.fileno())],
                    pass_fds=[far.fileno()], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                    env={**dict.fromkeys(_ONE_THREAD, "1"), **os.environ},
                )  # fmt: skip
        except BaseException:
            self.link.close()
            raise
        assert self._process.stderr is not None
        self._words = LastWords(self._process.stderr)
        self._send(packed)

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        return self._process.pid

    def ask(self, method: str, *args: Any, parcel: Packed | None = None) -> None:
        """Ask for a method; see `Peer.ask`."""
        self._send(Packed(question(self.label, method, args)), parcel)

    def answer(self) -> Any:
        """Return the answer to the oldest question; see `Peer.answer`."""
        self.pending -= 1
        try:
            letter = receive(self.link)
        except EOFError:
            raise self._lost() from None
        well, value = letter.open()
        if not well:
            raise value.error(self.label)
        return value

    def kill(self) -> None:
        """End the process at once; see `Peer.kill`."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self.link.close()

    def close(self, until: float) -> None:
        """Wait for the process to end by itself until a time of `time.monotonic`; kill it then."""
        self.link.close()
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()

    def _send(self, packed: Packed, parcel: Packed | None = None) -> None:
        self.pending += 1
        # One that is gone is told by the answer.
        with suppress(OSError):
            packed.send(self.link, more=parcel is not None)
            if parcel is not None:
                parcel.send(self.link)

    def _lost(self) -> WorkerLostError:
        """Return the error for a process that has ended."""
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            # It has closed its link and lives on; nothing more will come of it.
            self.kill()
            code = self._process.wait()
        words = self._words.told()
        told = f"; the last lines of its stderr:\n{words}" if words else "; it wrote nothing to stderr"
        return WorkerLostError(
            f"{self.label} (pid {self.pid}): ended with {_said(code)}, expected it to go on{told}"
        )


class ProcessEngine(Engine):
    """Starts processes on this machine."""

    name: ClassVar[EngineName] = "process"

    def __init__(self) -> None:
        self._peers: weakref.WeakSet[ProcessPeer] = weakref.WeakSet()

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> ProcessPeer:
        """Create an object in a process of its own; see `Engine.start`."""
        peer = ProcessPeer(label, Packed(question(label, CREATE, (make, *args))))
        self._peers.add(peer)
        return peer

    def put(self, value: Any) -> Packed:
        """Return a parcel; see `Engine.put`."""
        return Packed(pack(value, "a parcel"))

    def wait(self, peers: Sequence[Peer], timeout: float | None = None) -> list[Peer]:
        """Return those whose answer is there; see `Engine.wait`."""
        poll, own = select.poll(), [peer for peer in peers if isinstance(peer, ProcessPeer)]
        for peer in own:
            poll.register(peer.link, select.POLLIN)
        found = {fd for fd, _ in poll.poll(None if timeout is None else max(0.0, timeout * 1000))}
        return [peer for peer in own if peer.link.fileno() in found]

    def stop(self, grace: float = 5.0) -> None:
        """End all processes; see `Engine.stop`."""
        until = time.monotonic() + grace
        peers = list(self._peers)
        for peer in peers:
            # All of them begin to end before anybody waits for one.
            peer.link.close()
        for peer in peers:
            peer.close(until)
        self._peers.clear()


def _said(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"exit code {code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
