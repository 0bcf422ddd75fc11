"""Whether Ray has room for one more actor. Ray itself lets an actor without room wait for ever."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_get

from menv.errors import NoRoomError

_cluster: Any = ray

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
