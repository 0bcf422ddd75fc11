"""The engine that starts Ray actors, on this machine or on a cluster.

It connects to Ray as `ray.init()` does unless the program has done so. Ray itself waits forever for room; this engine
gives an actor up that was not placed in time.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pickle import PickleBuffer
from typing import Any, ClassVar, NamedTuple, cast

from menv.errors import MenvError, MissingExtraError, NoRoomError, WorkerLostError, first_clause, in_words

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise MissingExtraError(
        "engine 'ray': the package ray is not installed; "
        "run: pip install 'menv-rl[ray]', or use engine='process'"
    ) from error

from menv.workers.engine import (
    CREATE,
    Engine,
    EngineName,
    RemoteActor,
    RemoteError,
    RemoteTraceback,
    T,
    Ts,
    lost,
    pack_request,
)
from menv.workers.messages import Parts, pack
from menv.workers.worker_process import ONE_THREAD, WorkerProcess, import_paths

_cluster: Any = ray
PATIENCE_S = 60.0
"""Default time until an actor must be placed."""
_CHECK_S = 1.0
"""Pause between looks whether Ray has placed an actor."""
_BYTES = 1 << 14
_LONGEST = 500


class _Location(NamedTuple):
    """Process id, node id in hex digits, and the stderr file of an actor on its node."""

    pid: int
    node: str
    stderr: str


def _boxed(parts: Parts) -> Parts:
    """Wrap parts so that Ray does not copy them into its pickle."""
    return [PickleBuffer(part) for part in parts]


class RayWorker:
    """The actor that holds an object; Ray calls its methods one after the other."""

    def __init__(self) -> None:
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")
        self._worker = WorkerProcess()

    def hello(self, paths: Sequence[str]) -> _Location:
        """Append the driver's module paths that exist here, and return the location."""
        sys.path.extend(path for path in paths if path not in sys.path and os.path.exists(path))
        stderr = ""
        with suppress(OSError):
            stderr = os.readlink("/proc/self/fd/2")
        return _Location(os.getpid(), ray.get_runtime_context().get_node_id(), stderr)

    def ask(self, request: Parts, parcel: Parts | None = None) -> Parts:
        """Answer a request; see `WorkerProcess.answer`."""
        return _boxed(self._worker.answer(request, parcel))

    def end(self) -> None:
        """Stop the object, then the actor."""
        self._worker.stop()
        leave: Any = ray.actor.exit_actor
        leave()


_ACTOR: Any = ray.remote(max_restarts=0, max_task_retries=0)(RayWorker)


def _stderr_tail(path: str) -> Sequence[str]:
    """Return the last lines of a worker's stderr without Ray's markers; none if its node is another one."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if not line.startswith((":job_id:", ":actor_name:", ":task_name:"))]


def _start_ray() -> None:
    if not ray.is_initialized():
        ray.init(include_dashboard=False, logging_level=logging.ERROR)


def _driver() -> str | None:
    """Return this process's identity in Ray, which changes with each `ray.init`; None without Ray."""
    return ray.get_runtime_context().get_worker_id() if ray.is_initialized() else None


class RayRemoteActor(RemoteActor):
    """An object in a Ray actor; `parts` is the request that creates it.

    `answers` are references to the answers that are due, `ended` is the error why it will not answer any more.
    """

    def __init__(self, label: str, cpus: float, parts: Parts, patience: float) -> None:
        self.label = label
        self.ended: MenvError | None = None
        self.pending = 1
        self._cpus = cpus
        self._patience = patience
        self._since = time.monotonic()
        self._place: _Location | None = None
        self._driver = _driver()
        self._handle: Any = _ACTOR.options(num_cpus=cpus).remote()
        self._hello: Any = self._handle.hello.remote(import_paths())
        self.answers: deque[Any] = deque([self._handle.ask.remote(_boxed(parts))])

    @property
    def pid(self) -> int | None:
        return self._place.pid if self.is_placed() and self._place else None

    def ask(self, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        own: list[Any] = [*args]
        parcel = own.pop() if own and isinstance(own[-1], ray.ObjectRef) else None
        self._request(pack_request(self.label, method.__name__, own), parcel)

    def _request(self, parts: Parts, parcel: object = None) -> None:
        # `answer` raises if the actor is gone.
        if not self.is_gone():
            reference = self._handle.ask.remote(_boxed(parts), parcel)
            # No call from here on, so no signal handler runs between storing and counting it.
            self.answers += (reference,)
        self.pending += 1

    def _reply(self) -> Parts:
        # Once it is placed, one call waits for the answer and fetches it.
        if self.is_gone() or not self.is_placed():
            _wait_for([self], None)
        found: Any = None
        try:
            found = None if self.ended else ray.get(self.answers[0])
        except RayTaskError as error:
            # Errors of methods are sent as answers; this is an error of Ray.
            found = RemoteError(f"{self.label}: {in_words(error.cause)}")
            found.__cause__ = RemoteTraceback(str(error))
        except RayError as error:
            # Another thread may have killed it and set the error.
            if self.ended is None:
                self._lose(error)
        self.pending -= 1
        if self.ended is not None:
            raise type(self.ended)(str(self.ended))
        self.answers.popleft()
        if isinstance(found, RemoteError):
            raise found
        return cast(Parts, found)

    def kill(self) -> None:
        if self.ended is None:
            self.ended = WorkerLostError(
                f"{self.label} (pid {self.pid}): was killed by this process, expected no request "
                "afterwards; start another one"
            )
        if _driver() == self._driver:
            with suppress(RayError, ValueError):
                ray.kill(self._handle)

    def end(self) -> Any:
        """Request its end; return the reference to wait for, None if there is none."""
        return self._handle.end.remote() if not self.is_gone() and self.is_placed() else None

    def is_placed(self) -> bool:
        """Return whether its location is known."""
        if self._place is None and not self.is_gone():
            with suppress(RayError):
                if ray.wait([self._hello], timeout=0)[0]:
                    self._place = ray.get(self._hello)
        return self._place is not None

    def is_gone(self) -> bool:
        """Return whether it will not answer any more."""
        if self.ended is None and _driver() != self._driver:
            # A request would start Ray again.
            self.ended = WorkerLostError(
                f"{self.label}: is lost: Ray was shut down; stop the engine before that"
            )
        return self.ended is not None

    def check_room(self) -> None:
        """Give it up if Ray has not placed it in time."""
        waited = time.monotonic() - self._since
        if waited >= self._patience and not self.is_placed():
            total, free = _cluster.cluster_resources(), _cluster.available_resources()
            self.kill()
            self.ended = NoRoomError(
                f"{self.label}: has waited {waited:.0f} s for {self._cpus:g} CPU; the cluster has "
                f"{total.get('CPU', 0.0):g}, {free.get('CPU', 0.0):g} of them free, expected room for it; use fewer "
                "workers, start Ray with a larger num_cpus, set worker_start_timeout_s to wait longer, or use "
                "engine='process'"
            )

    def _lose(self, error: Exception) -> None:
        place = self._place if self.is_placed() else None
        at = "was not placed" if place is None else f"pid {place.pid}, node {place.node[:8]}"
        stderr = [] if place is None else _stderr_tail(place.stderr)
        # Ray's message in one line, without its list of possible causes.
        lines = [line for line in str(error).splitlines() if line.strip() and line[0] not in "\t "]
        cause = (lines or [type(error).__name__])[-1].partition(" Some common causes")[0][:_LONGEST]
        self.kill()
        self.ended = lost(f"{self.label} ({at}): is lost: {cause}", stderr)


class RayEngine(Engine):
    """Starts actors of Ray; see `make_engine` for the arguments."""

    name: ClassVar[EngineName] = "ray"

    def __init__(self, cpus: float = 1.0, patience: float | None = None) -> None:
        self._cpus = cpus
        self._patience = PATIENCE_S if patience is None else patience
        super().__init__()
        _start_ray()

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> RayRemoteActor:
        _start_ray()
        actor = RayRemoteActor(label, self._cpus, pack_request(label, CREATE, (make, *args)), self._patience)
        self._actors.add(actor)
        return actor

    def put(self, value: T) -> T:
        _start_ray()
        return cast(T, ray.put(_boxed(pack(value, "parcel"))))

    def wait(self, actors: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
        own = cast("Sequence[RayRemoteActor]", actors)
        return [*_wait_for([actor for actor in own if actor.pending], timeout)]

    def _end(self, actors: Sequence[RayRemoteActor], grace: float) -> Mapping[RayRemoteActor, str]:
        ends = {end: actor for actor in actors if (end := actor.end()) is not None}
        done, slow = ray.wait([*ends], num_returns=len(ends), timeout=grace) if ends else ([], [])
        bad = {ends[end]: error for end in done if (error := _raised(end))}
        for actor in actors:
            actor.kill()
        return bad | {ends[end]: "" for end in slow}


def _raised(end: Any) -> str:
    """Return the error of an object's `stop` as a line, "" without one."""
    try:
        ray.get(end)
    except RayTaskError as error:
        return first_clause(" ".join(in_words(error.cause).split()))
    except RayError:
        # The actor has ended as requested.
        pass
    return ""


def _wait_for(actors: Sequence[RayRemoteActor], timeout: float | None) -> list[RayRemoteActor]:
    """Return the actors whose answer is available, lost ones included; at least one before the timeout."""
    until = float("inf") if timeout is None else time.monotonic() + timeout
    while actors:
        living = {actor.answers[0]: actor for actor in actors if not actor.is_gone()}
        left = max(0.0, until - time.monotonic()) if len(living) == len(actors) else 0.0
        if not all(actor.is_placed() for actor in living.values()):
            left = min(left, _CHECK_S)
        there: list[Any] = []
        if living:
            there, _ = ray.wait([*living], timeout=None if left == float("inf") else left)
        if there and len(living) > 1:
            there, _ = ray.wait([*living], num_returns=len(living), timeout=0)
        answered = {living[reference] for reference in there}
        found = [actor for actor in actors if actor.ended or actor in answered]
        if found or time.monotonic() >= until:
            return found
        for actor in actors:
            actor.check_room()
    return []
