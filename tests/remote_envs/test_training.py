"""Algorithms whose sub-environments live in other processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from menv import DefaultCallbacks, to_base_env
from menv.algorithms import PPO
from menv.env_context import EnvContext
from menv.errors import ConfigError, EnvCrashError, EnvFaultWarning
from tests.checkpoints.runs import SMALL, by_seat, trained, weights_of
from tests.contract.adapters import Watch, held, nested
from tests.contract.remote import LOCK_STEP, Make, remote
from tests.contract.scripted import IRREGULAR, SOLO, TOGETHER, TURNS, seen
from tests.inside import base_env
from tests.interrupting import raised_at
from tests.remote_envs.doomed import Fate
from tests.remote_envs.far import Counting, Stuck

TWO: dict[str, Any] = {"policies": ["a", "b"], "policy_mapping_fn": by_seat}
FAR: dict[str, Any] = {"remote_worker_envs": True, "engine": "process"}


WHOLE = {"batch_mode": "complete_episodes"}
BY_ROWS = {"multiagent": {**TWO, "count_steps_by": "agent_steps"}}


@pytest.mark.slow_unless("tictactoe-more1-0", "CartPole-v1-more2-*")
@pytest.mark.parametrize(
    ("env", "more", "wait"),
    [
        ("CartPole-v1", {}, 0),
        ("tictactoe", {"multiagent": TWO}, 0),
        ("CartPole-v1", WHOLE, 99_999_999),
        ("tictactoe", BY_ROWS, 0),
        pytest.param("CartPole-v1", {}, 99_999_999, marks=pytest.mark.slow),
        pytest.param("CartPole-v1", WHOLE, 0, marks=pytest.mark.slow),
        pytest.param("tictactoe", BY_ROWS, 99_999_999, marks=pytest.mark.slow),
    ],
)
def test_training_is_the_same_as_in_one_process(env: str, more: dict[str, Any], wait: int) -> None:
    results = []
    for far in ({}, {**FAR, "remote_env_batch_wait_ms": wait}):
        with PPO(env=env, config={**SMALL, **more, **far}) as algo:
            result = trained(algo, 3)
            # Episodes are told in the order in which they end.
            told = {name: sorted(numbers) for name, numbers in result["hist_stats"].items()}
            results.append((result["digest"], told, weights_of(algo)))
    assert results[0] == results[1]


def test_a_run_resumes_alike_in_other_processes_and_in_one(tmp_path: Path) -> None:
    with PPO(env="tictactoe", config={**SMALL, "multiagent": TWO, **FAR}) as algo:
        trained(algo, 2)
        algo.save(tmp_path)
        digests = []
        for far in (FAR, {"remote_worker_envs": False}):
            with PPO.from_checkpoint(tmp_path, {"multiagent": TWO, **far}) as again:
                digests.append(trained(again, 2)["digest"])
        # Also while environments run.
        for _ in range(2):
            algo.restore(tmp_path)
            digests.append(trained(algo, 2)["digest"])
    assert len({*digests}) == 1


def test_methods_of_an_environment_can_be_called_in_every_process() -> None:
    for far in ({}, FAR):
        with PPO(env=Counting, config={**SMALL, **far, "env_config": {"x": 1}}) as algo:
            envs = base_env(algo)
            trained(algo, 1)
            assert envs.call(2, "set_level", 7, 1) == (8, 2)
            place = envs.call(1, "place")
            assert (place["remote"], place["vector_index"], place["worker_index"]) == (bool(far), 1, 0)
            assert place["settings"] == {"x": 1}
            assert (place["pid"] == os.getpid()) == (not far)
            with pytest.raises(LookupError, match="no such level"):
                envs.call(0, "fail")
            with pytest.raises(ConfigError, match="set_lvel"):
                envs.call(1, "set_lvel", 3)
            with pytest.raises(ConfigError, match="NoneType"):
                envs.call(1, None)
            with pytest.raises(ConfigError, match="env id 9"):
                envs.call(9, "place")
            trained(algo, 1)


def test_callbacks_are_given_handles_of_environments() -> None:
    class Levels(DefaultCallbacks):
        def __init__(self) -> None:
            self.told: list[Any] = []

        def on_sub_environment_created(
            self, *, worker: Any, sub_environment: Any, env_context: Any, **kwargs: Any
        ) -> None:
            self.told.append(
                (sub_environment.call("set_level", 5), env_context.remote, env_context.vector_index)
            )

        def on_episode_start(self, *, base_env: Any, env_index: int, **kwargs: Any) -> None:
            base_env.call(env_index, "set_level", 6)

    callbacks = Levels()
    with PPO(env=Counting, config={**SMALL, **FAR, "callbacks": callbacks}) as algo:
        trained(algo, 1)
        assert callbacks.told == [((5, index), True, index) for index in range(3)]


@pytest.mark.parametrize("wait", [0, 99_999_999])
def test_a_killed_environment_costs_one_episode_but_no_iteration(wait: int, tmp_path: Path) -> None:
    env_config = {"killed_in": 25, "marker": str(tmp_path / "killed")}
    config = {**SMALL, **FAR, "env_config": env_config, "remote_env_batch_wait_ms": wait}
    with PPO(env=Counting, config=config) as algo:
        with pytest.warns(EnvFaultWarning, match="SIGKILL"):
            result = trained(algo, 3)
        assert result["faulty_episodes_total"] == 1
        assert result["num_env_steps_sampled"] == 3 * 96
        assert result["first_fault"].startswith("WorkerLostError: process of env 1 (pid ")


def test_a_run_that_a_lost_process_has_ended_can_be_saved_and_continues(tmp_path: Path) -> None:
    config = {
        **SMALL, **FAR, "env_config": {"killed_in": 25, "marker": str(tmp_path / "killed")}, "env_timeout": 30.0,
        "restart_failed_sub_environments": False,
    }  # fmt: skip
    with PPO(env=Counting, config=config) as algo:
        with pytest.raises(EnvCrashError, match="SIGKILL"):
            trained(algo, 9)
        done = algo.counts()
        algo.save(tmp_path)
        after = algo.train()
    assert after["training_iteration"] == done["training_iteration"] + 1
    assert after["num_env_steps_sampled"] > done["num_env_steps_sampled"]
    with PPO.from_checkpoint(tmp_path, {"env": Counting}) as again:
        assert again.counts() == done


def test_evaluations_take_the_same_settings() -> None:
    config = {
        **SMALL, **FAR, "evaluation_interval": 1, "evaluation_duration": 6,
        "evaluation_config": {"explore": False},
    }  # fmt: skip
    pids = set()

    class Pids(DefaultCallbacks):
        def on_episode_end(self, *, base_env: Any, env_index: int, **kwargs: Any) -> None:
            pids.add(base_env.call(env_index, "place")["pid"])

    with PPO(env=Counting, config={**config, "callbacks": Pids}) as algo:
        result = algo.train()
    assert result["evaluation"]["episodes_this_iter"] == 6
    assert os.getpid() not in pids
    assert len(pids) == 6


def test_an_environment_that_a_worker_cannot_create_is_an_error_with_its_traceback() -> None:
    class OnlyHere(Counting):
        def __init__(self, context: Any) -> None:
            if context.remote:
                raise OSError("no display")
            super().__init__(context)

    with (
        PPO(env=OnlyHere, config={**SMALL, **FAR}) as algo,
        pytest.raises(EnvCrashError, match="OSError") as caught,
    ):
        algo.train()
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert str(cause) == "no display"
    assert "in __init__" in str(cause.__cause__)


@pytest.mark.alone
def test_environments_that_take_their_time_step_at_the_same_time() -> None:
    def seconds(far: dict[str, Any]) -> float:
        config = {
            **SMALL,
            "num_envs_per_worker": 8,
            "rollout_fragment_length": 2,
            "env_config": {"sleep": 0.05},
        }
        with PPO(env=Counting, config={**config, **far}) as algo:
            algo.sample()
            began = time.monotonic()
            algo.sample()
            return time.monotonic() - began

    assert seconds({}) > 3 * seconds(FAR)


@pytest.mark.parametrize(
    "place",
    [{"remote_worker_envs": True, "num_envs_per_worker": 2}, {"num_workers": 1, "num_envs_per_worker": 2}],
)
def test_an_environment_that_cannot_be_closed_elsewhere_is_warned_of(place: dict[str, Any]) -> None:
    algo = PPO(
        config={"env": Stuck, "engine": "process", "train_batch_size": 20, "sgd_minibatch_size": 20, **place}
    )
    algo.sample()
    with pytest.warns(EnvFaultWarning, match="RuntimeError"):
        algo.stop()


# Resets, answers and calls between two polls, while steps are under way in other processes.


SCRIPTS = {"gym": SOLO, "turns": TURNS, "together": TOGETHER, "irregular": IRREGULAR}
every_script = pytest.mark.parametrize("name", SCRIPTS)


@pytest.mark.slow_unless("gym", "irregular")
@every_script
def test_rewards_of_a_running_step_are_not_lost_by_a_reset(name: str, tmp_path: Path) -> None:
    fate = Fate(tmp_path, SCRIPTS[name], name == "gym")
    base_env = remote(fate, 2, seed=1)
    watch = Watch()
    for number in range(60):
        ready = base_env.poll()
        watch.take(ready)
        base_env.send_actions(nested(ready))
        if number % 3 == 0:
            base_env.try_reset(number % 2)
    ready = base_env.poll()
    watch.take(ready)
    got: Counter[str] = Counter()
    for part in (watch.income, watch.unclaimed, held(base_env)):
        got.update(part)
    paid = fate.paid(2)
    assert {agent: got[agent] for agent in "abcd"} == {agent: paid[agent] for agent in "abcd"}
    assert watch.episodes > 20


def test_a_call_waits_for_the_running_step_and_does_not_change_it() -> None:
    base_env = remote(Make([TOGETHER] * 2, False), 2, wait=LOCK_STEP)
    ready = base_env.poll()
    steps: list[Any] = ready.env_steps.tolist()
    base_env.send_actions(ready.slots, [1] * 4)
    assert [base_env.call(index, "tell", "step_count") for index in (0, 1)] == [1, 1]
    # What nobody has been told of does not count yet.
    assert ready.env_steps.tolist() == steps == [0, 0]
    ready = base_env.poll()
    assert ready.env_steps.tolist() == [1, 1]
    assert {seen(obs).step for obs in ready.obs} == {1}


def test_partial_answers_step_these_sub_environments_alone() -> None:
    base_env = remote(Make([TOGETHER] * 3, False), 3, wait=0)
    ready = base_env.poll()
    base_env.send_actions(nested(ready, [1]))
    ready = base_env.poll()
    assert {ready.seats[slot][0] for slot in ready.slots.tolist()} == {1}
    assert ready.env_steps.tolist() == [0, 1, 0]


# Whoever asks environments in other processes may be interrupted anywhere, or ask what cannot be sent, and goes on.


EVERY = 997
"""Instructions from one interrupt to the next; a prime number, so that each falls elsewhere in a loop."""


@contextmanager
def returning() -> Iterator[None]:
    """Raise if what is done within never returns."""

    def give_up(*_: object) -> None:
        raise AssertionError("it did not return")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_call_that_cannot_be_sent_is_not_waited_for() -> None:
    def make(index: int) -> Counting:
        return Counting(EnvContext({}, vector_index=index))

    env = to_base_env(make(0), make, num_envs=2, remote_envs=True, engine="process")
    try:
        env.poll()
        with pytest.raises(ConfigError, match="args"):
            env.call(0, "set_level", threading.Lock())
        with returning():
            assert env.call(0, "set_level", 3) == (3, 0)
    finally:
        env.stop()


def counting(num_envs: int, length: int) -> PPO:
    """Return a run of remote environments with fragments of so many steps of each."""
    config = {
        "env": Counting, "engine": "process", "remote_worker_envs": True, "num_envs_per_worker": num_envs, "seed": 1,
        "rollout_fragment_length": length, "train_batch_size": num_envs * length, "model": {"fcnet_hiddens": [4]},
    }  # fmt: skip
    return PPO(config=config)


def test_a_run_continues_wherever_a_fragment_was_interrupted() -> None:
    with counting(num_envs=2, length=3) as algo:
        algo.sample()
        at = 0
        while raised_at(at, algo.sample):
            with returning():
                assert algo.sample().env_steps() == 6
            at += EVERY
        assert at > 10 * EVERY
