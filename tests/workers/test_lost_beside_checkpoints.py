"""Workers that are lost while a checkpoint is written or taken up: what was sampled, and what was lost, counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from menv.algorithms import PPO
from menv.errors import EnvCrashError, WorkerLostError
from tests.workers.crews import running, same, weights_of
from tests.workers.drivers import ROLLOUTS, WORKERS
from tests.workers.test_lost_workers import kill

pytestmark = pytest.mark.filterwarnings("ignore::menv.errors.EnvFaultWarning")


@pytest.mark.slow_unless("restart")
@pytest.mark.parametrize("moment", ["restart", "call"])
def test_a_worker_that_is_lost_while_a_checkpoint_is_taken_up_counts_what_was_sampled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
) -> None:
    with running(2) as algo:
        before = [algo.train() for _ in range(3)][-1]
        algo.save(tmp_path)
        owner = WORKERS if moment == "call" else ROLLOUTS
        method = getattr(owner, moment)

        def kill_afterwards(workers: Any, *args: Any) -> Any:
            found = method(workers, *args)
            pid = getattr(workers, "workers", workers).pids[1]
            assert pid is not None
            kill(pid)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(owner, moment, kill_afterwards)
            algo.restore(tmp_path)
        result = algo.train()
        assert result["num_env_steps_sampled_this_iter"] == 128
        assert result["num_env_steps_sampled"] == before["num_env_steps_sampled"] + 128
        assert result["num_agent_steps_sampled"] == before["num_agent_steps_sampled"] + 128


FILTERED: dict[str, Any] = {
    "observation_filter": "MeanStdFilter",
    "agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})],
}


_ALSO = [
    pytest.param(settings, marks=pytest.mark.slow) for settings in (FILTERED, {"remote_worker_envs": True})
]


@pytest.mark.parametrize("settings", [{}, *_ALSO])
def test_a_run_that_has_lost_workers_resumes_alike_here_and_in_a_new_algorithm(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with running(2, **settings) as algo:
        algo.train()
        for _ in range(2):
            kill(algo.worker_pids()[0])
            algo.train()
        algo.save(tmp_path)
        # Another one is lost after the checkpoint, so that this run's workers are others than those of then.
        kill(algo.worker_pids()[1])
        algo.train()
        algo.restore(tmp_path)
        expected = [algo.train()["digest"] for _ in range(2)]
        wanted = weights_of(algo)
    with PPO.from_checkpoint(tmp_path) as again:
        assert [again.train()["digest"] for _ in range(2)] == expected
        assert same(weights_of(again), wanted)


@pytest.mark.slow_unless("raised")
@pytest.mark.parametrize("raises", [False, True], ids=["lost", "raised"])
def test_a_run_that_all_workers_have_ended_can_be_saved_and_continues(raises: bool, tmp_path: Path) -> None:
    away = tmp_path / "away"
    settings = {"env": "tests.workers.crews:Away", "env_config": {"away": str(away), "raises": raises}}
    ends = EnvCrashError if raises else WorkerLostError
    with running(2, **settings) as algo:
        algo.train()
        weights = weights_of(algo)
        away.touch()
        with pytest.raises(ends):
            algo.train()
        algo.save(tmp_path / "run")
        away.unlink()
        if raises:
            # What the other one has raised was not told by `save`.
            with pytest.raises(ends):
                algo.train()
        assert algo.train()["training_iteration"] == 2
    with PPO.from_checkpoint(tmp_path / "run", config={"env": settings["env"]}) as again:
        assert again.iteration == 1
        assert same(weights_of(again), weights)
        assert again.train()["training_iteration"] == 2
