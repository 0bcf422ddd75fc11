"""`soak` runs an environment for minutes and reports what grows: memory, open files, threads, child processes.

Untrained policies that explore act in episode after episode. One sampler steps sub-environments of this process, which
is measured; with workers another one steps some in other processes, which are killed now and then. `menv soak` prints
the report.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from menv.algorithms.algorithm import check_packages
from menv.algorithms.config.field_checks import check_number
from menv.algorithms.crash_capsules import CrashCapsules
from menv.checking.check import running
from menv.errors import ConfigError, MenvError, MissingExtraError
from menv.registry import import_first
from menv.sampling.sampler import Sampler
from menv.verify.verify import WHOLE, Task, host_copies
from menv.workers.convert import to_base_env
from menv.workers.process_engine import in_a_line
from menv.workers.registered_envs import RemoteEnvSpec

_FRAGMENT = 25
"""Env steps of a sub-environment between two looks at the clock."""
_MEASUREMENTS, _CHURNS = 160, 12
_BLOCKS, _SURE = 8, 4.0
"""Means of so many blocks of measurements make a line, whose slope must exceed so many of its standard errors."""
_FEWEST, _LONGER_S = 32, 60.0
"""Measurements for which the run takes longer than it was asked to, and by how many seconds at most."""
LEAST = {"memory_mb": 8.0, "files": 3.0, "threads": 3.0, "processes": 3.0}
"""Growth over the second half of the run that counts; less may be noise."""
_MOST_OF_A_CAUSE = 5


@dataclass(frozen=True, slots=True)
class Trend:
    """How a figure changed over the second half of the run.

    Attributes:
        per_hour: Slope by least squares.
        error: Standard error of the slope.
        growth: The slope times the time.
    """

    per_hour: float
    error: float
    growth: float


@dataclass(slots=True)
class SoakReport:
    """What a soak found; `dataclasses.asdict` makes JSON of it.

    Attributes:
        env: The environment's name.
        seconds: How long it ran.
        env_steps: Env steps of all sub-environments.
        episodes: Episodes that ended.
        kills: Worker processes that were killed, and replaced.
        faults: The first five faults of each cause in one line each, with the path of the capsule.
        ended: The error that ended the soak early, "" without one.
        trends: By figure, of this process.
        grows: The figures that grow.
    """

    env: str
    seconds: float = 0.0
    env_steps: int = 0
    episodes: int = 0
    kills: int = 0
    faults: list[str] = field(default_factory=list)
    ended: str = ""
    trends: dict[str, Trend] = field(default_factory=dict)
    grows: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing grows and no fault ended the soak."""
        return not self.grows and not self.ended

    def __str__(self) -> str:
        verdict = f"{', '.join(self.grows)} grow" if self.grows else "nothing grows"
        rate = f"{self.env_steps} env steps, {self.env_steps / self.seconds:.0f} a second"
        lines = [f"{self.env}: {verdict} ({self.seconds:.0f} s, {rate}, {self.episodes} episodes)"]
        lines += [
            f"  {name}: {round(one.per_hour, 1) + 0.0:+} an hour, standard error {one.error:.1f}"
            for name, one in self.trends.items()
        ]
        lines += [f"  {self.kills} worker processes were killed and replaced"] * bool(self.kills)
        lines += [f"  fault: {line}" for line in self.faults]
        return "\n".join([*lines, *[f"  ended: {self.ended}"] * bool(self.ended)])


def soak(
    env: Any,
    config: Mapping[str, Any] | None = None,
    *,
    seconds: float = 600.0,
    num_envs: int = 2,
    workers: int = 0,
    seed: int = 0,
    modules: Sequence[str] = (),
) -> SoakReport:
    """Run an environment for a while and look for what grows.

    Args:
        env: As for an algorithm.
        config: Settings as for an algorithm, such as `env_config`.
        seconds: How long.
        num_envs: Sub-environments in this process, and in each worker process.
        workers: Processes with more of them, one of which is killed twelve times, and replaced.
        seed: Seed of resets, sampled actions and weights.
        modules: Modules, or paths of .py files, to import first.

    Raises:
        ConfigError: A setting is wrong.
        MissingExtraError: onnx is not installed, or the memory of this process cannot be read without psutil.
    """
    check_packages("soak", "onnx")
    check_number("soak", "seconds", seconds, 0, 600_000, positive=True)
    import_first(modules, "soak: module")
    _resident_mb()
    task = Task(env, config, num_envs, _FRAGMENT * num_envs, seed)
    if workers and task.kind == WHOLE:
        raise ConfigError(
            f"soak: workers={workers} with a vectorised environment, expected 0; it steps its own copies"
        )
    return _Soak(task, seconds, workers).run()


class _Soak:
    def __init__(self, task: Task, seconds: float, workers: int) -> None:
        self._task, self._seconds, self._workers = task, seconds, workers
        self._report = SoakReport(task.name)
        self._capsules = CrashCapsules("soak", task.config)
        self._causes: Counter[tuple[Any, ...]] = Counter()
        self._samplers: list[Sampler] = []

    def run(self) -> SoakReport:
        report, began = self._report, time.monotonic()
        measured: list[tuple[float, ...]] = []
        try:
            self._samplers = [self._here(), *([self._elsewhere()] if self._workers else [])]
            # The first fragments load libraries.
            self._sample()
            began = time.monotonic()
            self._sample_until(began, measured)
            if len(measured) < 2 * _BLOCKS:
                report.ended = (
                    f"{len(measured)} measurements, expected {2 * _BLOCKS} at least; run it for longer"
                )
        except MenvError as error:
            for sampler in self._samplers:
                sampler.crashes.attach(error)
            capsule = "" if error._capsule is None else self._capsules.write(error._capsule)
            report.ended = in_a_line(str(error)) + capsule
        finally:
            for sampler in self._samplers:
                with suppress(Exception):
                    sampler.base_env.stop()
        report.seconds, report.trends = time.monotonic() - began, _trends(measured)
        for name, one in report.trends.items():
            if one.growth >= LEAST[name] and one.per_hour > _SURE * one.error:
                report.grows.append(name)
        return report

    def _sample_until(self, began: float, measured: list[tuple[float, ...]]) -> None:
        churned = 0
        while (passed := (time.monotonic() - began) / self._seconds) < 1 or (
            len(measured) < _FEWEST and time.monotonic() - began < self._seconds + _LONGER_S
        ):
            self._sample()
            if passed * _MEASUREMENTS >= len(measured):
                measured.append((time.monotonic(), *_figures()))
            if passed * _CHURNS >= churned + 1:
                churned += 1
                self._samplers[0].base_env.stop()
                self._samplers[0] = self._here()
                for sampler in self._samplers[1:]:
                    self._kill_one(sampler.base_env, churned)

    def _sample(self) -> None:
        report = self._report
        for sampler in self._samplers:
            before = sampler.env_steps
            sampler.finish(sampler.sample())
            taken = sampler.metrics.take()
            report.env_steps += sampler.env_steps - before
            report.episodes += taken.episodes
            for record in taken.faults:
                cause = tuple(record["origin"])
                self._causes[cause] += 1
                # Processes are lost because the soak kills them.
                if cause[0] != "WorkerLostError" and self._causes[cause] <= _MOST_OF_A_CAUSE:
                    report.faults.append(f"{record['line']}{self._capsules.write(record)}")

    def _here(self) -> Sampler:
        task = self._task
        return task.sampler(host_copies(task, task.make_env, task.num_envs, 0), 0)

    def _elsewhere(self) -> Sampler:
        task, size = self._task, self._task.num_envs
        remote = to_base_env(
            task.make_env(0), RemoteEnvSpec(task.env, task.context(0)), size * self._workers, remote_envs=True,
            remote_envs_per_process=size, engine="process", seed=task.seed, first_index=size,
        )  # fmt: skip
        return task.sampler(remote, size)

    def _kill_one(self, remote: Any, number: int) -> None:
        if pids := [pid for pid in remote.pids if pid]:
            with suppress(ProcessLookupError):
                os.kill(pids[number % len(pids)], signal.SIGKILL)
                self._report.kills += 1


def _figures() -> tuple[float, ...]:
    found = running()
    threads = sum(isinstance(one, threading.Thread) for one in found)
    return _resident_mb(), float(len(os.listdir("/dev/fd"))), float(threads), float(len(found) - threads)


def _resident_mb() -> float:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError(
            "soak: the memory of this process is unknown without /proc; run: pip install psutil"
        ) from None
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def _trends(measured: Sequence[tuple[float, ...]]) -> dict[str, Trend]:
    half = np.array(measured[len(measured) // 2 :], np.float64)
    if len(half) < _BLOCKS:
        return {}
    times, *figures = np.array([block.mean(0) for block in np.array_split(half, _BLOCKS)]).T
    span, found = half[-1, 0] - half[0, 0], {}
    for name, values in zip(LEAST, figures, strict=True):
        (slope, _), covariance = np.polyfit((times - times[0]) / 3600, values, 1, cov=True)
        found[name] = Trend(float(slope), float(covariance[0, 0] ** 0.5), float(slope * span / 3600))
    return found
