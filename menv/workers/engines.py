"""Choose an engine by its name."""

from __future__ import annotations

import os
import sys
from typing import get_args

from menv.errors import ConfigError, MissingExtraError
from menv.workers.engine import Engine, EngineName
from menv.workers.process_engine import ProcessEngine


def make_engine(
    name: EngineName | None = None, *, cpus: float = 1.0, patience: float | None = None
) -> Engine:
    """Return an engine; None chooses Ray where it is installed, and processes elsewhere.

    `cpus` is how many CPUs each Ray actor reserves, 0 for actors that mostly wait. `patience` is the number of
    seconds that an actor may wait for room; None is 60.
    """
    check_system()
    if name == "process":
        return ProcessEngine()
    if name not in (None, "ray"):
        raise ConfigError(
            f"engine: got {name!r}, expected one of {get_args(EngineName)} or None; "
            "None uses Ray where it is installed"
        )
    try:
        from menv.workers.ray_engine import RayEngine
    except MissingExtraError:
        if name is None:
            return ProcessEngine()
        raise
    return RayEngine(cpus, patience)


def check_system() -> None:
    """Refuse Windows, where processes cannot share sockets and memory in the required way."""
    if os.name == "nt" or sys.platform == "win32":
        raise ConfigError(
            "engine: workers and remote environments on Windows, expected Linux or macOS; leave num_workers, "
            "evaluation_num_workers and remote_worker_envs out, or run menv in WSL"
        )


def ray_runs() -> bool:
    """Return whether this process is connected to Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
