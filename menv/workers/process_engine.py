"""The engine that starts processes on this machine, and needs nothing but Python.

A process is a new interpreter that imports only what it needs: not the driver's script, as the spawn of
`multiprocessing` would, and no torch. It has a separate process group, so that Ctrl-C reaches only the driver, and
killing it also ends the processes that it started. `engine` describes the interface, `worker_process` is the other end.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from io import BufferedReader
from multiprocessing.connection import wait
from typing import Any, ClassVar, cast

from menv.errors import CallOrderError, NoRoomError, WorkerLostError
from menv.workers.engine import CREATE, Engine, EngineName, RemoteActor, T, lost, pack_request
from menv.workers.messages import Parts, receive_parts, sealed, send_parts
from menv.workers.worker_process import ONE_THREAD, import_paths

_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from menv.workers.worker_process import main; main()"
)
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_ENDING_S = 5.0
"""How long a process may take to end after its connection was closed."""
_AT_EXIT_S = 2.0
_LINES = 200
_LONGEST_LINE = 1 << 16
_JOINED_S = 1.0


class _StderrTail:
    """Reads the stderr of a process in a thread: forwards it to ours and keeps the end for error messages."""

    def __init__(self, stream: BufferedReader) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._thread = threading.Thread(target=self._read, args=(stream,), name="menv stderr", daemon=True)
        self._thread.start()

    def lines(self) -> Sequence[str]:
        """Return the last lines, once the process has ended."""
        # A child of the process may hold the pipe open for longer.
        self._thread.join(_JOINED_S)
        return "".join(self._lines).splitlines()

    def _read(self, stream: BufferedReader) -> None:
        with stream:
            # Whole lines, so that lines of several processes do not mix.
            while data := stream.readline(_LONGEST_LINE):
                line = data.decode(errors="replace")
                self._lines.append(line)
                # This process may have no stderr.
                with suppress(Exception):
                    sys.stderr.write(line)


class ProcessActor(RemoteActor):
    """An object in another process on this machine; `parts` is the request that creates it.

    One thread uses it; any thread may kill it. That one thread closes its socket, once the process is lost and no
    request is left, so that a waiting system call never sees another file with the same number.
    """

    def __init__(self, label: str, parts: Parts) -> None:
        self.label = label
        self.pending = 0
        self.was_killed = False
        self._owner = os.getpid()
        self.socket, remote = socket.socketpair()
        try:
            with remote:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    [sys.executable, *_options(), "-c", _MAIN, json.dumps(import_paths())],
                    stdin=remote.fileno(), stderr=subprocess.PIPE, process_group=0,
                    env={**dict.fromkeys(ONE_THREAD, "1"), **os.environ},
                )  # fmt: skip
        except BaseException:
            self.socket.close()
            raise
        assert isinstance(self._process.stderr, BufferedReader)
        self._stderr_tail = _StderrTail(self._process.stderr)
        weakref.finalize(self, _drop, self._process, self.socket, self._owner).atexit = False
        self._request(parts)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        if not self._inherited():
            self.was_killed = self.was_killed or self.is_running()
            _kill(self._process)
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection, so that the process ends."""
        _disconnect(self.socket, self._owner)

    def close(self, until: float) -> str | None:
        """Wait for the process to end until `until`, then kill it; return how it ended, "" if killed, None if well."""
        if self._inherited():
            return None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))
        ended = not self.is_running()
        self.was_killed = self.was_killed or not ended
        # Also kills its children, which may hold its stderr open.
        _kill(self._process)
        words = self._stderr_tail.lines()[-1:]
        if not ended or self._process.returncode <= 0:
            return None if ended else ""
        said = f"; the last line of its stderr: {words[0]}" if words else ""
        return f"ended with {_exit_code(self._process.returncode)}{said}"

    def is_running(self) -> bool:
        return self._process.poll() is None

    def check_owner(self) -> None:
        """Raise CallOrderError in a fork of the driver, which would receive the driver's answers."""
        if self._inherited():
            raise CallOrderError(
                f"{self.label} (pid {self.pid}): asked by process {os.getpid()}, a fork of its driver {self._owner}, "
                "expected the driver alone; make algorithms and environments in the process that uses them"
            )

    def _inherited(self) -> bool:
        return os.getpid() != self._owner

    def _request(self, parts: Parts) -> None:
        self.check_owner()
        self.pending += 1
        if not self.was_interrupted:
            # An exception within a message leaves it set: the start of the next one is unknown.
            self.was_interrupted = True
            # `answer` raises if the process is gone.
            with suppress(OSError):
                send_parts(self.socket, parts)
            self.was_interrupted = False

    def _reply(self) -> Parts:
        self.check_owner()
        # Nothing that came before a kill is an answer.
        if not (self.was_interrupted or self.was_killed):
            with suppress(OSError):
                # An interruption before a message loses nothing.
                self.socket.recv(1, socket.MSG_PEEK)
            self.was_interrupted = True
            with suppress(OSError, EOFError):
                parts = receive_parts(self.socket)
                self.pending -= 1
                self.was_interrupted = False
                return parts
            self.was_interrupted = False
        self.pending -= 1
        raise self._lost()

    def _lost(self) -> WorkerLostError:
        self.disconnect()
        with suppress(subprocess.TimeoutExpired):
            # A process without its connection is useless even if it still runs.
            self._process.wait(_ENDING_S)
        if self.was_killed:
            how = "was killed by this process"
        elif self.was_interrupted:
            how = "was abandoned, because this process was interrupted in the middle of a message"
        elif self.is_running():
            how = "has closed its connection"
        else:
            how = f"ended with {_exit_code(self._process.returncode)}"
        _kill(self._process)
        if not self.pending:
            # The engine knows this actor until it stops; the descriptor is free now.
            self.socket.close()
        return lost(f"{self.label} (pid {self.pid}): {how}", self._stderr_tail.lines())


class ProcessEngine(Engine):
    """Starts processes on this machine."""

    name: ClassVar[EngineName] = "process"

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> ProcessActor:
        parts = pack_request(label, CREATE, (make, *args))
        try:
            actor = ProcessActor(label, parts)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise NoRoomError(
                f"{label}: no process can be started for it ({error.strerror}), expected room for its files, itself "
                "and its memory; raise the limits (ulimit -n, ulimit -u), or use fewer workers or remote environments"
            ) from error
        self._actors.add(actor)
        _all_actors.add(actor)
        return actor

    def put(self, value: T) -> T:
        return sealed(value, "parcel")

    def wait(self, actors: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
        own = [actor for actor in cast("Sequence[ProcessActor]", actors) if actor.pending]
        for actor in own:
            actor.check_owner()
        # `answer` of these raises at once.
        unusable = [actor for actor in own if actor.was_interrupted or actor.socket.fileno() < 0]
        sockets = [actor.socket for actor in own if actor not in unusable]
        there = wait(sockets, 0.0 if unusable else timeout) if sockets else []
        return [actor for actor in own if actor in unusable or actor.socket in there]

    def _end(self, actors: Sequence[ProcessActor], grace: float) -> Mapping[ProcessActor, str]:
        until = time.monotonic() + grace
        running = [actor for actor in actors if actor.is_running()]
        for actor in actors:
            # All of them begin to end before the first wait.
            actor.disconnect()
        ends = {actor: actor.close(until) for actor in actors}
        return {actor: ends[actor] or "" for actor in running if ends[actor] is not None}


_all_actors: weakref.WeakSet[ProcessActor] = weakref.WeakSet()
"""The actors of all engines of this process."""


@atexit.register
def _end_all() -> None:
    actors = list(_all_actors)
    ProcessEngine()._end(actors, _AT_EXIT_S)
    for actor in actors:
        actor.socket.close()


def _options() -> Iterable[str]:
    """Return this process's interpreter options, such as -O and -W, as `multiprocessing` does."""
    # -P: until sys.path is set, a module in the working directory must not hide the standard library.
    own: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [*own, "-P"]


def _disconnect(end: socket.socket, owner: int) -> None:
    # A fork of the driver has inherited the connection but does not own it.
    if os.getpid() == owner:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _drop(process: subprocess.Popen[bytes], end: socket.socket, owner: int) -> None:
    _disconnect(end, owner)
    end.close()
    if os.getpid() == owner:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_DROPPED_S)
        _kill(process)


_DROPPED_S = 0.5


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _exit_code(code: int) -> str:
    with suppress(ValueError):
        return f"exit code {code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
