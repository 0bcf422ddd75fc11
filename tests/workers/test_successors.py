"""Workers that take the place of lost ones, and cannot begin at once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from menv.errors import EnvFaultWarning, WorkerLostError
from tests.workers.crews import running

HERE = "tests.workers.crews"


def missed(folder: Path, where: str, absent: int) -> dict[str, Any]:
    """Return the settings of environments whose successors are `absent` for so many tries."""
    return {
        "env": f"{HERE}:Missed",
        "num_envs_per_worker": 1,
        "env_config": {"flag": str(folder / "flag"), "where": where, "absent": absent},
    }


@pytest.mark.slow_unless("create-True", "reset-False")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("where", ["create", "reset"])
def test_a_successor_whose_environment_cannot_begin_is_followed_by_another_one(
    where: str, overlap: bool, tmp_path: Path
) -> None:
    with running(1, overlap=overlap, **missed(tmp_path, where, 1)) as algo:
        with pytest.warns(EnvFaultWarning, match="worker 1") as caught:
            result = algo.train()
        assert result["num_env_steps_sampled"] == 128
        assert result["num_worker_restarts"] == 2
    told = [str(one.message) for one in caught]
    assert "ended with exit code 3" in told[0]
    assert told[1].startswith("worker 1: took the place of a lost one and could not begin: env ")
    assert "ConnectionRefusedError: the simulator has no seat free" in told[1]


@pytest.mark.slow
def test_successors_that_can_never_begin_end_the_run_with_both_causes_and_it_goes_on_when_they_can(
    tmp_path: Path,
) -> None:
    with running(1, **missed(tmp_path, "create", 3)) as algo:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EnvFaultWarning)
            said = r"(?s)worker 1 .*exit code 3.*the first of 4 times .*the last: worker 1: .*no seat free"
            with pytest.raises(WorkerLostError, match=said):
                algo.train()
        assert algo.train()["num_env_steps_sampled"] == 128


def test_a_worker_of_evaluations_is_followed_in_the_same_way(tmp_path: Path) -> None:
    settings = missed(tmp_path, "create", 1)
    with running(0, evaluation_num_workers=1, **settings) as algo:
        with pytest.warns(EnvFaultWarning) as caught:
            told = algo.evaluate()["evaluation"]
        assert [" took the place " in str(one.message) for one in caught] == [False, True]
        assert told["episodes_this_iter"] == algo.config.evaluation_duration
