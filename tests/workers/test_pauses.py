"""A frozen process is given up after `env_timeout`; a pause of all processes, however long, costs nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from menv.errors import EnvFaultWarning
from tests.engines.processes import children
from tests.house.sources import ROOT
from tests.workers.crews import running

HERE = "tests.workers.crews"
REMOTE = {"remote_worker_envs": True, "num_envs_per_worker": 2}
SCRIPT = f"""
import json, sys
from tests.workers.crews import running

if __name__ == "__main__":
    with running(env="{HERE}:Slow", env_timeout=1.0, train_batch_size=512, **json.loads(sys.argv[1])) as algo:
        print("ready", flush=True)
        result = algo.train()
        print(result["num_faulty_episodes"] + result.get("num_worker_restarts", 0))
"""


def test_a_worker_that_is_frozen_in_a_step_costs_its_own_episodes_only(tmp_path: Path) -> None:
    config = {"flag": str(tmp_path / "flag")}
    with running(2, env=f"{HERE}:Freezing", env_config=config, env_timeout=1.0) as algo:
        trains_without_the_frozen(algo)


def trains_without_the_frozen(algo: Any) -> None:
    with pytest.warns(EnvFaultWarning, match="env_timeout"):
        result = algo.train()
    assert result["num_worker_restarts"] == 1
    assert result["num_env_steps_sampled_this_iter"] == 128
    assert algo.train()["num_faulty_episodes"] == 0


def test_a_frozen_remote_environment_costs_its_own_episodes_only(tmp_path: Path) -> None:
    config = {"flag": str(tmp_path / "flag")}
    with running(0, env=f"{HERE}:Freezing", env_config=config, env_timeout=1.0, **REMOTE) as algo:
        with pytest.warns(EnvFaultWarning, match="env_timeout"):
            result = algo.train()
        assert result["num_faulty_episodes"] == 1
        assert algo.train()["num_faulty_episodes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("settings", ['{"num_workers": 2}', '{"num_workers": 0, "remote_worker_envs": true}'])
def test_a_pause_of_all_processes_is_no_hang(settings: str) -> None:
    command = [sys.executable, "-c", SCRIPT, settings]
    env: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        time.sleep(0.5)
        everyone = [program.pid, *descendants(program.pid)]
        assert len(everyone) > 2
        for number, pause in ((signal.SIGSTOP, 2.5), (signal.SIGCONT, 0.0)):
            for pid in everyone:
                os.kill(pid, number)
            time.sleep(pause)
        out, _ = program.communicate(timeout=100)
    assert program.returncode == 0
    assert out == "0\n"


def descendants(pid: int) -> list[int]:
    own = list(children(pid))
    return [*own, *(later for one in own for later in descendants(one))]
