"""Workers that die or hang: only the episodes that ran in them are lost, and training goes on."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv.callbacks import DefaultCallbacks
from menv.errors import CallOrderError, ConfigError, EnvCrashError, EnvFaultWarning, WorkerLostError
from tests.engines.processes import children, eventually, lives
from tests.workers.crews import Counting, Hasty, running

HERE = "tests.workers.crews"


def kill(pid: int) -> None:
    """Kill a process and wait until it is dead."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not lives(pid))


def train_until_gone(algo: Any, victim: int | None) -> None:
    """Train once, or twice where the victim had sent the fragment of the first iteration ahead."""
    algo.train()
    if victim in algo.worker_pids():
        assert algo.config.overlap
        algo.train()


def test_a_worker_that_is_killed_between_two_iterations_costs_its_own_episodes_only() -> None:
    with running(2) as algo:
        algo.train()
        first, second = algo.worker_pids()
        kill(second)
        with pytest.warns(
            EnvFaultWarning, match=r"worker 2 \(pid \d+\): ended with exit code -9 \(SIGKILL\)"
        ):
            result = algo.train()
        assert result["num_faulty_episodes"] == 2
        assert result["num_worker_restarts"] == 1
        assert result["num_env_steps_sampled_this_iter"] == 128
        assert "worker 2" in result["first_fault"]
        assert algo.worker_pids()[0] == first
        assert algo.worker_pids()[1] != second
        again = algo.train()
        assert again["num_faulty_episodes"] == 0
        assert again["training_iteration"] == 3
        assert again["faulty_episodes_total"] == 2


def test_a_worker_that_is_killed_while_it_samples_is_replaced_in_the_same_iteration() -> None:
    slow = {"env": f"{HERE}:Counting", "env_config": {"length": 50}, "train_batch_size": 12_000}
    with running(2, num_envs_per_worker=4, **slow) as algo:
        algo.sample()
        victim = algo.worker_pids()[0]
        shot = threading.Timer(0.05, kill, (victim,))
        shot.start()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batch = algo.sample()
        shot.join()
        # Wherever the shot fell, the fragment is whole.
        assert batch.env_steps() == 12_000
        if victim not in algo.worker_pids():
            assert any(issubclass(one.category, EnvFaultWarning) for one in caught)
        rows = batch["default_policy"]
        assert set(np.unique(rows["env_id"])) == set(range(8))


@pytest.mark.slow_unless("True")
@pytest.mark.parametrize("overlap", [False, True])
def test_a_replacement_acts_with_the_weights_and_policies_of_now(overlap: bool) -> None:
    names = ["default_policy", "other"]
    mapping = {
        "policies": names[:1],
        "policy_mapping_fn": lambda agent_id, episode, *args, **kwargs: names[0],
    }
    with running(2, multiagent=mapping, overlap=overlap) as algo:
        algo.train()
        algo.add_policy(names[1], policy_mapping_fn=lambda *args, **kwargs: names[1])
        algo.train()
        victim = algo.worker_pids()[1]
        kill(victim)
        with pytest.warns(EnvFaultWarning):
            train_until_gone(algo, victim)
        batch = algo.sample()[names[1]]
        networks = algo.get_policy(names[1]).networks
        fresh = networks.backend.evaluate(1, batch["obs"], None, batch["actions"])
        if not overlap:
            np.testing.assert_allclose(fresh.logp, batch["action_logp"], atol=1e-5)
        assert set(np.unique(batch["env_id"])) == {0, 1, 2, 3}


def test_a_replacement_lives_other_lives_than_the_worker_before_it() -> None:
    with running(1) as algo:
        before = algo.sample()["default_policy"]["obs"]
        kill(algo.worker_pids()[0])
        with pytest.warns(EnvFaultWarning):
            after = algo.sample()["default_policy"]["obs"]
        assert len(before) == len(after)
        assert not np.intersect1d(before[:, 0], after[:, 0]).size


def test_a_simulator_that_ends_its_process_is_shown_with_its_last_words(tmp_path: Path) -> None:
    settings = {"env": f"{HERE}:Dying", "env_config": {"flag": str(tmp_path / "flag")}}
    with running(2, **settings) as algo:
        with pytest.warns(EnvFaultWarning, match=r"SIGSEGV.*; its stderr: .*no licence"):
            result = algo.train()
        assert result["num_env_steps_sampled"] == 128
        assert "no licence" in result["first_fault"]
        assert algo.train()["num_worker_restarts"] == 1


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_ends_the_run_with_the_first_cause() -> None:
    settings = {"env": f"{HERE}:Dying", "env_config": {"always": True}}
    with running(2, **settings) as algo, warnings.catch_warnings():
        warnings.simplefilter("ignore", EnvFaultWarning)
        with pytest.raises(WorkerLostError, match=r"(?s)worker 2 .*SIGSEGV.*no licence"):
            algo.train()


@pytest.mark.slow_unless("deep")
@pytest.mark.parametrize(("deaf", "depth"), [(False, 40), (True, 0)], ids=["deep", "deaf"])
def test_an_environment_that_hangs_is_given_up_with_the_reason(
    deaf: bool, depth: int, tmp_path: Path
) -> None:
    config = {"flag": str(tmp_path / "flag"), "deaf": deaf, "depth": depth}
    with running(2, env=f"{HERE}:Hanging", env_config=config, env_timeout=2.0) as algo:
        with pytest.warns(EnvFaultWarning, match=r"worker 2"):
            result = algo.train()
        assert result["num_env_steps_sampled"] == 128
        assert result["num_faulty_episodes"] == 2
        assert "did not return for env_timeout=2 s" in result["first_fault"]
        assert "os._exit" not in result["first_fault"]


@pytest.mark.filterwarnings("ignore::menv.errors.EnvFaultWarning")
def test_an_environment_that_is_never_there_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("menv.workers.watchdog.CREATION_S", 1.5)
    monkeypatch.setattr("menv.algorithms.rollouts.worker_group.PAUSES", (0.0,))
    said = r"(?s)worker 2 .*1\.5 s.*env_timeout.*crews.py.* in __init__"
    with (
        running(2, env=f"{HERE}:Stuck", env_config={"hasty": Hasty()}, env_timeout=1.0) as algo,
        pytest.raises(WorkerLostError, match=said),
    ):
        algo.train()


def test_an_environment_that_raises_costs_one_episode_in_a_worker_as_it_does_here(tmp_path: Path) -> None:
    for workers in (0, 2):
        config = {"flag": str(tmp_path / f"flag{workers}")}
        with running(workers, env=f"{HERE}:Raising", env_config=config) as algo:
            with pytest.warns(EnvFaultWarning, match="ZeroDivisionError: no wheels"):
                result = algo.train()
            assert result["num_faulty_episodes"] == 1
            assert result["num_env_steps_sampled"] == 128
            assert result.get("num_worker_restarts", 0) == 0


def test_an_environment_that_cannot_be_created_in_a_worker_is_an_error_with_its_traceback() -> None:
    with (
        running(1, env=f"{HERE}:Broken") as algo,
        pytest.raises(EnvCrashError, match="the map is missing") as caught,
    ):
        algo.train()
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert "in worker 1" in str(cause.__cause__)
    assert "crews.py" in str(cause.__cause__)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_worker_whose_environment_could_not_be_created_is_made_again_when_it_is_asked_again(
    tmp_path: Path, overlap: bool
) -> None:
    broken = {"env": f"{HERE}:Broken", "env_config": {"map": str(tmp_path / "map")}}
    with running(1, overlap=overlap, **broken) as algo:
        for ask in (algo.train, algo.train, lambda: algo.call_envs("reset")):
            with pytest.raises(EnvCrashError, match="the map is missing"):
                ask()
        (tmp_path / "map").touch()
        results = [algo.train() for _ in range(2)]
    with running(1, overlap=overlap, **broken) as algo:
        again = [algo.train() for _ in range(2)]
    assert [result["digest"] for result in results] == [result["digest"] for result in again]


def test_stopping_leaves_no_process_behind_and_may_be_done_twice() -> None:
    with running(2, overlap=True) as algo:
        algo.train()
        pids = algo.worker_pids()
        assert len(set(pids)) == 2
        algo.stop()
        assert algo.worker_pids() == []
    eventually(lambda: not any(map(lives, pids)))


@pytest.mark.slow_unless("settings2")
@pytest.mark.parametrize(
    "settings",
    [{"num_workers": 2}, {"num_workers": 2, "overlap": True}, {"num_workers": 0, "remote_worker_envs": True}],
)
def test_stopping_from_another_thread_ends_train_and_is_no_fault(settings: dict[str, Any]) -> None:
    raised: list[BaseException] = []
    before = children()

    def train() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                while True:
                    algo.train()
        except BaseException as error:
            raised.append(error)

    with running(**settings, env=f"{HERE}:Counting", train_batch_size=100_000) as algo:
        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        time.sleep(1.0)
        algo.stop()
        thread.join(60)
        assert [type(error) for error in raised] == [CallOrderError]
    eventually(lambda: children() <= before)


def test_what_cannot_travel_is_named() -> None:
    lock: Any = threading.Lock()

    class Locked(DefaultCallbacks):
        def on_episode_start(self, **kwargs: Any) -> None:
            assert lock

    mapping = {
        "policies": ["default_policy"],
        "policy_mapping_fn": lambda *args, **kwargs: lock and "default_policy",
    }
    named: list[tuple[dict[str, Any], str]] = [
        ({"multiagent": mapping}, "config['multiagent']['policy_mapping_fn']'s variable 'lock' is a lock"),
        ({"env": lambda context: lock and Counting(context)}, "config['env']'s variable 'lock' is a lock"),
        ({"callbacks": [Locked]}, "config['callbacks'][0].on_episode_start's variable 'lock' is a lock"),
    ]
    for settings, told in named:
        with pytest.raises(ConfigError, match=re.escape(told)), running(1, **settings) as algo:
            algo.train()


# Workers that take the place of lost ones, and cannot begin at once.


def missed(folder: Path, where: str, absent: int) -> dict[str, Any]:
    """Return the settings of environments whose successors are `absent` for so many tries."""
    return {
        "env": f"{HERE}:Missed",
        "num_envs_per_worker": 1,
        "env_config": {"flag": str(folder / "flag"), "where": where, "absent": absent},
    }


@pytest.mark.slow
def test_successors_that_can_never_begin_end_the_run_with_both_causes_and_it_continues_when_they_can(
    tmp_path: Path,
) -> None:
    with running(1, **missed(tmp_path, "create", 3)) as algo:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EnvFaultWarning)
            said = r"(?s)worker 1 .*exit code 3.*first of 4 .*worker 1: .*no seat free"
            with pytest.raises(WorkerLostError, match=said):
                algo.train()
        assert algo.train()["num_env_steps_sampled"] == 128
