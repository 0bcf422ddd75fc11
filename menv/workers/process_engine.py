"""Processes on this machine: the engine that needs nothing but Python.

A process is a new interpreter that imports what it is asked to and no more: not the driver's script, and no torch. It
has a process group of its own, so that Ctrl-C means the driver alone, and so that what it started ends with it when it
is killed. See `menv.workers.engine` for what the engine does, `menv.workers.worker_process` for the other end.
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
from typing import Any, ClassVar

from menv.errors import CallOrderError, NoRoomError, WorkerLostError
from menv.workers.engine import Engine, EngineName, RemoteActor, warn_of_bad_end, warn_of_slow_end
from menv.workers.pipe_channel import PackedMessage, PipeChannel, pack, unpack
from menv.workers.watchdog import FATAL, last_of, where_it_hung
from menv.workers.worker_process import CREATE, ONE_THREAD, import_paths, question

# SEAM menv.scale.last_words
# What a process writes to stderr: passed on to ours, and the end of it kept for the message when it ends.
#
# `menv.workers.process_engine` has one for each process that it starts; whoever counts losses says them in a
# line.


_LINES = 20
_LONGEST = 500
_BYTES = 1 << 14
_JOINED_S = 1.0
_BEFORE_WORDS = "; the last lines of its stderr:"
_LONGEST_LAST = 160


def in_a_line(message: str) -> str:
    """Return the message of a `WorkerLostError` in one line, with the last one that the process wrote to stderr.

    What a watchdog wrote there is left out.
    """
    told, _, words = message.partition(_BEFORE_WORDS)
    told = " ".join(told.split())
    # Some lines of a traceback only point at what is above them.
    lines = [line.strip() for line in words.splitlines() if line.strip(" ^~")]
    if not lines or where_it_hung(words) is not None:
        return told
    fatal = [line for line in lines if line.startswith(FATAL)]
    if fatal:
        # Behind it stands where the threads were, and which modules it had.
        return f"{told}; its stderr: {fatal[-1][:_LONGEST_LAST]}"
    return f"{told}; the last line of its stderr: {lines[-1][:_LONGEST_LAST]}"


class StderrTail:
    """Reads the stderr of a process until it ends.

    Args:
        stream: The end of the pipe.
    """

    def __init__(self, stream: BufferedReader) -> None:
        self._end = b""
        self._thread = threading.Thread(target=self._read, args=(stream,), name="menv stderr", daemon=True)
        self._thread.start()

    def told(self) -> str:
        """Return the last lines, once the process has ended."""
        # Somebody whom the process started may hold the pipe for longer than that.
        self._thread.join(_JOINED_S)
        lines = last_of(self._end.decode(errors="replace").splitlines(), _LINES)
        return "\n".join(line[:_LONGEST] for line in lines)

    def _read(self, stream: BufferedReader) -> None:
        begun = b""
        with stream:
            while data := stream.read1(_BYTES):
                self._end = (self._end + data)[-_BYTES:]
                begun += data
                # Whole lines only, so that those of several processes do not mix; a progress bar ends in \r.
                whole = max(begun.rfind(b"\n"), begun.rfind(b"\r")) + 1 or len(begun) * (len(begun) > _BYTES)
                _pass_on(begun[:whole])
                begun = begun[whole:]
        _pass_on(begun)


def _pass_on(data: bytes) -> None:
    # Nobody may have a stderr; what was written is kept all the same.
    with suppress(Exception):
        if data:
            sys.stderr.write(data.decode(errors="replace"))


_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from menv.workers.process_exit import when_well; from menv.workers.worker_process import main; main(); when_well()"
)
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_ENDING_S = 5.0
"""How long one may take to end that has closed its link."""
_AT_EXIT_S = 2.0
_DROPPED_S = 0.5


class ProcessActor(RemoteActor):
    """An object in a process of its own.

    Args:
        label: What messages call it.
        packed: The question that creates the object.

    Attributes:
        link: To its process.
        was_killed: Whether this process has killed it.
    """

    def __init__(self, label: str, packed: PackedMessage) -> None:
        self.label = label
        self.pending = 0
        self.was_killed = False
        self._owner = os.getpid()
        near, far = socket.socketpair()
        self.link = PipeChannel(near)
        try:
            with far:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    [sys.executable, *_options(), "-c", _MAIN, json.dumps(import_paths())],
                    stdin=far.fileno(), stderr=subprocess.PIPE, process_group=0,
                    env={**dict.fromkeys(ONE_THREAD, "1"), **os.environ},
                )  # fmt: skip
        except BaseException:
            self.link.close()
            raise
        assert isinstance(self._process.stderr, BufferedReader)
        self._words = StderrTail(self._process.stderr)
        end = weakref.finalize(self, _drop, self._process, self.link, self._owner)
        end.atexit = False
        self._send(packed)

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        return self._process.pid

    @property
    def broken_off(self) -> bool:
        """Return whether its link was closed in the midst of a letter; see `RemoteActor.broken_off`."""
        return self.link.broken_off

    def fileno(self) -> int:
        """Return what becomes readable when an answer comes; -1 where waiting is of no use."""
        return -1 if self.link.come else self.link.fileno()

    def ask(self, method: str, *args: Any, parcel: PackedMessage | None = None) -> None:
        """Ask for a method; see `RemoteActor.ask`."""
        self._send(PackedMessage(question(self.label, method, args)), parcel)

    def answer(self) -> Any:
        """Return the answer to the oldest question; see `RemoteActor.answer`."""
        if not self.pending:
            raise CallOrderError(f"{self.label}: was asked nothing, expected a question first; call ask")
        self.check_owner()
        try:
            self.link.await_letter()
        except EOFError:
            self.pending -= 1
            raise self._lost() from None
        # Nothing is called in between, so that no signal's handler runs: it is taken and counted, or neither.
        letter = self.link.come[0]
        self.pending -= 1
        del self.link.come[0]
        well, value = unpack(letter.parts)
        if not well:
            raise value.error(self.label)
        return value

    def kill(self) -> None:
        """End the process at once; see `RemoteActor.kill`."""
        if self._inherited():
            self.link.leave()
            return
        self.was_killed = self.was_killed or self._process.poll() is None
        _kill(self._process)
        self.link.close()

    def hang_up(self) -> None:
        """Let the process end by itself."""
        if self._inherited():
            self.link.leave()
        else:
            self.link.close()

    def close(self, until: float) -> bool:
        """Hang up, and wait for the process to end until a time of `time.monotonic`; kill it then.

        Returns:
            Whether it ended by itself, and not because something raised.
        """
        self.hang_up()
        if self._inherited():
            return True
        ended = True
        try:
            _wait(self._process, max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
        self.was_killed = self.was_killed or not ended
        # Also what it has left running, which may hold its stderr open.
        _kill(self._process)
        self._words.told()
        return ended and self._process.returncode <= 0

    def ending(self) -> str:
        """Return how the process has ended, in a line with the last one that it wrote to stderr."""
        words = self._words.told().strip().rpartition("\n")[2].partition(", expected ")[0]
        said = f"; the last line of its stderr: {words}" if words else ""
        return f"ended with {_said(self._process.returncode)}{said}"

    def is_running(self) -> bool:
        """Return whether the process has not ended yet."""
        return self._process.poll() is None

    def check_owner(self) -> None:
        """Raise where a fork of its driver would take answers that the driver waits for.

        Raises:
            CallOrderError: This process is such a fork.
        """
        if self._inherited():
            raise CallOrderError(
                f"{self.label} (pid {self.pid}): asked by process {os.getpid()}, a fork of its driver {self._owner}, "
                "expected the driver alone; make algorithms and environments in the process that uses them"
            )

    def _inherited(self) -> bool:
        return os.getpid() != self._owner

    def _send(self, packed: PackedMessage, parcel: PackedMessage | None = None) -> None:
        self.check_owner()
        self.pending += 1
        try:
            self.link.send(packed, more=parcel is not None)
            if parcel is not None:
                self.link.send(parcel)
        except OSError:
            # One that is gone is told by the answer.
            pass
        except BaseException as error:
            # Nobody knows whether there will be an answer.
            self.link.break_off(error)
            raise

    def _lost(self) -> WorkerLostError:
        with suppress(subprocess.TimeoutExpired):
            # One that has closed its link and lives on is no more use than one that has ended.
            _wait(self._process, _ENDING_S)
        if self.was_killed:
            how = "was killed by this process"
        elif self.link.broken_off:
            how = "was let go of, because this process was interrupted in the midst of a message"
        elif self._process.poll() is None:
            how = "has closed its link"
        else:
            how = f"ended with {_said(self._process.returncode)}"
        _kill(self._process)
        words = self._words.told()
        by_itself = "Traceback" not in words and where_it_hung(words) is None
        if self._process.returncode >= 0 and how.startswith("ended") and by_itself:
            how += f", as os._exit({self._process.returncode}) in an environment does"
        told = f"the last lines of its stderr:\n{words}" if words else "it wrote nothing to stderr"
        return WorkerLostError(f"{self.label} (pid {self.pid}): {how}, expected it to go on; {told}")


class ProcessEngine(Engine):
    """Starts processes on this machine."""

    name: ClassVar[EngineName] = "process"

    def __init__(self) -> None:
        self._peers: weakref.WeakSet[ProcessActor] = weakref.WeakSet()

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> ProcessActor:
        """Create an object in a process of its own; see `Engine.start`.

        Raises:
            NoRoomError: This machine has no room for one more process, or its files.
        """
        packed = PackedMessage(question(label, CREATE, (make, *args)))
        try:
            peer = ProcessActor(label, packed)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise NoRoomError(
                f"{label}: no process can be started for it ({error.strerror}), expected room for its files, itself "
                "and its memory; raise the limits (ulimit -n, ulimit -u), or take fewer workers or remote environments"
            ) from error
        self._peers.add(peer)
        _everybody.add(peer)
        return peer

    def put(self, value: Any) -> PackedMessage:
        """Return a parcel; see `Engine.put`."""
        return PackedMessage(pack(value, "parcel"))

    def wait(self, peers: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
        """Return those whose answer is there; see `Engine.wait`."""
        own = [peer for peer in peers if isinstance(peer, ProcessActor) and peer.pending]
        if not own:
            return []
        for peer in own:
            peer.check_owner()
        for peer in own:
            peer.link.hold()
        try:
            poll = select.poll()
            waiting = {fd for peer in own if (fd := peer.fileno()) >= 0}
            for fd in waiting:
                poll.register(fd, select.POLLIN)
            if len(waiting) < len(own):
                timeout = 0.0
            there = {fd for fd, _ in poll.poll(None if timeout is None else max(0.0, timeout * 1000))}
            return [peer for peer in own if peer.fileno() in there or peer.fileno() < 0]
        finally:
            for peer in own:
                peer.link.release()

    def stop(self, grace: float = 5.0) -> None:
        """End all processes; see `Engine.stop`."""
        for peer in _end(list(self._peers), grace):
            if peer.was_killed:
                warn_of_slow_end(f"{peer.label} (pid {peer.pid})", grace)
            else:
                warn_of_bad_end(f"{peer.label} (pid {peer.pid})", peer.ending())
        self._peers.clear()


_everybody: weakref.WeakSet[ProcessActor] = weakref.WeakSet()
"""The peers of all engines of this process."""
_here = os.getpid()


@atexit.register
def _leave_nobody() -> None:
    # What was forked from this process has inherited it all, and none of it is its own.
    if os.getpid() == _here:
        _end(list(_everybody), _AT_EXIT_S)


def _options() -> list[str]:
    """Return the interpreter's options: those of this process, such as -O and -W, as `multiprocessing` does."""
    # -P: until it knows its paths, a module that lies in the working directory is none of the standard library.
    own: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [*own, "-P"]


def _end(peers: Sequence[ProcessActor], grace: float) -> Sequence[ProcessActor]:
    """End processes together; return those that were asked nothing and did not end well by themselves."""
    until = time.monotonic() + grace
    # Before they hang up: who waits for an answer in another thread no longer does then.
    idle = {peer for peer in peers if not peer.pending and peer.is_running()}
    for peer in peers:
        # All of them begin to end before anybody waits for one.
        peer.hang_up()
    return [peer for peer in peers if not peer.close(until) and peer in idle]


def _drop(process: subprocess.Popen[bytes], link: PipeChannel, owner: int) -> None:
    if os.getpid() != owner:
        link.leave()
        return
    link.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_DROPPED_S)
    _kill(process)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for a process to end.

    Raises:
        subprocess.TimeoutExpired: It has not after so many seconds.
    """
    # Its number may be somebody else's once its end has been seen.
    if process.poll() is None and hasattr(os, "pidfd_open"):
        # `Popen.wait` sleeps up to 0.05 s between its looks. Where there is nothing to open it finds out why.
        with suppress(OSError):
            ended = os.pidfd_open(process.pid)
            try:
                poll = select.poll()
                poll.register(ended, select.POLLIN)
                poll.poll(1000.0 * seconds)
            finally:
                os.close(ended)
            seconds = 0.0
    process.wait(seconds)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _said(code: int) -> str:
    with suppress(ValueError):
        return f"exit code {code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
