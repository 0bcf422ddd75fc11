"""Actors of Ray, on this machine or on a cluster.

Ray is started on this machine unless the program has done so or `RAY_ADDRESS` names a cluster; whoever started it stops
it, or it ends with this process. See `menv.scale.engine` for what an engine does, `menv.scale.ray_home` for the other
end, `menv.scale.ray_room` for actors that Ray cannot place, `menv.scale.ray_start` for clusters that are gone.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from menv.errors import CallOrderError, MenvError, MissingExtraError, WorkerLostError
from menv.scale.engine import Engine, EngineName, Peer, warn_of_bad_end, warn_of_slow_end
from menv.scale.far_error import FarError, FarTraceback
from menv.scale.home import CREATE, import_paths, question
from menv.scale.packing import Parts, pack, unpack

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise MissingExtraError(
        "engine 'ray': the package ray is not installed, expected it for this engine; "
        "run: pip install 'menv[ray]', or take engine='process'"
    ) from error

from menv.scale.ray_death import why
from menv.scale.ray_home import RayHome, Whereabouts, boxed
from menv.scale.ray_room import no_room
from menv.scale.ray_start import start_ray

_ACTOR: Any = ray.remote(max_restarts=0, max_task_retries=0)(RayHome)
_LOOK_S = 1.0
"""Between two looks at whether Ray can place an actor."""


class RayPeer(Peer):
    """An object in an actor.

    Args:
        label: What messages call it.
        cpus: What it takes of a cluster's CPUs.
        parts: The question that creates the object.
        patience: Seconds that it may wait for room; None as long as `ray_room` does by default.

    Attributes:
        cpus: As given.
        ended: Why it will answer no more.
        since: The time of `time.monotonic` at which it was asked for.
    """

    def __init__(self, label: str, cpus: float, parts: Parts, patience: float | None) -> None:
        self.label = label
        self.cpus = cpus
        self.patience = patience
        self.since = time.monotonic()
        self.ended: MenvError | None = None
        self.pending = 1
        self._place: Whereabouts | None = None
        self._driver = _driver()
        self._home: Any = _ACTOR.options(num_cpus=cpus).remote()
        self._hello: Any = self._home.hello.remote(import_paths())
        self._answers: deque[Any] = deque([self._home.ask.remote(boxed(parts))])

    @property
    def pid(self) -> int | None:
        """Return the id of its process, once Ray has placed it."""
        return self._place.pid if self.is_placed() and self._place else None

    @property
    def oldest(self) -> Any:
        """The reference to the answer to its oldest question."""
        return self._answers[0]

    def ask(self, method: str, *args: Any, parcel: Any = None) -> None:
        """Ask for a method; see `Peer.ask`."""
        parts = boxed(question(self.label, method, args))
        # One that is gone is told by the answer.
        if not self.is_gone():
            reference = self._home.ask.remote(parts, parcel)
            # Nothing is called from here on, so that no signal's handler runs: it is kept and counted, or neither.
            self._answers += (reference,)
        self.pending += 1

    def answer(self) -> Any:
        """Return the answer to the oldest question; see `Peer.answer`."""
        if not self.pending:
            raise CallOrderError(f"{self.label}: was asked nothing, expected a question first; call ask")
        # Once it is known where it lives, waiting for the answer and fetching it are one call.
        if self.is_gone() or not self.is_placed():
            wait_for([self], None)
        reply: Any = None if self.ended else self._reply()
        self.pending -= 1
        if self.ended is not None:
            raise type(self.ended)(str(self.ended))
        self._answers.popleft()
        if isinstance(reply, Exception):
            raise reply
        well, value = unpack(reply)
        if not well:
            raise value.error(self.label)
        return value

    def kill(self) -> None:
        """End the process at once; see `Peer.kill`."""
        if self.ended is None:
            self.ended = WorkerLostError(
                f"{self.label} (pid {self.pid}): was killed by this process, expected no question "
                "afterwards; start another one"
            )
        if _driver() == self._driver:
            with suppress(RayError, ValueError):
                ray.kill(self._home)

    def end(self) -> Any:
        """Ask it to end by itself; return what to wait for, None if there is nothing."""
        return self._home.end.remote() if not self.is_gone() and self.is_placed() else None

    def is_placed(self) -> bool:
        """Return whether it is known where it lives."""
        if self._place is None and not self.is_gone():
            with suppress(RayError):
                if ray.wait([self._hello], timeout=0)[0]:
                    self._place = ray.get(self._hello)
        return self._place is not None

    def is_gone(self) -> bool:
        """Return whether it will answer no more."""
        if self.ended is None and _driver() != self._driver:
            # Ray would start anew by itself if it were asked for anything.
            self.ended = WorkerLostError(
                f"{self.label}: is lost: Ray was shut down, expected it to go on; stop the engine before that"
            )
        return self.ended is not None

    def lose(self, error: Exception) -> None:
        """Note that nothing more comes, and why."""
        reason = why(self.label, self._place if self.is_placed() else None, error)
        self.kill()
        self.ended = reason

    def _reply(self) -> Any:
        """Return the parts of the answer that is there, or an exception; None if the actor is lost."""
        try:
            return ray.get(self._answers[0])
        except RayTaskError as error:
            # What a method raises is sent as an answer; this is Ray's own trouble.
            found = FarError(f"{self.label}: {type(error.cause).__name__}: {error.cause}")
            found.__cause__ = FarTraceback(str(error))
            return found
        except RayError as error:
            # Another thread may have killed it meanwhile, and said so.
            if self.ended is None:
                self.lose(error)
        return None


class RayEngine(Engine):
    """Starts actors of Ray.

    Args:
        cpus: What each takes of a cluster's CPUs; for those that mostly wait it may be 0.
        patience: Seconds that each may wait for room; None is 300 on a cluster, 10 on one machine.
    """

    name: ClassVar[EngineName] = "ray"

    def __init__(self, cpus: float = 1.0, patience: float | None = None) -> None:
        self._cpus = cpus
        self._patience = patience
        self._peers: weakref.WeakSet[RayPeer] = weakref.WeakSet()
        start_ray()

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> RayPeer:
        """Create an object in an actor; see `Engine.start`."""
        start_ray()
        peer = RayPeer(label, self._cpus, question(label, CREATE, (make, *args)), self._patience)
        self._peers.add(peer)
        _everybody.add(peer)
        return peer

    def put(self, value: Any) -> Any:
        """Return a parcel; see `Engine.put`."""
        start_ray()
        return ray.put(boxed(pack(value, "parcel")))

    def wait(self, peers: Sequence[Peer], timeout: float | None = None) -> list[Peer]:
        """Return those whose answer is there; see `Engine.wait`."""
        return [*wait_for([peer for peer in peers if isinstance(peer, RayPeer) and peer.pending], timeout)]

    def stop(self, grace: float = 5.0) -> None:
        """End all actors; see `Engine.stop`."""
        peers = list(self._peers)
        idle = {peer for peer in peers if not peer.pending}
        ends = {end: peer for peer in peers if (end := peer.end()) is not None}
        done, slow = ray.wait([*ends], num_returns=len(ends), timeout=grace) if ends else ([], [])
        raised = {ends[end]: error for end in done if (error := _raised(end)) is not None}
        for peer in peers:
            peer.kill()
        for peer, error in raised.items():
            warn_of_bad_end(f"{peer.label} (pid {peer.pid})", error)
        for peer in [ends[end] for end in slow]:
            if peer in idle:
                warn_of_slow_end(f"{peer.label} (pid {peer.pid})", grace)
        self._peers.clear()


_everybody: weakref.WeakSet[RayPeer] = weakref.WeakSet()
"""The peers of all engines of this process."""


def _raised(end: Any) -> str | None:
    """Return what an object raised when it was stopped, in a line; None if it did not."""
    try:
        ray.get(end)
    except RayTaskError as error:
        return " ".join(f"{type(error.cause).__name__}: {error.cause}".split()).partition(", expected ")[0]
    except RayError:
        # It has left, as it was told to.
        pass
    return None


def _driver() -> tuple[str, ...]:
    """Return who this process is to Ray, which is another one after each `ray.init`; nobody without Ray."""
    if not ray.is_initialized():
        return ()
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_worker_id()


def wait_for(peers: Sequence[RayPeer], timeout: float | None) -> list[RayPeer]:
    """Return the peers whose answer is there, lost ones too; at least one unless time is over."""
    until = float("inf") if timeout is None else time.monotonic() + timeout
    while peers:
        left = 0.0 if any(peer.is_gone() for peer in peers) else max(0.0, until - time.monotonic())
        found = _answered(peers, left)
        if found or time.monotonic() >= until:
            return found
        _look_for_room(peers)
    return []


def _answered(peers: Sequence[RayPeer], timeout: float) -> list[RayPeer]:
    """Wait a while, but not long if one has not been placed yet."""
    living = {peer.oldest: peer for peer in peers if not peer.is_gone()}
    if not all(peer.is_placed() for peer in living.values()):
        timeout = min(timeout, _LOOK_S)
    there: list[Any] = []
    if living:
        there, _ = ray.wait([*living], timeout=None if timeout == float("inf") else timeout)
    if there and len(living) > 1:
        there, _ = ray.wait([*living], num_returns=len(living), timeout=0)
    ready = {id(living[reference]) for reference in there}
    return [peer for peer in peers if peer.ended or id(peer) in ready]


def _look_for_room(peers: Sequence[RayPeer]) -> None:
    waiting = [peer for peer in peers if not peer.is_gone() and not peer.is_placed()]
    if not waiting:
        return
    running = [peer for peer in _everybody if not peer.is_gone()]
    held = sum(peer.cpus for peer in running if peer.is_placed())
    asked = sum(peer.cpus for peer in running) - held
    for peer in waiting:
        problem = no_room(peer.label, peer.cpus, time.monotonic() - peer.since, held, asked, peer.patience)
        if problem is not None:
            peer.kill()
            peer.ended = problem
