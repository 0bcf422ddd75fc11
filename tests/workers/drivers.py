"""The driver's side of workers, for tests that interrupt it or disturb it between two of its calls."""

from __future__ import annotations

from typing import Any

from menv.algorithms.rollouts.remote_rollouts import RemoteRollouts
from menv.algorithms.rollouts.worker_group import WorkerGroup

ROLLOUTS: Any = RemoteRollouts
WORKERS: Any = WorkerGroup
