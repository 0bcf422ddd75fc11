"""The table of back-ends: ways to put the same sub-environments somewhere, and to play there.

`menv.verify.verify` goes through `BACKENDS`; a new way to host environments becomes a line there. What is compared, and
how, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from menv.base_env import BaseEnv
from menv.loop.convert import to_base_env
from menv.vector_env import VectorEnv
from menv.verify.other_process import play_in_another_process
from menv.verify.record import Record
from menv.verify.task import MULTI, SINGLE, WHOLE, Task

MakeEnv = Callable[[int], Any]
Host = Callable[[Task, MakeEnv, int, int], BaseEnv]
"""`(task, make_env, size, first_index)`: puts `size` sub-environments somewhere."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to play a task.

    Attributes:
        name: What reports call it.
        kinds: Which kinds of environments it can host.
        play: Plays the whole task.
        suspects: What to look for in an environment that is another one here.
        repeats: Whether it is the first one once more; what differs then says nothing about the others.
    """

    name: str
    kinds: tuple[str, ...]
    play: Callable[[Task], Record]
    suspects: str = ""
    repeats: bool = False


def copies(task: Task, make_env: MakeEnv, size: int, first_index: int) -> BaseEnv:
    """Put copies of an environment into this process, or one that brings its sub-environments along."""
    size = 1 if task.kind == WHOLE else size
    return to_base_env(make_env(0), make_env, size, seed=task.seed, first_index=first_index)


def vectorised(task: Task, make_env: MakeEnv, size: int, first_index: int) -> BaseEnv:
    """Put copies of a gymnasium environment into one `VectorEnv`, which steps them together."""
    env = VectorEnv.vectorize_gym_envs(make_env, num_envs=size)
    return to_base_env(env, seed=task.seed, first_index=first_index)


def play_here(task: Task, host: Host = copies, samplers: int = 1) -> Record:
    """Play a task in this process, by several samplers one after another, each with a share of the sub-environments."""
    record, first = Record(), 0
    samplers = min(samplers, task.num_envs)
    for number in range(samplers):
        size = task.num_envs // samplers + (number < task.num_envs % samplers)
        # As workers count: the driver, which samples alone, is number 0.
        worker = (0, 0) if samplers == 1 else (number + 1, samplers)
        _play_share(task, host, partial(_make, task, worker), size, first, record)
        first += size
    return record


def _make(task: Task, worker: tuple[int, int], index: int) -> Any:
    """Create a sub-environment of one of several workers."""
    return task.make_env(index, *worker)


def _play_share(
    task: Task, host: Host, make_env: MakeEnv, size: int, first_index: int, record: Record
) -> None:
    """Let one sampler play its share, and close the environments."""
    base_env = host(task, make_env, size, first_index)
    try:
        sampler = task.sampler(base_env, first_index)
        if not base_env.lockstep:
            # Rows are dated then, and agents have names. Who steps together goes the short way round without.
            sampler.keep_episodes()
        batch = sampler.sample()
        record.take(sampler, batch, first_index)
        sampler.finish(batch)
    finally:
        base_env.stop()


_NOT_ALONE = (
    "sub-environments that are not alone: attributes of a class or a module that they share, the global generators "
    "(random, numpy.random), or worker_index and vector_index of the EnvContext"
)
_COPIES = (SINGLE, MULTI)
BACKENDS: tuple[Backend, ...] = (
    Backend("copies", (*_COPIES, WHOLE), play_here),
    Backend(
        "copies once more", (*_COPIES, WHOLE), play_here,
        "what the seed of a reset does not decide: the time, the global generators (random, numpy.random), what an "
        "earlier environment left in a class or a module", repeats=True,
    ),
    Backend("2 samplers", _COPIES, partial(play_here, samplers=2), _NOT_ALONE),
    Backend("a sampler each", _COPIES, partial(play_here, samplers=1 << 30), _NOT_ALONE),
    Backend("VectorEnv", (SINGLE,), partial(play_here, host=vectorised), _NOT_ALONE),
    Backend(
        "another process", (*_COPIES, WHOLE), play_in_another_process,
        "what differs from process to process: hash() of strings, the order of a set, ids of objects, the environment "
        "variables",
    ),
)  # fmt: skip
"""The first one is what the others are compared with."""
