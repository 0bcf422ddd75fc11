"""Shares: which sub-environments of a task one sampler has, and playing them.

`menv.verify.backends` plays all of them in this process, `menv.verify.in_workers` one in each of several.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from menv.base_env import BaseEnv
from menv.loop.convert import to_base_env
from menv.verify.record import Record
from menv.verify.task import WHOLE, Task

MakeEnv = Callable[[int], Any]
Host = Callable[[Task, MakeEnv, int, int], BaseEnv]
"""`(task, make_env, size, first_index)`: puts `size` sub-environments somewhere."""


class Share(NamedTuple):
    """What one sampler has.

    Attributes:
        size: Sub-environments.
        first_index: Index of the first of them among all.
        worker: As workers count: the driver, which samples alone, is number 0 of 0.
    """

    size: int
    first_index: int
    worker: tuple[int, int]


def shares(task: Task, samplers: int) -> list[Share]:
    """Return the shares of several samplers, of which each has one sub-environment at least."""
    found, first = [], 0
    samplers = min(samplers, task.num_envs)
    for number in range(samplers):
        size = task.num_envs // samplers + (number < task.num_envs % samplers)
        found.append(Share(size, first, (0, 0) if samplers == 1 else (number + 1, samplers)))
        first += size
    return found


def copies(task: Task, make_env: MakeEnv, size: int, first_index: int) -> BaseEnv:
    """Put copies of an environment into this process, or one that brings its sub-environments along."""
    size = 1 if task.kind == WHOLE else size
    return to_base_env(make_env(0), make_env, size, seed=task.seed, first_index=first_index)


def play_share(task: Task, share: Share, record: Record, host: Host = copies) -> None:
    """Let one sampler play its share, and close the environments."""
    base_env = host(task, partial(_make, task, share.worker), share.size, share.first_index)
    try:
        sampler = task.sampler(base_env, share.first_index)
        if not base_env.lockstep:
            # Rows are dated then, and agents have names. Who steps together goes the short way round without.
            sampler.keep_episodes()
        batch = sampler.sample()
        record.take(sampler, batch, share.first_index)
        sampler.finish(batch)
    finally:
        base_env.stop()


def _make(task: Task, worker: tuple[int, int], index: int) -> Any:
    return task.make_env(index, *worker)
