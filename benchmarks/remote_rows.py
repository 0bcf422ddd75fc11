"""The rows of the table about environments in other processes: what they gain where a step takes long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.rows import Effort, Finding, Row, alternate
from menv.algorithms import PPO
from menv.workers.engine import EngineName

_ENVS = 8
_STEP_S = 0.05


class Slow(gym.Env[Any, Any]):
    """Takes 50 ms for a step, as one that asks a simulator does."""

    observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: Any) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(_STEP_S)
        self.steps += 1
        return np.zeros(8, np.float32), 0.0, self.steps == 1_000, False, {}


def slow(engine: EngineName, wait_ms: int) -> Callable[[Effort], Finding]:
    """Return what compares remote environments with stepping one after another, sampler and policy included."""

    def measure(effort: Effort) -> Finding:
        length = 2 if effort.quick else 20
        config = {"env": Slow, "num_envs_per_worker": _ENVS, "rollout_fragment_length": length}
        far = {"remote_worker_envs": True, "remote_env_batch_wait_ms": wait_ms, "engine": engine}
        with PPO(config=config) as here, PPO(config={**config, **far}) as there:
            there.sample()
            return alternate(lambda: _rate(here), lambda: _rate(there), effort.repeats)

    return measure


def _rate(algo: PPO) -> float:
    """Return env steps per second of one fragment."""
    start = time.perf_counter()
    return algo.sample().env_steps() / (time.perf_counter() - start)


_LOCK_STEP_MS = 99_999_999
_WAYS: tuple[tuple[EngineName, str, str, int], ...] = (
    ("process", "", "0 ms", 0),
    ("process", "_in_step", "in lock step", _LOCK_STEP_MS),
    ("ray", "", "0 ms", 0),
)
ROWS = tuple(
    Row(
        name=f"remote_slow_envs_{engine}{name}", text=f"8 envs of 50 ms a step, remote on {engine}, {text}",
        unit="x one after another", reach=7.0, aim=7.8, measure=slow(engine, wait),
    )
    for engine, name, text, wait in _WAYS
)  # fmt: skip
