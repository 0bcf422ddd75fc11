"""A worker is killed every 3 seconds for 2 minutes: no row is learned from twice, and none is missing in the counts."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from menv import DefaultCallbacks
from tests.workers.churn import quiet
from tests.workers.crews import running

pytestmark = pytest.mark.soak

SECONDS, EVERY = 120.0, 3.0


class Rows(DefaultCallbacks):
    """Counts the rows that are learned from, and those that came before."""

    seen: set[tuple[int, int]]
    repeated = 0

    def on_learn_on_batch(self, *, train_batch: Any, **kwargs: Any) -> None:
        rows = [*zip(train_batch["eps_id"].tolist(), train_batch["t"].tolist(), strict=True)]
        Rows.repeated += len(rows) - len(set(rows) - Rows.seen)
        Rows.seen.update(rows)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("engine", ["process", "ray"])
def test_workers_that_are_killed_every_3_seconds_lose_nothing(
    engine: str, overlap: bool, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("running_ray")
    Rows.seen, Rows.repeated = set(), 0
    over, kills = threading.Event(), 0
    settings = {"engine": engine, "overlap": overlap, "train_batch_size": 2000, "callbacks": Rows}
    with quiet(), running(2, num_envs_per_worker=4, **settings) as algo:
        algo.train()

        def shoot() -> None:
            nonlocal kills
            while not over.wait(EVERY):
                # In turn: on Ray a replacement may take longer than that.
                pid = next(iter(algo.worker_pids()[kills % 2 :]), None)
                with suppress(ProcessLookupError):
                    if pid is not None:
                        os.kill(pid, signal.SIGKILL)
                        kills += 1

        shooter = threading.Thread(target=shoot)
        shooter.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            algo.train()
        over.set()
        shooter.join()
        result = algo.train()
    assert kills > 10
    # A kill that hits a worker which is being replaced anyway is one replacement.
    assert kills / 2 < result["num_worker_restarts"] <= kills
    assert Rows.repeated == 0
    assert len(Rows.seen) == result["num_env_steps_trained"] == 2000 * result["training_iteration"]
