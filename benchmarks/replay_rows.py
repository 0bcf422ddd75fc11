"""The rows of the table for replay buffers: drawing by priority against drawing uniformly."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.rows import Effort, Finding, Row, alternate
from menv.algorithms.dqn.dqn import DQNConfig
from menv.algorithms.dqn.learner import DQNLearner
from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.off_policy.replay_buffer import ReplayBuffer
from menv.inference.heads.q_values import QValues

ROWS_HELD = 1_000_000
UNIFORM = "x uniform"
_OBS = 64


def _columns(rows: int, width: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return `rows` transitions with observations of `width` numbers."""
    return {
        "obs": rng.standard_normal((rows, width), np.float32),
        "actions": rng.integers(0, 2, rows),
        "returns": rng.random(rows, np.float32),
        "discounts": np.full(rows, 0.99, np.float32),
        "next_obs": rng.standard_normal((rows, width), np.float32),
    }


def _full(prioritized: bool, width: int, rows: int) -> ReplayBuffer:
    """Return a full buffer, the priorities of all rows set."""
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(rows, prioritized=prioritized)
    for _ in range(10):
        buffer.add(_columns(rows // 10, width, rng))
    for part in np.split(np.arange(rows), 10):
        buffer.update_priorities(part, rng.standard_normal(len(part)))
    return buffer


def drawing(count: int) -> Callable[[Effort], Finding]:
    """Compare samples per second: drawing `count` rows, gathering their columns and setting their priorities."""

    def measure(effort: Effort) -> Finding:
        rows = 10_000 if effort.quick else ROWS_HELD
        uniform, prioritized = (_full(kind, _OBS, rows) for kind in (False, True))
        rng = np.random.default_rng(1)
        errors = [rng.standard_normal(count) for _ in range(50)]
        batches = effort.steps(20_000)

        def rate(buffer: ReplayBuffer) -> float:
            start = time.perf_counter()
            for _, td_errors in zip(range(batches), itertools.cycle(errors)):
                buffer.update_priorities(buffer.sample(count, rng).indices, td_errors)
            return batches * count / (time.perf_counter() - start)

        return alternate(lambda: rate(uniform), lambda: rate(prioritized), effort.repeats)

    return measure


def learning(effort: Effort) -> Finding:
    """Compare samples per second of whole gradient steps of DQN, an MLP of 2x64 and batches of 256."""
    torch.set_num_threads(1)
    rows, count = (10_000 if effort.quick else ROWS_HELD), 256
    spec = StockSpec(_OBS, QValues((2,)), (64, 64), "relu", dueling=True)
    batches = effort.steps(1_000)

    def rate(prioritized: bool) -> Callable[[], float]:
        buffer: Any = {"capacity": rows, "prioritized_replay": prioritized}
        one = DQNLearner(
            spec, DQNConfig(train_batch_size=count, replay_buffer_config=buffer), spec.first_weights(0), 0
        )
        one.replay = _full(prioritized, _OBS, rows)

        def run() -> float:
            start = time.perf_counter()
            one.gradient_steps(batches)
            return batches * count / (time.perf_counter() - start)

        return run

    return alternate(rate(False), rate(True), effort.repeats)


ROWS = (
    Row(
        name="replay_256",
        text=f"prioritised replay, 1M rows of 2x{_OBS} floats, draw and update 256",
        unit=UNIFORM,
        reach=0.5,
        aim=0.8,
        measure=drawing(256),
    ),
    Row(
        name="replay_32",
        text=f"prioritised replay, 1M rows of 2x{_OBS} floats, draw and update 32",
        unit=UNIFORM,
        reach=0.5,
        aim=0.8,
        measure=drawing(32),
    ),
    Row(
        name="replay_learning",
        text=f"DQN by prioritised replay, 1M rows of 2x{_OBS} floats, batch 256",
        unit=UNIFORM,
        reach=0.5,
        aim=0.8,
        measure=learning,
    ),
)
