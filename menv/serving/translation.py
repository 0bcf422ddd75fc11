"""Translation: large bodies are read by a process beside the server, so that its thread is not held up by them.

Sessions hand bodies in and are called back in the server's loop. A thread of its own waits for the process, which is
started for the first large body and, when it dies, for the next one. It knows no sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count
from queue import PriorityQueue
from typing import Any

import msgspec

from menv.errors import ConfigError
from menv.input_context import InputContext
from menv.serving.agent_spaces import context_to_json
from menv.serving.carriers.limits import Limits
from menv.serving.pipe_frames import Kind
from menv.serving.translator_process import TranslatorProcess
from menv.serving.wire.bad_message import BadMessageError, Code
from menv.serving.wire.dialect import Dialect
from menv.serving.wire.flat_episodes import Translated
from menv.serving.wire.messages import Request, decode

Outcome = tuple[Kind, bytes] | BadMessageError | None
"""What became of a body: what the process wrote, why it cannot be read, or None if it has to be read here."""
Then = Callable[[Outcome], None]

MEMORY_FACTOR = 64
"""Bytes of memory for a byte of the longest body; small whole numbers in JSON take sixteen."""
_MEMORY_BASE = 128_000_000
_MOST_TRIES = 2
_BYTES_A_SECOND = 1e6
"""How long a body may fairly wait for others that came after it."""
_PATIENT_DEATHS = 4
"""Processes that may die one after the other before the next one is started more slowly."""
_LONGEST_PAUSE_S = 10.0
_NO_ANSWER = "message: the process that reads it has ended, expected an answer; send less at once"
_JOIN_S = 5.0


class Job:
    """One body on its way.

    Attributes:
        body: The body.
        then: Called with its outcome; None once nobody waits for it.
        tries: How many processes have tried to read it.
        since: When the last one began; None while it waits.
        too_slow: Whether that one was ended because it took too long.
    """

    __slots__ = ("body", "since", "then", "too_slow", "tries")

    def __init__(self, body: bytes, then: Then) -> None:
        self.body = body
        self.then: Then | None = then
        self.tries = 0
        self.since: float | None = None
        self.too_slow = False


class Translation:
    """The way to the process. Everything but `stop` is called in the server's loop.

    Args:
        ioctx: What clients play.
        limits: Of each client.

    Attributes:
        usable: Whether bodies can be read elsewhere: not where a space has no form in JSON, and not where no process
            can be started.
        longest_inline: Bytes of a body that is never read elsewhere.
        translated: Bodies that were read so far.
        deaths: Processes that ended by themselves or were killed.
    """

    def __init__(self, ioctx: InputContext, limits: Limits) -> None:
        self.translated = 0
        self.deaths = 0
        self._limits = limits
        self.longest_inline = limits.inline_body
        self._setup = _setup(ioctx, limits)
        self.usable = self._setup is not None
        # By when they should be done: short ones overtake long ones, but none for ever.
        self._jobs: PriorityQueue[tuple[float, int, Job | None]] = PriorityQueue()
        self._numbers = count()
        self._waiting = 0
        self._pending = 0
        self._deaths_in_a_row = 0
        self._was_ready = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Holds what the serving thread, this one's own and whoever stops share: the process and the body in it.
        self._lock = threading.Lock()
        self._process: TranslatorProcess | None = None
        self._current: Job | None = None
        self._watching = False
        self._stopping = threading.Event()

    def takes(self, body: bytes) -> bool:
        """Return whether a body has to be read elsewhere."""
        return len(body) > self._limits.inline_body and self.usable

    def add(self, body: bytes, then: Then) -> Job:
        """Have a body read.

        Args:
            body: The body.
            then: Called in the server's loop, later.

        Raises:
            BadMessageError: Too many bytes wait already.
        """
        if self._waiting + len(body) > self._limits.max_large:
            raise BadMessageError(
                Code.TOO_MANY,
                f"message: {self._waiting} bytes of large messages wait to be read, expected at most "
                f"{self._limits.max_large} (Limits.max_large); send it again later, or in smaller parts",
            )
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="menv-translation", daemon=True)
            self._thread.start()
        job = Job(body, then)
        self._waiting += len(body)
        self._pending += 1
        if not self._watching:
            self._watch()
        self._jobs.put((time.monotonic() + len(body) / _BYTES_A_SECOND, next(self._numbers), job))
        return job

    def drop(self, job: Job) -> None:
        """Forget a body that nobody waits for any more."""
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

    # In the server's loop.

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

    def _done(self, job: Job, outcome: Outcome, fault: Exception | None) -> None:
        self._waiting -= len(job.body)
        self._pending -= 1
        self.translated += isinstance(outcome, tuple)
        if job.then is not None:
            job.then(outcome)
        if fault is not None:
            # The loop notes it.
            raise fault

    # In the thread that waits for the process.

    def _run(self) -> None:
        while (job := self._jobs.get()[2]) is not None and not self._stopping.is_set():
            outcome: Outcome = None
            fault: Exception | None = None
            try:
                outcome = self._outcome(job) if job.then is not None else None
            except Exception as error:
                outcome, fault = BadMessageError(Code.INTERNAL, _NO_ANSWER), error
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._done, job, outcome, fault)
            except RuntimeError:
                # The server has ended, and its clients are gone.
                break
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def _outcome(self, job: Job) -> Outcome:
        """Have a body read, by a second process if the first one dies of it."""
        while job.tries < _MOST_TRIES:
            process = self._ready()
            if process is None:
                # What has ended one process is not read here.
                return BadMessageError(Code.INTERNAL, _NO_ANSWER) if job.tries else None
            answer = self._ask(process, job)
            if answer is not None:
                self._deaths_in_a_row = 0
                return answer
            self._bury(process)
            if job.too_slow:
                return BadMessageError(
                    Code.TOO_SLOW,
                    f"message: not read after {self._limits.handshake_s:g} s; see Limits.handshake_s",
                )
        return BadMessageError(Code.INTERNAL, _NO_ANSWER)

    def _ask(self, process: TranslatorProcess, job: Job) -> tuple[Kind, bytes] | None:
        with self._lock:
            job.tries += 1
            job.since = time.monotonic()
            self._current = job
        answer = process.ask(job.body)
        with self._lock:
            self._current = None
        return answer

    def _ready(self) -> TranslatorProcess | None:
        if self._process is not None:
            return self._process
        assert self._setup is not None
        if self._deaths_in_a_row > _PATIENT_DEATHS:
            self._stopping.wait(min(_LONGEST_PAUSE_S, 0.1 * 2 ** (self._deaths_in_a_row - _PATIENT_DEATHS)))
        with self._lock:
            if self._stopping.is_set():
                return None
            with contextlib.suppress(OSError):
                self._process = TranslatorProcess()
            process = self._process
        if process is not None:
            if process.start(self._setup):
                self._was_ready = True
                return process
            self._bury(process)
        # One that never came up will not: a program may be unable to start others.
        self.usable = self._was_ready
        return None

    def _bury(self, process: TranslatorProcess) -> None:
        with self._lock:
            self._process = None
        process.end()
        self.deaths += 1
        self._deaths_in_a_row += 1


def _setup(ioctx: InputContext, limits: Limits) -> bytes | None:
    told: Mapping[str, Any]
    with contextlib.suppress(ConfigError):
        told = {
            name: getattr(limits, name) for name in ("max_body", "max_depth", "max_agents", "inline_body")
        }
        memory = _MEMORY_BASE + MEMORY_FACTOR * limits.max_body
        return msgspec.json.encode({"context": context_to_json(ioctx), "limits": told, "memory": memory})
    return None


def translated(outcome: Outcome, body: bytes, max_depth: int) -> tuple[Request, bool, Dialect]:
    """Return the request that a body holds.

    Args:
        outcome: What `Translation` said of the body.
        body: The body; read here if it was not read elsewhere.
        max_depth: `Limits.max_depth`.

    Returns:
        The request, whether its episodes are as `write_flat` has them, and the dialect of everything else.

    Raises:
        BadMessageError: It holds none.
    """
    if outcome is None:
        request, dialect = decode(body, max_depth)
        return request, False, dialect
    if isinstance(outcome, BadMessageError):
        raise outcome
    kind, data = outcome
    if kind is Kind.REFUSAL:
        raise BadMessageError(*msgspec.msgpack.decode(data, type=tuple[str, str, int | None]))
    if kind is Kind.MESSAGE:
        return decode(data, max_depth)[0], False, Dialect.MSGPACK
    found = msgspec.msgpack.decode(data, type=Translated)
    request = decode(found.message, max_depth)[0]
    return msgspec.structs.replace(request, episodes=found.episodes), True, Dialect.MSGPACK
