"""What is known of an actor that has died: what Ray says, and the last lines that its process wrote to stderr.

Ray keeps what a process writes in a file on the node where it ran; `menv.scale.ray_home` told its name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from menv.errors import WorkerLostError
from menv.scale.ray_home import Whereabouts
from menv.scale.watchdog import last_of

_cluster: Any = ray
_LINES = 20
_BYTES = 1 << 14
_LONGEST = 500
_FETCH_S = 5.0
# The first versions of Ray that will do know no such error: an actor out of reach is a dead one to them.
_UNREACHABLE: Any = getattr(exceptions, "ActorUnavailableError", ())


def why(label: str, place: Whereabouts | None, error: Exception) -> WorkerLostError:
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


def _node_lives(place: Whereabouts) -> bool:
    return any(node["NodeID"] == place.node and node["Alive"] for node in _cluster.nodes())


def _cause(error: Exception) -> str:
    """Return what Ray says in one line, without its list of what it might have been."""
    if isinstance(error, _UNREACHABLE):
        # Ray knows a node to be gone only seconds after that.
        return "it cannot be reached any more, so its process or its node is gone"
    lines = [line for line in str(error).splitlines() if line.strip() and line[0] not in "\t "]
    said = lines[-1] if lines else type(error).__name__
    return said.partition(" Some common causes")[0][:_LONGEST]


def _last_words(place: Whereabouts) -> Sequence[str]:
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
