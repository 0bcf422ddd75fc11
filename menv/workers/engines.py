"""From the name of an engine to the engine."""

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
    """Return an engine.

    Args:
        name: None is Ray where it is installed, and processes elsewhere.
        cpus: What each peer takes of a cluster's CPUs; for those that mostly wait it may be 0. Processes of this
            machine are not counted.
        patience: Seconds that each peer may wait for room in a cluster; None is 300 where a node may come, 10 on one
            machine.

    Raises:
        ConfigError: Nothing has this name, or this is Windows.
        MissingExtraError: It is Ray, which is not installed.
    """
    check_system()
    if name == "process":
        return ProcessEngine()
    if name not in (None, "ray"):
        raise ConfigError(
            f"engine: got {name!r}, expected one of {get_args(EngineName)} or None; "
            "None takes Ray where it is installed"
        )
    try:
        from menv.workers.ray_engine import RayEngine
    except MissingExtraError:
        if name is None:
            return ProcessEngine()
        raise
    return RayEngine(cpus, patience)


def check_system() -> None:
    """Refuse other processes on Windows, which has no sockets and memory that processes hand to each other.

    Raises:
        ConfigError: This is Windows.
    """
    if os.name == "nt" or sys.platform == "win32":
        raise ConfigError(
            "engine: workers and remote environments on Windows, expected Linux or macOS; leave num_workers, "
            "evaluation_num_workers and remote_worker_envs out, or run menv in WSL"
        )


def ray_runs() -> bool:
    """Return whether this process is connected to Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
