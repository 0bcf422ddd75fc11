"""The table of back-ends: ways to put the same sub-environments somewhere, and to play there.

`menv.verify.verify` goes through `BACKENDS`; a new way to host environments becomes a line there. What is compared, and
how, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from menv.base_env import BaseEnv
from menv.scale.convert import to_base_env
from menv.scale.engine import EngineName
from menv.scale.far_env import FarEnv
from menv.vector_env import VectorEnv
from menv.verify.in_workers import play_in_workers
from menv.verify.other_process import play_in_another_process
from menv.verify.record import Record
from menv.verify.shares import Host, MakeEnv, copies, play_share, shares
from menv.verify.task import MULTI, SINGLE, WHOLE, Task


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to play a task.

    Attributes:
        name: What reports call it.
        kinds: Which kinds of environments it can host.
        play: Plays the whole task.
        suspects: What to look for in an environment that is another one here.
        repeats: Whether it is the first one once more; what differs then says nothing about the others.
        elsewhere: Whether the environments live in other processes.
        on_ray: Whether these are Ray's.
    """

    name: str
    kinds: tuple[str, ...]
    play: Callable[[Task], Record]
    suspects: str = ""
    repeats: bool = False
    elsewhere: bool = False
    on_ray: bool = False


def vectorised(task: Task, make_env: MakeEnv, size: int, first_index: int) -> BaseEnv:
    """Put copies of a gymnasium environment into one `VectorEnv`, which steps them together."""
    env = VectorEnv.vectorize_gym_envs(make_env, num_envs=size)
    return to_base_env(env, seed=task.seed, first_index=first_index)


def remote(task: Task, make_env: MakeEnv, size: int, first_index: int, engine: EngineName) -> BaseEnv:
    """Put copies of an environment into two other processes, to be answered as they finish."""
    return to_base_env(
        make_env(0), FarEnv(task.env, task.context(0)), size, remote_envs=True, remote_envs_per_process=-(-size // 2),
        engine=engine, seed=task.seed, first_index=first_index,
    )  # fmt: skip


def play_here(task: Task, host: Host = copies, samplers: int = 1) -> Record:
    """Play a task in this process, by several samplers one after another, each with a share of the sub-environments."""
    record = Record()
    for share in shares(task, samplers):
        play_share(task, share, record, host)
    return record


_NOT_ALONE = (
    "sub-environments that are not alone: attributes of a class or a module that they share, the global generators "
    "(random, numpy.random), or worker_index and vector_index of the EnvContext"
)
_COPIES = (SINGLE, MULTI)
_ELSEWHERE = (
    "what differs from process to process: attributes of a class or a module, hash() of strings, the order of a set, "
    "the environment variables"
)


def _workers(engine: EngineName) -> Backend:
    play = partial(play_in_workers, engine_name=engine)
    return Backend(f"2 workers ({engine})", _COPIES, play, _ELSEWHERE, elsewhere=True, on_ray=engine == "ray")


def _remote(engine: EngineName) -> Backend:
    play = partial(play_here, host=partial(remote, engine=engine))
    return Backend(
        f"remote environments ({engine})", _COPIES, play, _ELSEWHERE, elsewhere=True, on_ray=engine == "ray"
    )


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
        "another process", (*_COPIES, WHOLE), play_in_another_process, elsewhere=True, suspects=
        "what differs from process to process: hash() of strings, the order of a set, ids of objects, the environment "
        "variables",
    ),
    _workers("process"),
    _remote("process"),
    _workers("ray"),
    _remote("ray"),
)  # fmt: skip
"""The first one is what the others are compared with."""
