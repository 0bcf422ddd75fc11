"""Workers that are lost while a checkpoint is written or taken up: what was sampled, and what was lost, counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from menv.algorithms import PPO
from menv.algorithms.rollouts.workers import Workers
from tests.workers.crews import running
from tests.workers.test_lost_workers import kill

pytestmark = pytest.mark.filterwarnings("ignore::menv.errors.EnvFaultWarning")


@pytest.mark.parametrize("moment", ["begin_again", "sure"])
def test_a_worker_that_is_lost_while_a_checkpoint_is_taken_up_counts_what_was_sampled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
) -> None:
    with running(2) as algo:
        before = [algo.train() for _ in range(3)][-1]
        algo.save(tmp_path)
        method = getattr(Workers, moment)

        def kill_afterwards(workers: Workers, *args: Any) -> Any:
            found = method(workers, *args)
            pid = workers.pids[1]
            assert pid is not None
            kill(pid)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(Workers, moment, kill_afterwards)
            algo.restore(tmp_path)
        result = algo.train()
        assert result["num_env_steps_sampled_this_iter"] == 128
        assert result["num_env_steps_sampled"] == before["num_env_steps_sampled"] + 128
        assert result["num_agent_steps_sampled"] == before["num_agent_steps_sampled"] + 128


def test_episodes_of_a_worker_that_is_found_lost_by_save_are_counted_in_the_checkpoint(
    tmp_path: Path,
) -> None:
    with running(2) as algo:
        algo.train()
        kill(algo.worker_pids()[1])
        algo.save(tmp_path)
        expected = algo.train()
    with PPO.from_checkpoint(tmp_path) as again:
        found = again.train()
    for key in ("num_faulty_episodes", "faulty_episodes_total", "first_fault"):
        assert found[key] == expected[key], key
