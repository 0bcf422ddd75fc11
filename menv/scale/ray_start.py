"""Ray is connected to, or started on this machine.

Ray by itself takes the cluster that `RAY_ADDRESS` names, or else the one of which `ray start` left a note. One that was
killed has left its note too, and Ray would ask for it again and again, for minutes.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from pathlib import Path

import ray

from menv.errors import ConfigError

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
