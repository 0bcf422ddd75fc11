"""`BodyParserPool`: large bodies are parsed by another process, so that they do not block the server's event loop.

Sessions add bodies and are called back in the loop. A thread waits for the process, which is started for the first
large body, and again after it dies. The process ends when its input does, so also when the server is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from queue import PriorityQueue
from threading import Timer

import msgspec

import menv
from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serving.body_parser import PipeFrameKind, read_frame, write_frame
from menv.serving.codec import BadMessageError, ErrorCode, WireFormat
from menv.serving.limits import Limits
from menv.serving.protocol import Request, decode
from menv.serving.step_columns import context_to_json

_MODULE = "menv.serving.body_parser"
_START_S = 60.0
_END_S = 2.0
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The process does not compute; threads of numerical libraries would only use memory."""


_Answer = tuple[PipeFrameKind, bytes]


def _start_process() -> subprocess.Popen[bytes]:
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError("no interpreter that could be started, only a program that has one inside")
    return subprocess.Popen(
        # -P: import no modules from the working directory.
        [sys.executable, "-P", "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(),
    )


def _exchange(process: subprocess.Popen[bytes], kind: PipeFrameKind, data: bytes) -> _Answer | None:
    """Wait for the answer to a frame; None if the process ended instead."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError, ValueError):
        write_frame(process.stdin, kind, data)
        return read_frame(process.stdout)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process and free its resources."""
    for pipe in (process.stdin, process.stdout):
        # Closing flushes, which fails if the process is gone.
        with contextlib.suppress(OSError):
            assert pipe is not None
            pipe.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Return the environment of the process, in which it finds this very package."""
    root = str(Path(menv.__file__).resolve().parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": os.pathsep.join(paths)}


Outcome = _Answer | BadMessageError | None
"""The answer of the process, an error, or None if the body has to be parsed in the event loop."""
Then = Callable[[Outcome], None]

MEMORY_FACTOR = 64
"""Bytes of memory per byte of the longest body; small integers in JSON need sixteen."""
_MEMORY_BASE = 128_000_000
_MAX_TRIES = 2
_BYTES_PER_SECOND = 1e6
"""Shorter bodies may overtake a body for its bytes divided by this many seconds."""
_MAX_QUICK_DEATHS = 4
"""After this many deaths in a row, processes are started more slowly."""
_LONGEST_PAUSE_S = 10.0
_NO_ANSWER = "message: the process that reads it has ended, expected an answer; send less at once"
_JOIN_S = 5.0


class ParseJob:
    """One body.

    Attributes:
        then: Called with the outcome; None if no session waits for it.
        tries: Number of processes that have tried to parse it.
        since: When the last one began; None before.
        too_slow: Whether that one was killed because of its time limit.
    """

    __slots__ = ("body", "since", "then", "too_slow", "tries")

    def __init__(self, body: bytes, then: Then) -> None:
        self.body = body
        self.then: Then | None = then
        self.tries = 0
        self.since: float | None = None
        self.too_slow = False


class BodyParserPool:
    """The queue of bodies for the process. Everything but `stop` is called in the server's event loop.

    Attributes:
        usable: False if a space cannot be written as JSON, or no process can be started.
        longest_inline: Shorter bodies are always parsed in the event loop.
        parsed: Number of bodies parsed so far.
        deaths: Number of processes that died or were killed.
    """

    def __init__(self, ioctx: InputContext, limits: Limits) -> None:
        self.parsed = 0
        self.deaths = 0
        self._limits = limits
        self.longest_inline = limits.inline_body
        self._setup = _setup(ioctx, limits)
        self.usable = self._setup is not None
        # Ordered by due time: short bodies overtake long ones, but not forever.
        self._jobs: PriorityQueue[tuple[float, int, ParseJob | None]] = PriorityQueue()
        self._numbers = count()
        self._waiting = 0
        self._pending = 0
        self._deaths_in_a_row = 0
        self._was_ready = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Guards the process and its current body, which several threads use.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._current: ParseJob | None = None
        self._watching = False
        self._stopping = threading.Event()

    def takes(self, body: bytes) -> bool:
        """Return whether a body has to be parsed by the process."""
        return len(body) > self._limits.inline_body and self.usable

    def add(self, body: bytes, then: Then) -> ParseJob:
        """Have a body parsed; `then` is called later, in the loop. Raises `BadMessageError` if too many bytes wait."""
        if self._waiting + len(body) > self._limits.max_large:
            raise BadMessageError(
                ErrorCode.TOO_MANY,
                f"message: {self._waiting} bytes of large messages wait to be read, expected at most "
                f"{self._limits.max_large} (Limits.max_large); send it again later, or in smaller parts",
            )
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="menv-body-parser", daemon=True)
            self._thread.start()
        job = ParseJob(body, then)
        self._waiting += len(body)
        self._pending += 1
        if not self._watching:
            self._watch()
        self._jobs.put((time.monotonic() + len(body) / _BYTES_PER_SECOND, next(self._numbers), job))
        return job

    def drop(self, job: ParseJob) -> None:
        """Cancel the callback of a body."""
        job.then = None

    def stop(self) -> None:
        """End process and thread; from any thread but the serving one, and more than once."""
        with self._lock:
            self._stopping.set()
            if self._process is not None:
                self._process.kill()
        self._jobs.put((-math.inf, next(self._numbers), None))
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _watch(self) -> None:
        self._watching = self._pending > 0
        if not self._watching or self._loop is None:
            return
        most = self._limits.handshake_s
        with self._lock:
            job = self._current
            if job is not None and job.since is not None and time.monotonic() - job.since > most:
                job.too_slow = True
                if self._process is not None:
                    self._process.kill()
        self._loop.call_later(min(1.0, most / 4), self._watch)

    def _done(self, job: ParseJob, outcome: Outcome, fault: Exception | None) -> None:
        self._waiting -= len(job.body)
        self._pending -= 1
        self.parsed += isinstance(outcome, tuple)
        if job.then is not None:
            job.then(outcome)
        if fault is not None:
            # Reported by the event loop.
            raise fault

    # Called in the thread that waits for the process.

    def _run(self) -> None:
        while (job := self._jobs.get()[2]) is not None and not self._stopping.is_set():
            outcome: Outcome = None
            fault: Exception | None = None
            try:
                outcome = self._outcome(job) if job.then is not None else None
            except Exception as error:
                outcome, fault = BadMessageError(ErrorCode.INTERNAL, _NO_ANSWER), error
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._done, job, outcome, fault)
            except RuntimeError:
                # The server has stopped.
                break
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _outcome(self, job: ParseJob) -> Outcome:
        """Have a body parsed, by a second process if the first one dies."""
        while job.tries < _MAX_TRIES:
            process = self._ready()
            if process is None:
                # A body that killed a process is not parsed in the event loop.
                return BadMessageError(ErrorCode.INTERNAL, _NO_ANSWER) if job.tries else None
            answer = self._ask(process, job)
            if answer is not None:
                self._deaths_in_a_row = 0
                return answer
            self._discard(process)
            if job.too_slow:
                return BadMessageError(
                    ErrorCode.TOO_SLOW,
                    f"message: not read after {self._limits.handshake_s:g} s; see Limits.handshake_s",
                )
        return BadMessageError(ErrorCode.INTERNAL, _NO_ANSWER)

    def _ask(self, process: subprocess.Popen[bytes], job: ParseJob) -> _Answer | None:
        with self._lock:
            job.tries += 1
            job.since = time.monotonic()
            self._current = job
        answer = _exchange(process, PipeFrameKind.BODY, job.body)
        with self._lock:
            self._current = None
        return answer

    def _ready(self) -> subprocess.Popen[bytes] | None:
        if self._process is not None:
            return self._process
        assert self._setup is not None
        if self._deaths_in_a_row > _MAX_QUICK_DEATHS:
            self._stopping.wait(min(_LONGEST_PAUSE_S, 0.1 * 2 ** (self._deaths_in_a_row - _MAX_QUICK_DEATHS)))
        with self._lock:
            if self._stopping.is_set():
                return None
            with contextlib.suppress(OSError):
                self._process = _start_process()
            process = self._process
        if process is not None:
            late = Timer(_START_S, process.kill)
            late.start()
            try:
                answer = _exchange(process, PipeFrameKind.SETUP, self._setup)
            finally:
                late.cancel()
            if answer is not None and answer[0] is PipeFrameKind.READY:
                self._was_ready = True
                return process
            self._discard(process)
        # If no process ever started, this program cannot start any.
        self.usable = self._was_ready
        return None

    def _discard(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._process = None
        _end(process)
        self.deaths += 1
        self._deaths_in_a_row += 1


def _setup(ioctx: InputContext, limits: Limits) -> bytes | None:
    with contextlib.suppress(ConfigError):
        bounds = {
            name: getattr(limits, name) for name in ("max_body", "max_depth", "max_agents", "inline_body")
        }
        memory = _MEMORY_BASE + MEMORY_FACTOR * limits.max_body
        return msgspec.json.encode({"context": context_to_json(ioctx), "limits": bounds, "memory": memory})
    return None


def parsed_request(outcome: Outcome, body: bytes, max_depth: int) -> tuple[Request, bool, WireFormat]:
    """Return the request in a body, whether its episodes were encoded by `write_flat`, and its wire format.

    If the pool has not parsed the body (`outcome` is None), it is decoded here. Raises the `BadMessageError` of a
    refusal.
    """
    if outcome is None:
        request, wire_format = decode(body, max_depth)
        return request, False, wire_format
    if isinstance(outcome, BadMessageError):
        raise outcome
    kind, data = outcome
    if kind is PipeFrameKind.REFUSAL:
        raise BadMessageError(*msgspec.msgpack.decode(data, type=tuple[str, str, int | None]))
    if kind is PipeFrameKind.MESSAGE:
        return decode(data, max_depth)[0], False, WireFormat.MSGPACK
    message, episodes = msgspec.msgpack.decode(data, type=tuple[bytes, list[msgspec.Raw]])
    request = decode(message, max_depth)[0]
    return msgspec.structs.replace(request, episodes=episodes), True, WireFormat.MSGPACK
