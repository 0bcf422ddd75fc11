"""Training reaches its bar while workers are killed, with and without overlap."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from menv.errors import EnvFaultWarning
from tests.workers.crews import running


@contextmanager
def killing(algo: Any, seconds: float) -> Iterator[list[int]]:
    """Kill one worker after the other, the first at once, then one every so many seconds; yield the killed."""
    done, killed = threading.Event(), []

    def kill() -> None:
        turn = 0
        while True:
            turn += 1
            pid = algo.worker_pids()[turn % 2]
            # One that was killed before may not have been missed yet, let alone replaced.
            with suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            if done.wait(seconds):
                break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EnvFaultWarning)
            yield killed
    finally:
        done.set()
        thread.join()


def best(bar: float, kill_every: float, iterations: int, **settings: Any) -> tuple[float, int, int]:
    """Return the best mean return up to a bar, how many workers were killed, and the iterations that it took.

    The first one is killed while the second iteration runs, however fast the machine learns.
    """
    with running(
        2, num_envs_per_worker=8, train_batch_size=2048, sgd_minibatch_size=256, num_sgd_iter=4, lr=3e-3, model={},
        **settings,
    ) as algo:  # fmt: skip
        algo.train()
        found = 0.0
        with killing(algo, kill_every) as killed:
            for iteration in range(2, iterations + 1):
                result = algo.train()
                assert result["training_iteration"] == iteration
                assert result["num_env_steps_sampled"] == 2048 * iteration
                # One that is killed while it takes the place of another one is replaced once.
                assert result["num_worker_restarts"] <= len(killed)
                found = max(found, result["episode_reward_mean"] or 0.0)
                if found >= bar:
                    break
        return found, len(killed), iteration


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("engine", ["process", "ray"])
def test_cartpole_is_solved_while_a_worker_is_killed_every_five_seconds(
    overlap: bool, engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("running_ray")
    found, killed, _ = best(450.0, 5.0, 300, overlap=overlap, engine=engine)
    assert found >= 450.0
    assert killed >= 1
