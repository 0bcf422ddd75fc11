"""The table of back-ends, `BACKENDS`: ways to host the same sub-environments and to sample from them.

A new way to host environments is a new entry. `menv.verify.verify` compares what they return.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from menv.adapters.adapter import Adapter
from menv.adapters.convert import to_local_base_env
from menv.base_env import SINGLE_AGENT, Column
from menv.errors import MenvError
from menv.registry import RegisteredEnv, describe_env, named_creator
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.digest import Digest, row_hashes
from menv.sampling.sampler import Sampler
from menv.vector_env import VectorEnv
from menv.verify.task import MULTI, SINGLE, WHOLE, Task
from menv.workers.convert import to_base_env
from menv.workers.engine import EngineName
from menv.workers.engines import make_engine
from menv.workers.registered_envs import RemoteEnvSpec, known_here
from menv.workers.worker_process import import_paths

Part = dict[str, Column]

COMPARED = ("obs", "action_mask", "actions", "rewards", "terminateds", "truncateds", "last_obs")
"""Columns, each of which depends on the ones before it."""


class RunRecord:
    """The timesteps of all samplers of one back-end.

    Attributes:
        digest: The digest of all of them.
        parts: Columns of [N] timesteps each: those in `COMPARED`, `hash`, the trajectory (`life`, `eps_id`, `env_index`
            among all, `agent` as text) and the time (`t` in the trajectory, `env_t` in the sub-environment).
    """

    def __init__(self) -> None:
        self.digest = Digest()
        self.parts: list[Part] = []

    def add_batch(self, sampler: Sampler, batch: MultiAgentBatch, first_index: int) -> None:
        """Add a sampler's only fragment; `first_index` is its first sub-environment's index among all."""
        self.digest.add(sampler.digest)
        self.parts += [_part(sampler, one, first_index) for one in batch.policy_batches.values()]

    def add(self, other: RunRecord) -> None:
        """Add the timesteps of other samplers."""
        self.digest.add(other.digest)
        self.parts += other.parts

    def save(self, path: Path) -> None:
        """Write the record to a file."""
        arrays: dict[str, Any] = {
            f"{number}/{name}": column
            for number, part in enumerate(self.parts)
            for name, column in part.items()
        }
        # Text: the halves of the sum may exceed the integers of an array.
        np.savez(path, digest=np.array([str(number) for number in self.digest.state()]), **arrays)

    @classmethod
    def load(cls, path: Path) -> RunRecord:
        """Read a record from a file."""
        record = cls()
        with np.load(path, allow_pickle=False) as arrays:
            record.digest = Digest(*(int(text) for text in arrays["digest"]))
            parts: dict[str, Part] = {}
            for key in arrays.files:
                number, _, name = key.partition("/")
                if name:
                    parts.setdefault(number, {})[name] = arrays[key]
        record.parts = list(parts.values())
        return record


def _part(sampler: Sampler, batch: SampleBatch, first_index: int) -> Part:
    chunks = batch.segments
    part: Part = {
        "hash": row_hashes(batch),
        "life": chunks.spread("life"),
        "eps_id": chunks.spread("eps_id"),
        "env_index": chunks.spread("env_id") + first_index,
        "agent": np.repeat(_agents(sampler, batch), chunks.lengths),
        "t": batch[SampleBatch.T],
        "env_t": batch[SampleBatch.ENV_T]
        if SampleBatch.ENV_T in batch
        else _counted(chunks.spread("env_id")),
        "last_obs": batch[SampleBatch.NEXT_OBS],
    }
    for name in COMPARED:
        if name in batch:
            part[name] = _plain(batch[name])
    return part


def _agents(sampler: Sampler, batch: SampleBatch) -> Column:
    """Return [S] the agents' ids as text, one for each trajectory chunk."""
    episodes, chunks = sampler.episodes, batch.segments
    names = [
        repr(episodes[eps_id].get_agents()[number] if eps_id in episodes else SINGLE_AGENT)
        for eps_id, number in zip(chunks.eps_id.tolist(), chunks.agent_index.tolist(), strict=True)
    ]
    return np.array(names, np.str_)


def _counted(env_indices: Column) -> Column:
    """Return [N] the number of earlier timesteps of the same sub-environment."""
    order = np.argsort(env_indices, kind="stable")
    in_order = env_indices[order]
    counts = np.empty_like(env_indices)
    counts[order] = np.arange(len(order)) - np.searchsorted(in_order, in_order)
    return counts


def _plain(column: Column) -> Column:
    if column.dtype != object:
        return column
    return np.array([repr(value) for value in column.tolist()], np.str_)


MakeEnv = Callable[[int], Any]
Host = Callable[[Task, MakeEnv, int, int], Adapter]
"""`(task, make_env, size, first_index)`: hosts `size` sub-environments."""


def shares(task: Task, samplers: int) -> list[range]:
    """Divide the indices of sub-environments among at most `samplers` samplers, each with at least one."""
    samplers = min(samplers, task.num_envs)
    size, more = divmod(task.num_envs, samplers)
    firsts = [number * size + min(number, more) for number in range(samplers + 1)]
    return [range(first, end) for first, end in pairwise(firsts)]


def host_copies(task: Task, make_env: MakeEnv, size: int, first_index: int) -> Adapter:
    """Host copies in this process, or one environment that has its own sub-environments."""
    size = 1 if task.kind == WHOLE else size
    return to_local_base_env(make_env(0), make_env, size, seed=task.seed, first_index=first_index)


def play_share(task: Task, samplers: int, number: int, record: RunRecord, host: Host = host_copies) -> None:
    """Sample the share of sampler `number` into `record` and close the environments."""
    parts = shares(task, samplers)
    # A sampler of its own is the driver, number 0 of 0.
    worker = (number + 1, len(parts)) if len(parts) > 1 else (0, 0)
    first_index = parts[number].start
    base_env = host(task, partial(_make, task, worker), len(parts[number]), first_index)
    try:
        sampler = task.sampler(base_env, first_index)
        if not base_env.lockstep:
            # Episodes date timesteps and name agents. Lockstep environments need neither and use the faster loop.
            sampler.keep_episodes()
        batch = sampler.sample()
        record.add_batch(sampler, batch, first_index)
        sampler.finish(batch)
    finally:
        base_env.stop()


def _make(task: Task, worker: tuple[int, int], index: int) -> Any:
    return task.make_env(index, *worker)


_WORKERS = 2


def play_in_workers(task: Task, engine_name: EngineName) -> RunRecord:
    """Play a task in two workers; raise UnsendableError if another process cannot create the environment."""
    engine, record = make_engine(engine_name), RunRecord()
    try:
        workers = [
            engine.start(
                _Worker, task, known_here(task.env, task.settings), number, label=f"worker {number + 1}"
            )
            for number in range(min(_WORKERS, task.num_envs))
        ]
        for worker in workers:
            worker.ask(_Worker.play)
        for worker in workers:
            worker.answer()
            record.add(worker.answer())
    finally:
        engine.stop()
    return record


class _Worker:
    """Plays one share in a worker process."""

    def __init__(self, task: Task, known: RegisteredEnv, number: int) -> None:
        known.register()
        self._task = task
        self._number = number

    def play(self) -> Any:
        """Return the record of this worker's share."""
        record = RunRecord()
        play_share(self._task, _WORKERS, self._number, record)
        return record


ROWS = "--rows"
"""The internal option of `menv verify` that writes the record of one run to a file."""

_HASH_SEEDS = ("1", "2")


class NotHostedError(MenvError):
    """A back-end cannot host this environment; compare the others."""


def play_in_another_process(task: Task) -> RunRecord:
    """Play a task with `menv verify --rows` in another process, which finds the environment by name."""
    name, settings = _name_of(task), _as_json(task.settings)
    seed = next(seed for seed in _HASH_SEEDS if seed != os.environ.get("PYTHONHASHSEED"))
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(import_paths())}
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.npz"
        command = [
            sys.executable, "-m", "menv.verify", name, "--config", settings, "--envs", str(task.num_envs),
            "--steps", str(task.num_envs * task.env_steps), "--seed", str(task.seed), ROWS, str(rows),
            *(word for module in task.modules for word in ("--import", module)),
        ]  # fmt: skip
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode or not rows.exists():
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise NotHostedError(f"another process: it ended with status {done.returncode}: {last}")
        return RunRecord.load(rows)


def _name_of(task: Task) -> str:
    """Return the name by which another process finds the environment."""
    env = task.env
    creator = named_creator(env) if isinstance(env, str) else env
    module, name = getattr(creator, "__module__", None), getattr(creator, "__qualname__", "")
    if isinstance(creator, partial) and isinstance(env, str):
        # A gymnasium id, or a name of another library; the other process reports an id that only this one registered.
        return env
    with suppress(AttributeError, KeyError):
        found: Any = sys.modules[str(module)]
        if module != "__main__" and reduce(getattr, name.split("."), found) is creator:
            return f"{module}:{name}"
    if task.modules and isinstance(env, str):
        # These modules registered the name here.
        return env
    raise NotHostedError(
        f"another process: no name leads to {describe_env(env)}, expected a class or a function at the top of a module "
        "that can be imported; move it there"
    )


def _as_json(settings: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(settings)
    except (TypeError, ValueError) as error:
        raise NotHostedError(
            f"another process: JSON cannot hold these settings ({error}), expected names and numbers; give the others "
            "to the environment in another way"
        ) from error
    if json.loads(text) != settings:
        raise NotHostedError(
            "another process: JSON turns these settings into others, expected dicts with strings as keys, and lists; "
            "write them so"
        )
    return text


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to play a task.

    Attributes:
        name: Its name in reports.
        kinds: The kinds of environments that it can host.
        play: Plays the whole task.
        suspects: Likely causes of a difference, for the report.
        repeats: Whether it repeats the first back-end; a difference then explains those of later back-ends.
        elsewhere: Whether the environments run in other processes.
        on_ray: Whether these are Ray's.
    """

    name: str
    kinds: tuple[str, ...]
    play: Callable[[Task], RunRecord]
    suspects: str = ""
    repeats: bool = False
    elsewhere: bool = False
    on_ray: bool = False


def host_in_vector_env(task: Task, make_env: MakeEnv, size: int, first_index: int) -> Adapter:
    """Host copies of a gymnasium environment in one `VectorEnv`."""
    env = VectorEnv.vectorize_gym_envs(make_env, num_envs=size)
    return to_base_env(env, seed=task.seed, first_index=first_index)


def host_remotely(task: Task, make_env: MakeEnv, size: int, first_index: int, engine: EngineName) -> Adapter:
    """Host copies in two other processes."""
    return to_base_env(
        make_env(0), RemoteEnvSpec(task.env, task.context(0)), size, remote_envs=True,
        remote_envs_per_process=-(-size // 2), engine=engine, seed=task.seed, first_index=first_index,
    )  # fmt: skip


def play_here(task: Task, host: Host = host_copies, samplers: int = 1) -> RunRecord:
    """Play a task in this process with one or several samplers, one after another."""
    record = RunRecord()
    for number in range(min(samplers, task.num_envs)):
        play_share(task, samplers, number, record, host)
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
    play = partial(play_here, host=partial(host_remotely, engine=engine))
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
    Backend("VectorEnv", (SINGLE,), partial(play_here, host=host_in_vector_env), _NOT_ALONE),
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
"""The others are compared with the first one."""
