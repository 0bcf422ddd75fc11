"""What must not grow: drivers and workers of a run whose agents come and go, whose environments and workers die."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from menv.errors import EnvFaultWarning
from tests.workers.crews import running
from tests.worlds import Several

_BOX = gym.spaces.Box(-1, 1, (3,), np.float32)


class Churning(Several):
    """Agents have a new id each time; every thousandth step raises."""

    possible_agents = ()
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    length = 40
    born = steps = 0

    def shown(self) -> Any:
        if not self.at:
            self.alive = [self.new() for _ in range(3)]
        return self.alive if not self.at else [self.gone, *self.alive]

    def dead(self, actions: Any) -> Any:
        return [self.gone]

    def pay(self, actions: Any) -> Any:
        self.steps += 1
        if self.steps % 1000 == 0:
            raise RuntimeError(f"crash after {self.steps} steps")
        self.gone, self.alive = self.alive[0], [*self.alive[1:], self.new()]
        return dict.fromkeys(actions, 1.0)

    def see(self, agent: Any) -> Any:
        return self.rng.uniform(-1, 1, 3).astype(np.float32)

    def new(self) -> str:
        self.born += 1
        return f"agent {id(self)} {self.born}"


class Sizes(NamedTuple):
    """Megabytes, of this process and of the largest worker, and open files."""

    driver: float
    worker: float
    files: int


def resident(pid: int | str) -> float:
    """Return the resident memory of a process in MB, 0 for one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore the warnings about faults, which are what this is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EnvFaultWarning)
        yield


def churn(seconds: float, kill_every: float = 5.0) -> tuple[list[Sizes], dict[str, Any]]:
    """Train with two workers for a while, killing one now and then.

    Returns:
        The sizes after each iteration, and the last result.
    """
    sizes: list[Sizes] = []
    begun = killed = time.monotonic()
    with (
        quiet(),
        running(2, env=Churning, train_batch_size=2000, num_envs_per_worker=4, overlap=True) as algo,
    ):
        turn = 0
        while time.monotonic() - begun < seconds:
            result = algo.train()
            if time.monotonic() - killed > kill_every:
                killed, turn = time.monotonic(), turn + 1
                os.kill(algo.worker_pids()[turn % 2], signal.SIGKILL)
            gc.collect()
            workers = [resident(pid) for pid in algo.worker_pids()]
            sizes.append(Sizes(resident("self"), max(workers), len(os.listdir("/proc/self/fd"))))
    return sizes, result


def growth(sizes: list[Sizes]) -> Sizes:
    """Return how much more the last quarter needs than the second one; the first one is for warming up."""
    quarter = max(1, len(sizes) // 4)
    early, late = np.array(sizes[quarter : 2 * quarter]), np.array(sizes[-quarter:])
    return Sizes(*(np.median(late, axis=0) - np.median(early, axis=0)).tolist())
