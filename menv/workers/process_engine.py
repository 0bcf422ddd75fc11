"""The engine that starts processes on this machine, and needs nothing but Python.

A process is a new interpreter that imports only what it needs: not the driver's script, and no torch. It has a separate
process group, so that Ctrl-C reaches only the driver, and killing it also ends the processes that it started. `engine`
describes the interface, `worker_process` is the other end.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BufferedReader
from typing import Any, ClassVar, cast

from menv.errors import CallOrderError, NoRoomError, WorkerLostError
from menv.workers.engine import (
    BREAK,
    Engine,
    EngineName,
    RemoteActor,
    T,
    Ts,
    warn_of_bad_end,
    warn_of_slow_end,
)
from menv.workers.pipe_channel import Parts, PipeChannel, sealed, unpack
from menv.workers.watchdog import FATAL, last_of, where_it_hung
from menv.workers.worker_process import CREATE, ONE_THREAD, import_paths, pack_request

_LINES = 20
_LONGEST = 500
_BYTES = 1 << 14
_JOINED_S = 1.0
_STDERR_FOLLOWS = "; the last lines of its stderr:"
_LONGEST_LAST = 160


def in_a_line(message: str) -> str:
    """Return a `WorkerLostError` message as one line, with the last line of stderr unless a watchdog wrote it."""
    line, _, stderr = message.partition(_STDERR_FOLLOWS)
    line = " ".join(line.split())
    # Skip the marker lines of a traceback.
    lines = [one.strip() for one in stderr.splitlines() if one.strip(" ^~")]
    if not lines or where_it_hung(stderr) is not None:
        return line
    fatal = [one for one in lines if one.startswith(FATAL)]
    if fatal:
        # Stacks and module names follow it.
        return f"{line}; its stderr: {fatal[-1][:_LONGEST_LAST]}"
    return f"{line}; the last line of its stderr: {lines[-1][:_LONGEST_LAST]}"


class StderrTail:
    """Reads the stderr of a process in a thread: forwards it to ours and keeps the end for error messages."""

    def __init__(self, stream: BufferedReader) -> None:
        self._end = b""
        self._thread = threading.Thread(target=self._read, args=(stream,), name="menv stderr", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return the last lines, once the process has ended."""
        # A child of the process may hold the pipe open for longer.
        self._thread.join(_JOINED_S)
        lines = last_of(self._end.decode(errors="replace").splitlines(), _LINES)
        return "\n".join(line[:_LONGEST] for line in lines)

    def _read(self, stream: BufferedReader) -> None:
        begun = b""
        with stream:
            while data := stream.read1(_BYTES):
                self._end = (self._end + data)[-_BYTES:]
                begun += data
                # Whole lines only, so that lines of several processes do not mix; a progress bar ends in \r.
                whole = max(begun.rfind(b"\n"), begun.rfind(b"\r")) + 1 or len(begun) * (len(begun) > _BYTES)
                _forward(begun[:whole])
                begun = begun[whole:]
        _forward(begun)


def _forward(data: bytes) -> None:
    # This process may have no stderr; the text is kept anyway.
    with suppress(Exception):
        if data:
            sys.stderr.write(data.decode(errors="replace"))


_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from menv.workers.process_exit import when_well; from menv.workers.worker_process import main; main(); when_well()"
)
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_ENDING_S = 5.0
"""How long a process may take to end after it has closed its channel."""
_AT_EXIT_S = 2.0
_DROPPED_S = 0.5


class ProcessActor(RemoteActor):
    """An object in another process on this machine; `parts` is the request that creates it."""

    def __init__(self, label: str, parts: Parts) -> None:
        self.label = label
        self.pending = 0
        self.was_killed = False
        self._owner = os.getpid()
        near, remote = socket.socketpair()
        self.channel = PipeChannel(near)
        try:
            with remote:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    [sys.executable, *_options(), "-c", _MAIN, json.dumps(import_paths())],
                    stdin=remote.fileno(), stderr=subprocess.PIPE, process_group=0,
                    env={**dict.fromkeys(ONE_THREAD, "1"), **os.environ},
                )  # fmt: skip
        except BaseException:
            self.channel.close()
            raise
        assert isinstance(self._process.stderr, BufferedReader)
        self._stderr_tail = StderrTail(self._process.stderr)
        end = weakref.finalize(self, _drop, self._process, self.channel, self._owner)
        end.atexit = False
        self._send(parts)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def was_interrupted(self) -> bool:
        return self.channel.was_interrupted

    def fileno(self) -> int:
        """Return the descriptor that becomes readable with an answer; -1 where waiting is pointless."""
        return -1 if self.channel.received else self.channel.fileno()

    def ask(self, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        self._send(pack_request(self.label, method.__name__, args))

    def create(self, make: Callable[..., Any], *args: Any) -> None:
        self._send(pack_request(self.label, CREATE, (make, *args)))

    def answer(self) -> Any:
        if not self.pending:
            raise CallOrderError(f"{self.label}: was asked nothing, expected a request first; call ask")
        self.check_owner()
        try:
            self.channel.wait_for_message()
        except EOFError:
            self.pending -= 1
            raise self._lost() from None
        # No call in between, so no signal handler runs between removing and counting it.
        parts = self.channel.received[0]
        self.pending -= 1
        del self.channel.received[0]
        well, value = unpack(parts)
        if not well:
            raise value.error(self.label)
        return value

    def signal(self) -> bool:
        if self._inherited() or self._process.poll() is not None:
            return False
        os.kill(self.pid, BREAK)
        return True

    def kill(self) -> None:
        if self._inherited():
            self.channel.close_here()
            return
        self.was_killed = self.was_killed or self._process.poll() is None
        _kill(self._process)
        self.channel.close()

    def close_channel(self) -> None:
        """Close the channel, so that the process ends."""
        if self._inherited():
            self.channel.close_here()
        else:
            self.channel.close()

    def close(self, until: float) -> bool:
        """Wait for the process to end until `until`, then kill it; return whether it ended well."""
        self.close_channel()
        if self._inherited():
            return True
        ended = True
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
        self.was_killed = self.was_killed or not ended
        # Also kills its children, which may hold its stderr open.
        _kill(self._process)
        self._stderr_tail.text()
        return ended and self._process.returncode <= 0

    def ending(self) -> str:
        """Return how the process has ended, as a line with its last line of stderr."""
        words = self._stderr_tail.text().strip().rpartition("\n")[2]
        said = f"; the last line of its stderr: {words}" if words else ""
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

    def _send(self, parts: Parts) -> None:
        self.check_owner()
        self.pending += 1
        try:
            self.channel.send(parts)
        except OSError:
            # `answer` raises if the process is gone.
            pass
        except BaseException as error:
            # It is unknown whether an answer will arrive.
            self.channel.close_within_message(error)
            raise

    def _lost(self) -> WorkerLostError:
        with suppress(subprocess.TimeoutExpired):
            # A process without its channel is useless even if it still runs.
            self._process.wait(_ENDING_S)
        if self.was_killed:
            how = "was killed by this process"
        elif self.channel.was_interrupted:
            how = "was let go of, because this process was interrupted in the midst of a message"
        elif self._process.poll() is None:
            how = "has closed its link"
        else:
            how = f"ended with {_exit_code(self._process.returncode)}"
        _kill(self._process)
        words = self._stderr_tail.text()
        exited_cleanly = "Traceback" not in words and where_it_hung(words) is None
        if self._process.returncode >= 0 and how.startswith("ended") and exited_cleanly:
            how += f", as os._exit({self._process.returncode}) in an environment does"
        stderr = f"the last lines of its stderr:\n{words}" if words else "it wrote nothing to stderr"
        return WorkerLostError(f"{self.label} (pid {self.pid}): {how}; {stderr}")


class ProcessEngine(Engine):
    """Starts processes on this machine."""

    name: ClassVar[EngineName] = "process"

    def __init__(self) -> None:
        self._peers: weakref.WeakSet[ProcessActor] = weakref.WeakSet()

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> ProcessActor:
        parts = pack_request(label, CREATE, (make, *args))
        try:
            actor = ProcessActor(label, parts)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise NoRoomError(
                f"{label}: no process can be started for it ({error.strerror}), expected room for its files, itself "
                "and its memory; raise the limits (ulimit -n, ulimit -u), or take fewer workers or remote environments"
            ) from error
        self._peers.add(actor)
        _all_actors.add(actor)
        return actor

    def put(self, value: T) -> T:
        return sealed(value, "parcel")

    def wait(self, actors: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
        own = [actor for actor in cast("Sequence[ProcessActor]", actors) if actor.pending]
        if not own:
            return []
        for actor in own:
            actor.check_owner()
        for actor in own:
            actor.channel.hold()
        try:
            poll = select.poll()
            waiting = {fd for actor in own if (fd := actor.fileno()) >= 0}
            for fd in waiting:
                poll.register(fd, select.POLLIN)
            if len(waiting) < len(own):
                timeout = 0.0
            there = {fd for fd, _ in poll.poll(None if timeout is None else max(0.0, timeout * 1000))}
            return [actor for actor in own if actor.fileno() in there or actor.fileno() < 0]
        finally:
            for actor in own:
                actor.channel.release()

    def stop(self, grace: float = 5.0) -> None:
        for actor in _end(list(self._peers), grace):
            if actor.was_killed:
                warn_of_slow_end(f"{actor.label} (pid {actor.pid})", grace)
            else:
                warn_of_bad_end(f"{actor.label} (pid {actor.pid})", actor.ending())
        self._peers.clear()


_all_actors: weakref.WeakSet[ProcessActor] = weakref.WeakSet()
"""The actors of all engines of this process."""
_owner_pid = os.getpid()


@atexit.register
def _end_all() -> None:
    # A forked process has inherited the actors but does not own them.
    if os.getpid() == _owner_pid:
        _end(list(_all_actors), _AT_EXIT_S)


def _options() -> list[str]:
    """Return this process's interpreter options, such as -O and -W, as `multiprocessing` does."""
    # -P: until sys.path is set, a module in the working directory must not hide the standard library.
    own: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [*own, "-P"]


def _end(actors: Sequence[ProcessActor], grace: float) -> Sequence[ProcessActor]:
    """End processes together; return those without a request that did not end well."""
    until = time.monotonic() + grace
    # Before the channels close, which ends requests in other threads.
    idle = {actor for actor in actors if not actor.pending and actor.is_running()}
    for actor in actors:
        # All of them begin to end before the first wait.
        actor.close_channel()
    return [actor for actor in actors if not actor.close(until) and actor in idle]


def _drop(process: subprocess.Popen[bytes], channel: PipeChannel, owner: int) -> None:
    if os.getpid() != owner:
        channel.close_here()
        return
    channel.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_DROPPED_S)
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _exit_code(code: int) -> str:
    with suppress(ValueError):
        return f"exit code {code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
