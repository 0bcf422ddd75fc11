"""Actors of Ray, on this machine or on a cluster.

Ray is started on this machine unless the program has done so or `RAY_ADDRESS` names a cluster; whoever started it stops
it, or it ends with this process. See `menv.workers.engine` for what an engine does, `menv.workers.ray_worker` for the
other
end, `menv.workers.ray_engine` for actors that Ray cannot place, `menv.workers.ray_engine` for clusters that are gone.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from menv.errors import (
    CallOrderError,
    ConfigError,
    MenvError,
    MissingExtraError,
    NoRoomError,
    WorkerLostError,
)

try:
    import ray
    from ray import exceptions
    from ray.experimental.internal_kv import _internal_kv_get
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise MissingExtraError(
        "engine 'ray': the package ray is not installed, expected it for this engine; "
        "run: pip install 'menv[ray]', or take engine='process'"
    ) from error

from menv.workers.engine import (
    Engine,
    EngineName,
    RemoteActor,
    RemoteError,
    RemoteTraceback,
    warn_of_bad_end,
    warn_of_slow_end,
)
from menv.workers.pipe_channel import Parts, pack, unpack
from menv.workers.ray_worker import RayWorker, RayWorkerLocation, boxed
from menv.workers.watchdog import last_of
from menv.workers.worker_process import CREATE, import_paths, pack_request

# SEAM menv.scale.ray_death
# What is known of an actor that has died: what Ray says, and the last lines that its process wrote to stderr.
#
# Ray keeps what a process writes in a file on the node where it ran; `menv.workers.ray_worker` told its name.


_cluster: Any = ray
_LINES = 20
_BYTES = 1 << 14
_LONGEST = 500
_FETCH_S = 5.0
# The first versions of Ray that will do know no such error: an actor out of reach is a dead one to them.
_UNREACHABLE: Any = getattr(exceptions, "ActorUnavailableError", ())


def why(label: str, place: RayWorkerLocation | None, error: Exception) -> WorkerLostError:
    """Return the error for an actor that is lost.

    Args:
        label: What messages call it.
        place: Where it lived, None if it was never placed.
        error: What Ray raised.
    """
    at = "was not placed" if place is None else f"pid {place.pid}, node {place.node[:8]}"
    words = [] if place is None else _last_words(place)
    told = "; the last lines of its stderr:\n" + "\n".join(words) if words else "; no stderr of it was found"
    return WorkerLostError(f"{label} ({at}): is lost: {_cause(error)}, expected it to go on{told}")


def _node_lives(place: RayWorkerLocation) -> bool:
    return any(node["NodeID"] == place.node and node["Alive"] for node in _cluster.nodes())


def _cause(error: Exception) -> str:
    """Return what Ray says in one line, without its list of what it might have been."""
    if isinstance(error, _UNREACHABLE):
        # Ray knows a node to be gone only seconds after that.
        return "it cannot be reached any more, so its process or its node is gone"
    lines = [line for line in str(error).splitlines() if line.strip() and line[0] not in "\t "]
    said = lines[-1] if lines else type(error).__name__
    return said.partition(" Some common causes")[0][:_LONGEST]


def _last_words(place: RayWorkerLocation) -> Sequence[str]:
    if os.path.exists(place.stderr):
        return tail(place.stderr)
    if not ray.is_initialized() or not _node_lives(place):
        return []
    there = NodeAffinitySchedulingStrategy(place.node, soft=False)
    task = _cluster.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(tail)
    try:
        found: Sequence[str] = _cluster.get(task.remote(place.stderr), timeout=_FETCH_S)
    except Exception:
        # The node may go at this very moment; the error is told without the lines.
        return []
    return found


def tail(path: str) -> Sequence[str]:
    """Return the last lines of a worker's stderr, without those that Ray writes for itself."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    own = [line for line in lines if not line.startswith((":job_id:", ":actor_name:", ":task_name:"))]
    return [line[:_LONGEST] for line in last_of(own, _LINES)]


# SEAM menv.scale.ray_room
# Whether Ray has room for one more actor. Ray itself lets an actor without room wait for ever.


ON_ONE_MACHINE_S = 10.0
"""How long an actor waits for room by default on a cluster of one node that nothing enlarges."""
ON_A_CLUSTER_S = 300.0
"""How long it waits by default where a node may come: there is an autoscaler, or there was more than one node."""
STARTING_S = 300.0
"""How long it may take to start where there is room."""
_LOOK_AFTER_S = 2.0


def no_room(
    label: str, cpus: float, waited: float, held: float, asked: float, patience: float | None = None
) -> NoRoomError | None:
    """Return the error for an actor that has waited long enough, None while it may wait on.

    Args:
        label: What messages call the actor.
        cpus: What it takes.
        waited: Seconds since it was asked for.
        held: The CPUs of this process's actors that run.
        asked: The CPUs of this process's actors that do not run yet, this one included.
        patience: Seconds that it may wait for room; None is `ON_A_CLUSTER_S` or `ON_ONE_MACHINE_S`.
    """
    if waited < min(_LOOK_AFTER_S, ON_ONE_MACHINE_S if patience is None else patience):
        return None
    total, free = _cpus(_cluster.cluster_resources()), _cpus(_cluster.available_resources())
    group = _full_group(cpus)
    if group:
        where = f"the placement group of this program has {group}"
    else:
        # Ray gives an actor its CPUs before it starts a process for it, so those that are not free may be its own.
        starting = free >= cpus or (total - held >= cpus and total - free - held <= asked)
        largest = max((_cpus(node["Resources"]) for node in _cluster.nodes() if node["Alive"]), default=0.0)
        most = _default_patience() if patience is None else patience
        if waited < (STARTING_S if starting and cpus <= largest else most):
            return None
        where = f"the cluster has {total:g}, {'all taken' if free < cpus else f'{free:g} of them free'}"
    return NoRoomError(
        f"{label}: has waited {waited:.0f} s for {cpus:g} CPU; {where}, expected room for it; take fewer workers, "
        "start Ray with a larger num_cpus, set worker_start_timeout_s to wait longer, or take engine='process'"
    )


def _default_patience() -> float:
    several = len(_cluster.nodes()) > 1  # Nodes that were lost are among them.
    return ON_A_CLUSTER_S if several or _has_autoscaler() else ON_ONE_MACHINE_S


def _has_autoscaler() -> bool:
    """Return whether Ray's monitor reports node types; without an autoscaler it invents one for each node."""
    with suppress(Exception):  # The report is Ray's own affair and may take another form.
        report = json.loads(_internal_kv_get(b"__autoscaling_status") or b"{}")
        return any(not kind.startswith("node_") for kind in report["autoscaler_report"]["active_nodes"])
    return False


def _full_group(cpus: float) -> str:
    """Return what the placement group holds that takes this program's actors; "" if it has room or there is none."""
    group: Any = ray.util.get_current_placement_group()
    if group is None or not ray._private.worker.global_worker.should_capture_child_tasks_in_placement_group:
        return ""
    key = f"CPU_group_{group.id.hex()}"
    total, free = _cluster.cluster_resources().get(key, 0.0), _cluster.available_resources().get(key, 0.0)
    return f"{total:g} CPU in {group.bundle_count} bundles, {free:g} of them free" if free < cpus else ""


def _cpus(resources: dict[str, Any]) -> float:
    return float(resources.get("CPU", 0.0))


# SEAM menv.scale.ray_start
# Ray is connected to, or started on this machine.
#
# Ray by itself takes the cluster that `RAY_ADDRESS` names, or else the one of which `ray start` left a note.
# One that was
# killed has left its note too, and Ray would ask for it again and again, for minutes.


_ANSWER_S = 5.0


def start_ray() -> None:
    """Start Ray unless the program has; by itself Ray would do so with a dashboard and many words.

    Raises:
        ConfigError: This program is a client of a cluster (`ray://`), not a driver in it.
    """
    if _by_ray_client():
        raise ConfigError(
            "engine 'ray': this program is connected by Ray Client (ray://), expected a driver inside the cluster; run "
            "it on a node of the cluster or with `ray job submit`, or take engine='process'"
        )
    if not ray.is_initialized():
        address = "local" if _is_gone() else None
        ray.init(address=address, include_dashboard=False, logging_level=logging.ERROR)


def _by_ray_client() -> bool:
    """Return whether Ray is, or would be, asked through a proxy in the cluster."""
    client = sys.modules.get("ray.util.client")
    connected = client is not None and client.ray.is_connected()
    return connected or (not ray.is_initialized() and os.environ.get("RAY_ADDRESS", "").startswith("ray://"))


def _is_gone() -> bool:
    """Return whether the cluster that Ray would take is one whose note is all that is left of it."""
    note = _temporary() / "ray" / "ray_current_cluster"
    if os.environ.get("RAY_ADDRESS") or not note.exists():
        return False
    host, _, port = note.read_text(encoding="ascii").strip().rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, ValueError):
        return True
    return False


def _temporary() -> Path:
    own = os.environ.get("RAY_TMPDIR") or (sys.platform == "linux" and os.environ.get("TMPDIR"))
    return Path(own or ("/tmp" if sys.platform in ("linux", "darwin") else tempfile.gettempdir()))


try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise MissingExtraError(
        "engine 'ray': the package ray is not installed, expected it for this engine; "
        "run: pip install 'menv[ray]', or take engine='process'"
    ) from error


_ACTOR: Any = ray.remote(max_restarts=0, max_task_retries=0)(RayWorker)
_LOOK_S = 1.0
"""Between two looks at whether Ray can place an actor."""


class RayRemoteActor(RemoteActor):
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
        self._place: RayWorkerLocation | None = None
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
        """Ask for a method; see `RemoteActor.ask`."""
        parts = boxed(pack_request(self.label, method, args))
        # One that is gone is told by the answer.
        if not self.is_gone():
            reference = self._home.ask.remote(parts, parcel)
            # Nothing is called from here on, so that no signal's handler runs: it is kept and counted, or neither.
            self._answers += (reference,)
        self.pending += 1

    def answer(self) -> Any:
        """Return the answer to the oldest question; see `RemoteActor.answer`."""
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
        """End the process at once; see `RemoteActor.kill`."""
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
            found = RemoteError(f"{self.label}: {type(error.cause).__name__}: {error.cause}")
            found.__cause__ = RemoteTraceback(str(error))
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
        self._peers: weakref.WeakSet[RayRemoteActor] = weakref.WeakSet()
        start_ray()

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> RayRemoteActor:
        """Create an object in an actor; see `Engine.start`."""
        start_ray()
        peer = RayRemoteActor(label, self._cpus, pack_request(label, CREATE, (make, *args)), self._patience)
        self._peers.add(peer)
        _everybody.add(peer)
        return peer

    def put(self, value: Any) -> Any:
        """Return a parcel; see `Engine.put`."""
        start_ray()
        return ray.put(boxed(pack(value, "parcel")))

    def wait(self, peers: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
        """Return those whose answer is there; see `Engine.wait`."""
        return [
            *wait_for([peer for peer in peers if isinstance(peer, RayRemoteActor) and peer.pending], timeout)
        ]

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


_everybody: weakref.WeakSet[RayRemoteActor] = weakref.WeakSet()
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


def wait_for(peers: Sequence[RayRemoteActor], timeout: float | None) -> list[RayRemoteActor]:
    """Return the peers whose answer is there, lost ones too; at least one unless time is over."""
    until = float("inf") if timeout is None else time.monotonic() + timeout
    while peers:
        left = 0.0 if any(peer.is_gone() for peer in peers) else max(0.0, until - time.monotonic())
        found = _answered(peers, left)
        if found or time.monotonic() >= until:
            return found
        _look_for_room(peers)
    return []


def _answered(peers: Sequence[RayRemoteActor], timeout: float) -> list[RayRemoteActor]:
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


def _look_for_room(peers: Sequence[RayRemoteActor]) -> None:
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
