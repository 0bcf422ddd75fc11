"""The row of the table for recordings: reading whole episodes against decoding their Parquet file bare."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.rows import Effort, Finding, Row, alternate
from menv.base_env import ExternalSteps
from menv.offline import RecordedEpisode, RecordedTrajectory, read_episodes, write_episodes

_LENGTH = 200


def _written(path: Path, rows: int) -> int:
    """Write episodes of `_LENGTH` steps with observations of CartPole; return the rows."""
    rng, spaces = np.random.default_rng(0), (gym.spaces.Box(-9, 9, (4,), np.float32), gym.spaces.Discrete(2))
    episodes = []
    for seed in range(-(-rows // (_LENGTH + 1))):
        steps = ExternalSteps(
            rng.uniform(-1, 1, (_LENGTH + 1, 4)).astype(np.float32), rng.integers(0, 2, _LENGTH), np.ones(_LENGTH),
            True, env_t=np.arange(_LENGTH + 1),
        )  # fmt: skip
        episodes.append(
            RecordedEpisode([RecordedTrajectory("agent0", steps, *spaces, "default_policy")], seed)
        )
    write_episodes(path, episodes)
    return len(episodes) * (_LENGTH + 1)


def _to_numpy(array: Any) -> Any:
    """Return the numbers of a column, without a Python object for each row."""
    if pa.types.is_dictionary(array.type):
        return array.indices.to_numpy(zero_copy_only=False), array.dictionary.to_pylist()
    while pa.types.is_nested(array.type):
        array = array.flatten()
    return array.to_numpy(zero_copy_only=False)


def reading(effort: Effort) -> Finding:
    """Compare rows per second: episodes with arrays for each trajectory, and all columns as arrays."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "episodes.parquet")
        rows = _written(path, 2_000 if effort.quick else 400_000)

        def bare() -> float:
            start = time.perf_counter()
            with pq.ParquetFile(path, memory_map=True, read_dictionary=["agent", "policy"]) as file:
                for number in range(file.num_row_groups):
                    for column in file.read_row_group(number, use_threads=False).columns:
                        _to_numpy(column.combine_chunks())
            return rows / (time.perf_counter() - start)

        def ours() -> float:
            start = time.perf_counter()
            steps = sum(
                len(one.steps.rewards) for episode in read_episodes(path) for one in episode.trajectories
            )
            assert steps == rows * _LENGTH // (_LENGTH + 1)
            return rows / (time.perf_counter() - start)

        return alternate(bare, ours, effort.repeats)


ROWS = (
    Row(
        name="offline_reading",
        text=f"recorded episodes of {_LENGTH} steps as arrays, against decoding their Parquet file",
        unit="x bare",
        reach=0.5,
        aim=0.8,
        measure=reading,
    ),
)
