"""Whether Ray has room for one more actor, asked while one waits to be placed.

Ray itself lets it wait for ever.
"""

from __future__ import annotations

from typing import Any

import ray

from menv.errors import NoRoomError

_cluster: Any = ray

NEVER_S = 5.0
"""How long an actor waits where our own take all there is. Those that end give it back within a second or so."""
TAKEN_S = 90.0
"""How long it waits for what others hold; longer than Ray gives a process that does not start."""
STARTING_S = 300.0
"""How long it may take to start where there is room."""


def no_room(label: str, cpus: float, waited: float, held: float, asked: float) -> NoRoomError | None:
    """Return the error for an actor that has waited long enough, None while it may wait on.

    Args:
        label: What messages call the actor.
        cpus: What it takes.
        waited: For how many seconds it has.
        held: The CPUs of this process's actors that run.
        asked: The CPUs of those that do not, this one too.
    """
    if waited < NEVER_S:
        return None
    total, free = _cpus(_cluster.cluster_resources()), _cpus(_cluster.available_resources())
    largest = max((_cpus(node["Resources"]) for node in _cluster.nodes() if node["Alive"]), default=0.0)
    # Ray gives an actor its CPUs before it starts a process for it, so those that are not free may be its own.
    starting = free >= cpus or (total - held >= cpus and total - free - held <= asked)
    patience = NEVER_S if held + cpus > total else TAKEN_S
    if cpus <= largest and waited < (STARTING_S if starting else patience):
        return None
    room = "all taken" if free < cpus else f"{free:g} of them free"
    return NoRoomError(
        f"{label}: has waited {waited:.0f} s for {cpus:g} CPU; the cluster has {total:g}, {room}, expected room for "
        "it; take fewer workers, start Ray with a larger num_cpus, or take engine='process'"
    )


def _cpus(resources: dict[str, Any]) -> float:
    return float(resources.get("CPU", 0.0))
