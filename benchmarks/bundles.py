"""The rows of the table for policies on a disk: how soon, how small and how quickly they act."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import processes
from benchmarks.rows import Effort, Finding, Row, median_seconds
from menv import Policy
from menv.algorithms import PPO


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder with a policy of two layers of 64 for CartPole."""
    with (
        tempfile.TemporaryDirectory() as home,
        PPO(env="CartPole-v1", config={"seed": 0, "model": {"fcnet_hiddens": [64, 64]}}) as algorithm,
    ):
        yield algorithm.export_policy_checkpoint(Path(home) / "policy")


def _runs(effort: Effort) -> list[processes.Run]:
    with _folder() as folder:
        return [processes.run("-m", "benchmarks.first_action", folder) for _ in effort.seeds(9)]


def first_action(effort: Effort) -> Finding:
    """Time processes from their start to the first action of a policy that they load."""
    return median_seconds([run.seconds for run in _runs(effort)])


def memory(effort: Effort) -> Finding:
    """Return the most memory that such processes had."""
    megabytes = [run.result["megabytes"] for run in _runs(effort)]
    return Finding(value=statistics.median(megabytes), rates=megabytes)


def one_action(effort: Effort) -> Finding:
    """Time single calls of `policy.act`, each with an observation of its own."""
    with _folder() as folder:
        policy = Policy.from_checkpoint(folder)
    assert isinstance(policy, Policy)
    shown = np.random.default_rng(0).uniform(-0.2, 0.2, (1000, 4)).astype(np.float32)
    medians = []
    for _ in range(effort.repeats):
        times = []
        for obs in shown[: effort.steps(20_000)]:
            begin = time.perf_counter()
            policy.act(obs)
            times.append(time.perf_counter() - begin)
        medians.append(1e6 * statistics.median(times))
    return Finding(value=statistics.median(medians), rates=medians)


ROWS = (
    Row(
        name="bundle_first_action",
        text="process start to a loaded policy's first action",
        unit="s",
        reach=0.6,
        aim=0.35,
        measure=first_action,
        at_most=True,
    ),
    Row(
        name="bundle_memory",
        text="most memory of that process",
        unit="MB",
        reach=90.0,
        aim=70.0,
        measure=memory,
        at_most=True,
    ),
    Row(
        name="bundle_act",
        text="policy.act on one observation, median",
        unit="us",
        reach=60.0,
        aim=30.0,
        measure=one_action,
        at_most=True,
    ),
)
