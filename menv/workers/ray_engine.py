"""The engine that starts Ray actors, on this machine or on a cluster.

It starts Ray on this machine unless the program has done so or `RAY_ADDRESS` names a cluster. Ray itself waits forever
for room and for clusters that are gone; this module reports both. `ray_worker` is the other end.
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
from typing import Any, ClassVar, cast

from menv.errors import (
    CallOrderError,
    ConfigError,
    MenvError,
    MissingExtraError,
    NoRoomError,
    WorkerLostError,
    first_clause,
    in_words,
)

try:
    import ray
    from ray import exceptions
    from ray.exceptions import RayError, RayTaskError
    from ray.experimental.internal_kv import _internal_kv_get
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise MissingExtraError(
        "engine 'ray': the package ray is not installed; "
        "run: pip install 'menv-rl[ray]', or take engine='process'"
    ) from error

from menv.workers.engine import (
    BREAK,
    Engine,
    EngineName,
    RemoteActor,
    RemoteError,
    RemoteTraceback,
    T,
    Ts,
    warn_of_bad_end,
    warn_of_slow_end,
)
from menv.workers.pipe_channel import Parts, pack, unpack
from menv.workers.ray_worker import RayWorker, RayWorkerLocation, boxed
from menv.workers.watchdog import last_of
from menv.workers.worker_process import CREATE, import_paths, pack_request

_cluster: Any = ray
_LINES = 20
_BYTES = 1 << 14
_LONGEST = 500
_FETCH_S = 5.0
# Older versions of Ray lack this error and report an unreachable actor as dead.
_UNREACHABLE: Any = getattr(exceptions, "ActorUnavailableError", ())


def why(label: str, place: RayWorkerLocation | None, error: Exception) -> WorkerLostError:
    """Return the error for a lost actor; `place` is None if it was never placed."""
    at = "was not placed" if place is None else f"pid {place.pid}, node {place.node[:8]}"
    lines = [] if place is None else _stderr_tail(place)
    stderr = (
        "; the last lines of its stderr:\n" + "\n".join(lines) if lines else "; no stderr of it was found"
    )
    return WorkerLostError(f"{label} ({at}): is lost: {_cause(error)}{stderr}")


def _node_lives(place: RayWorkerLocation) -> bool:
    return any(node["NodeID"] == place.node and node["Alive"] for node in _cluster.nodes())


def _cause(error: Exception) -> str:
    """Return Ray's message in one line, without its list of possible causes."""
    if isinstance(error, _UNREACHABLE):
        # Ray notices a lost node only after seconds.
        return "it cannot be reached any more, so its process or its node is gone"
    lines = [line for line in str(error).splitlines() if line.strip() and line[0] not in "\t "]
    said = lines[-1] if lines else type(error).__name__
    return said.partition(" Some common causes")[0][:_LONGEST]


def _stderr_tail(place: RayWorkerLocation) -> Sequence[str]:
    if os.path.exists(place.stderr):
        return tail(place.stderr)
    if not ray.is_initialized() or not _node_lives(place):
        return []
    on_node = NodeAffinitySchedulingStrategy(place.node, soft=False)
    task = _cluster.remote(num_cpus=0, max_retries=0, scheduling_strategy=on_node)(tail)
    try:
        found: Sequence[str] = _cluster.get(task.remote(place.stderr), timeout=_FETCH_S)
    except Exception:
        # The node may be lost, too; the error does not need these lines.
        return []
    return found


def tail(path: str) -> Sequence[str]:
    """Return the last lines of a worker's stderr, without Ray's markers."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    own = [line for line in lines if not line.startswith((":job_id:", ":actor_name:", ":task_name:"))]
    return [line[:_LONGEST] for line in last_of(own, _LINES)]


ON_ONE_MACHINE_S = 10.0
"""Default time that an actor waits for room on one node without an autoscaler."""
ON_A_CLUSTER_S = 300.0
"""Default time with an autoscaler or several nodes, where a node may be added."""
STARTING_S = 300.0
"""How long a start may take where there is room."""
_CHECK_AFTER_S = 2.0


def no_room(
    label: str, cpus: float, waited: float, held: float, asked: float, patience: float | None = None
) -> NoRoomError | None:
    """Return the error for an actor that has waited too long for room, None while it may wait.

    `waited` is in seconds. `held` and `asked` are the CPUs of this process's running actors and of the others.
    """
    if waited < min(_CHECK_AFTER_S, ON_ONE_MACHINE_S if patience is None else patience):
        return None
    key, bundles, own = _own_group()
    total, free = (
        found().get(key, 0.0) for found in (_cluster.cluster_resources, _cluster.available_resources)
    )
    # Ray gives an actor its CPUs before it starts a process for it, so those that are not free may be its own.
    starting = free >= cpus or cpus <= round(total - own - free - held, 4) <= asked
    largest = max((_cpus(node["Resources"]) for node in _cluster.nodes() if node["Alive"]), default=0.0)
    if bundles:
        most = 0.0
        where = f"the placement group of this program has {total:g} CPU in {bundles} bundles, {free:g} of them free"
    else:
        most = _default_patience() if patience is None else patience
        where = f"the cluster has {total:g}, {'all taken' if free < cpus else f'{free:g} of them free'}"
    if waited < (STARTING_S if starting and cpus <= largest else most):
        return None
    return NoRoomError(
        f"{label}: has waited {waited:.0f} s for {cpus:g} CPU; {where}, expected room for it; take fewer workers, "
        "start Ray with a larger num_cpus, set worker_start_timeout_s to wait longer, or take engine='process'"
    )


def _default_patience() -> float:
    several = len(_cluster.nodes()) > 1  # Nodes that were lost are among them.
    return ON_A_CLUSTER_S if several or _has_autoscaler() else ON_ONE_MACHINE_S


def _has_autoscaler() -> bool:
    """Return whether Ray's monitor reports node types; without an autoscaler it invents one for each node."""
    with suppress(Exception):  # The report is internal to Ray and may change.
        report = json.loads(_internal_kv_get(b"__autoscaling_status") or b"{}")
        return any(not kind.startswith("node_") for kind in report["autoscaler_report"]["active_nodes"])
    return False


def _own_group() -> tuple[str, int, float]:
    """Return the name of the CPUs that this program's actors get, and of a placement group bundles and its own CPUs.

    Bundles and CPUs are 0 without a placement group that captures the actors.
    """
    group: Any = ray.util.get_current_placement_group()
    if group is None or not ray._private.worker.global_worker.should_capture_child_tasks_in_placement_group:
        return "CPU", 0, 0.0
    context: Any = ray.get_runtime_context()
    own = _cpus(context.get_assigned_resources())
    return f"CPU_group_{group.id.hex()}", group.bundle_count, own


def _cpus(resources: dict[str, Any]) -> float:
    return float(resources.get("CPU", 0.0))


_ANSWER_S = 5.0


def start_ray() -> None:
    """Start Ray unless the program has, without a dashboard and log lines.

    Raises ConfigError if the program is connected by Ray Client, not as a driver in the cluster.
    """
    if _uses_ray_client():
        raise ConfigError(
            "engine 'ray': this program is connected by Ray Client (ray://), expected a driver inside the cluster; run "
            "it on a node of the cluster or with `ray job submit`, or take engine='process'"
        )
    if not ray.is_initialized():
        address = "local" if _is_cluster_gone() else None
        ray.init(address=address, include_dashboard=False, logging_level=logging.ERROR)


def _uses_ray_client() -> bool:
    """Return whether this program is, or would be, connected by Ray Client."""
    client = sys.modules.get("ray.util.client")
    connected = client is not None and client.ray.is_connected()
    return connected or (not ray.is_initialized() and os.environ.get("RAY_ADDRESS", "").startswith("ray://"))


def _is_cluster_gone() -> bool:
    """Return whether the cluster that Ray would choose no longer exists.

    `ray start` leaves a file with its address. A killed cluster leaves it, too, and Ray would try it for minutes.
    """
    address_file = _temporary() / "ray" / "ray_current_cluster"
    if os.environ.get("RAY_ADDRESS") or not address_file.exists():
        return False
    host, _, port = address_file.read_text(encoding="ascii").strip().rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, ValueError):
        return True
    return False


def _temporary() -> Path:
    own = os.environ.get("RAY_TMPDIR") or (sys.platform == "linux" and os.environ.get("TMPDIR"))
    return Path(own or ("/tmp" if sys.platform in ("linux", "darwin") else tempfile.gettempdir()))


_ACTOR: Any = ray.remote(max_restarts=0, max_task_retries=0)(RayWorker)
_CHECK_S = 1.0
"""Pause between checks whether Ray can place an actor."""


class RayRemoteActor(RemoteActor):
    """An object in a Ray actor; `parts` is the request that creates it.

    `since` is the time of its request in `time.monotonic`. `ended` is the error why it will not answer any more.
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
        self._handle: Any = _ACTOR.options(num_cpus=cpus).remote()
        self._hello: Any = self._handle.hello.remote(import_paths())
        self._answers: deque[Any] = deque([self._handle.ask.remote(boxed(parts))])

    @property
    def pid(self) -> int | None:
        return self._place.pid if self.is_placed() and self._place else None

    @property
    def oldest(self) -> Any:
        return self._answers[0]

    def ask(self, method: Callable[[Any, *Ts], object], *args: *Ts) -> None:
        own: list[Any] = [*args]
        parcel = own.pop() if own and isinstance(own[-1], ray.ObjectRef) else None
        self._request(pack_request(self.label, method.__name__, own), parcel)

    def create(self, make: Callable[..., Any], *args: Any) -> None:
        self._request(pack_request(self.label, CREATE, (make, *args)), None)

    def _request(self, parts: Parts, parcel: object) -> None:
        # `answer` raises if the actor is gone.
        if not self.is_gone():
            reference = self._handle.ask.remote(boxed(parts), parcel)
            # No call from here on, so no signal handler runs between storing and counting it.
            self._answers += (reference,)
        self.pending += 1

    def answer(self) -> Any:
        if not self.pending:
            raise CallOrderError(f"{self.label}: was asked nothing, expected a request first; call ask")
        # Once it is placed, one call waits for the answer and fetches it.
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

    def signal(self) -> bool:
        # Ray cannot interrupt an actor; a process on another node ends its call first.
        if (
            self.is_gone()
            or self._place is None
            or self._place.node != ray.get_runtime_context().get_node_id()
        ):
            return False
        os.kill(self._place.pid, BREAK)
        return True

    def kill(self) -> None:
        if self.ended is None:
            self.ended = WorkerLostError(
                f"{self.label} (pid {self.pid}): was killed by this process, expected no question "
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

    def lose(self, error: Exception) -> None:
        """Mark it as lost because of `error`."""
        reason = why(self.label, self._place if self.is_placed() else None, error)
        self.kill()
        self.ended = reason

    def _reply(self) -> Any:
        """Return the parts of the available answer, or an exception; None if the actor is lost."""
        try:
            return ray.get(self._answers[0])
        except RayTaskError as error:
            # Errors of methods are sent as answers; this is an error of Ray.
            found = RemoteError(f"{self.label}: {in_words(error.cause)}")
            found.__cause__ = RemoteTraceback(str(error))
            return found
        except RayError as error:
            # Another thread may have killed it and set the error.
            if self.ended is None:
                self.lose(error)
        return None


class RayEngine(Engine):
    """Starts actors of Ray; see `make_engine` for the arguments."""

    name: ClassVar[EngineName] = "ray"

    def __init__(self, cpus: float = 1.0, patience: float | None = None) -> None:
        self._cpus = cpus
        self._patience = patience
        self._peers: weakref.WeakSet[RayRemoteActor] = weakref.WeakSet()
        start_ray()

    def start(self, make: Callable[..., Any], *args: Any, label: str) -> RayRemoteActor:
        start_ray()
        actor = RayRemoteActor(label, self._cpus, pack_request(label, CREATE, (make, *args)), self._patience)
        self._peers.add(actor)
        _all_actors.add(actor)
        return actor

    def put(self, value: T) -> T:
        start_ray()
        return cast(T, ray.put(boxed(pack(value, "parcel"))))

    def wait(self, actors: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
        own = cast("Sequence[RayRemoteActor]", actors)
        return [*wait_for([actor for actor in own if actor.pending], timeout)]

    def stop(self, grace: float = 5.0) -> None:
        actors = list(self._peers)
        idle = {actor for actor in actors if not actor.pending}
        ends = {end: actor for actor in actors if (end := actor.end()) is not None}
        done, slow = ray.wait([*ends], num_returns=len(ends), timeout=grace) if ends else ([], [])
        raised = {ends[end]: error for end in done if (error := _raised(end)) is not None}
        for actor in actors:
            actor.kill()
        for actor, error in raised.items():
            warn_of_bad_end(f"{actor.label} (pid {actor.pid})", error)
        for actor in [ends[end] for end in slow]:
            if actor in idle:
                warn_of_slow_end(f"{actor.label} (pid {actor.pid})", grace)
        self._peers.clear()


_all_actors: weakref.WeakSet[RayRemoteActor] = weakref.WeakSet()
"""The actors of all engines of this process."""


def _raised(end: Any) -> str | None:
    """Return the error of an object's `stop` as a line, None without one."""
    try:
        ray.get(end)
    except RayTaskError as error:
        return first_clause(" ".join(in_words(error.cause).split()))
    except RayError:
        # The actor has ended as requested.
        pass
    return None


def _driver() -> tuple[str, ...]:
    """Return this process's identity in Ray, which changes with each `ray.init`; empty without Ray."""
    if not ray.is_initialized():
        return ()
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_worker_id()


def wait_for(actors: Sequence[RayRemoteActor], timeout: float | None) -> list[RayRemoteActor]:
    """Return the actors whose answer is available, lost ones included; at least one before the timeout."""
    until = float("inf") if timeout is None else time.monotonic() + timeout
    while actors:
        left = 0.0 if any(actor.is_gone() for actor in actors) else max(0.0, until - time.monotonic())
        found = _answered(actors, left)
        if found or time.monotonic() >= until:
            return found
        _check_room(actors)
    return []


def _answered(actors: Sequence[RayRemoteActor], timeout: float) -> list[RayRemoteActor]:
    """Wait for answers, only briefly while an actor is not placed."""
    living = {actor.oldest: actor for actor in actors if not actor.is_gone()}
    if not all(actor.is_placed() for actor in living.values()):
        timeout = min(timeout, _CHECK_S)
    there: list[Any] = []
    if living:
        there, _ = ray.wait([*living], timeout=None if timeout == float("inf") else timeout)
    if there and len(living) > 1:
        there, _ = ray.wait([*living], num_returns=len(living), timeout=0)
    ready = {id(living[reference]) for reference in there}
    return [actor for actor in actors if actor.ended or id(actor) in ready]


def _check_room(actors: Sequence[RayRemoteActor]) -> None:
    waiting = [actor for actor in actors if not actor.is_gone() and not actor.is_placed()]
    if not waiting:
        return
    running = [actor for actor in _all_actors if not actor.is_gone()]
    held = sum(actor.cpus for actor in running if actor.is_placed())
    asked = sum(actor.cpus for actor in running) - held
    for actor in waiting:
        problem = no_room(
            actor.label, actor.cpus, time.monotonic() - actor.since, held, asked, actor.patience
        )
        if problem is not None:
            actor.kill()
            actor.ended = problem
