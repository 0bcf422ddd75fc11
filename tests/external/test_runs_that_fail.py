"""A `run` that raises, returns or says nothing: `train` tells it, soon, and nothing is lost."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from menv.algorithms import DQN, PPO
from menv.errors import EnvCrashError
from tests.external.told import (
    LONG,
    Told,
    ask_steps,
    calling,
    log_steps,
    obs,
    rows,
    steps_of,
    training,
    until_stopped,
)
from tests.inside import sampler


class ApplicationError(Exception):
    """Of the application."""


def fall(env: Any) -> None:
    raise ApplicationError("the simulator is gone")


def play_and_fall(env: Any) -> None:
    episode = env.start_episode()
    ask_steps(env, episode, 0, 5)
    fall(env)


@pytest.mark.parametrize("play", [fall, play_and_fall])
def test_a_run_that_raises_surfaces_in_train_with_its_traceback(play: Any) -> None:
    env = Told(play)
    with training(env) as algo:
        began = time.monotonic()
        with pytest.raises(EnvCrashError, match="ApplicationError") as caught:
            algo.train()
        assert time.monotonic() - began < LONG
        cause = caught.value.__cause__
        assert isinstance(cause, ApplicationError)
        assert "fall" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
        # And it stays so.
        with pytest.raises(EnvCrashError, match="the simulator is gone"):
            algo.train()


def test_a_run_method_that_returns_is_a_fault_after_its_rows_were_sampled() -> None:
    class Short(Told):
        def run(self) -> None:
            log_steps(self, self.start_episode("x"), 0, 10)
            self.end_episode("x", obs(0, 10))

    env = Short()
    with training(env, DQN) as algo:
        assert steps_of([algo.sample()]) == {0: list(range(10))}
        began = time.monotonic()
        with pytest.raises(EnvCrashError, match="Short"):
            algo.train()
        assert time.monotonic() - began < LONG


def test_a_fault_surfaces_even_while_other_clients_keep_sending() -> None:
    env = Told(fall)

    def episode() -> None:
        name = env.start_episode()
        log_steps(env, name, 0, 60)
        env.end_episode(name, obs(0, 60))

    talk = until_stopped(episode)
    with training(env, DQN, rollout_fragment_length=1_000_000) as algo:
        with calling(talk, talk):
            began = time.monotonic()
            with pytest.raises(EnvCrashError, match="the simulator is gone"):
                algo.train()
            took = time.monotonic() - began
            algo.stop()
        assert took < LONG


def test_an_episode_that_is_never_ended_is_named_where_complete_ones_are_waited_for() -> None:
    env = Told()
    whole = {"batch_mode": "complete_episodes", "rollout_fragment_length": 4, "train_batch_size": 4}

    def leave() -> None:
        env.start_episode("left")
        ask_steps(env, "left", 0, 5)

    with training(env, idle_timeout=0.2, **whole) as algo, calling(leave, lambda: None):
        told = algo.train()["external"]["idle"]
        assert told.startswith("no step in 0.2 s: 1 open episodes; ")
        assert "waits for the end of 'left'" in told
        env.end_episode("left", obs(0, 5))
        result = algo.train()
        assert "idle" not in result["external"]
        assert result["episode_len_mean"] == 5.0


def test_train_returns_without_clients_and_says_so() -> None:
    env = Told()
    with training(env, idle_timeout=0.05) as algo:
        result = algo.train()
        assert result["external"]["idle"] == "no step in 0.05 s: 0 open episodes"
        assert result["external"]["open_episodes"] == 0
        assert result["num_env_steps_sampled"] == 0
        env.start_episode("x")
        assert algo.train()["external"]["idle"] == "no step in 0.05 s: 1 open episodes"
        with calling(lambda: ask_steps(env, "x", 0, 10), lambda: None):
            for _ in range(100):
                if env.broker._channels["x"].rewards:
                    break
                algo.train()
        env.end_episode("x", obs(0, 10))
        assert "idle" not in algo.train()["external"]


def test_a_fragment_continues_where_it_was_given_up_and_nothing_is_lost() -> None:
    env = Told()
    with training(env, DQN, idle_timeout=0.05, rollout_fragment_length=12) as algo:
        env.start_episode("x")
        batches = []
        for part in range(4):
            for step in range(3 * part, 3 * part + 3):
                env.log_action("x", obs(0, step), 0)
                env.log_returns("x", 1.0)
            if part == 3:
                env.end_episode("x", obs(0, 12))
            batches.append(algo.sample())
            assert sampler(algo).idle == (part < 3)
    assert [len(rows([batch])) for batch in batches] == [0, 0, 0, 12]
    assert batches[-1].env_steps() == 12
    assert steps_of(batches) == {0: list(range(12))}


@pytest.mark.slow
def test_a_train_batch_of_several_fragments_continues_where_it_was_given_up() -> None:
    env = Told()
    config = {"rollout_fragment_length": 4, "train_batch_size": 12}
    with training(env, PPO, idle_timeout=0.05, **config) as algo:
        env.start_episode("x")
        for first in (0, 6):

            def play(first: int = first) -> None:
                for step in range(first, first + 6):
                    env.get_action("x", obs(0, step))
                    env.log_returns("x", 1.0)

            with calling(play):
                results = [algo.train() for _ in range(4)]
            assert {"idle" in result["external"] for result in results} == {True}
            assert results[-1]["num_agent_steps_trained"] == 0
        env.end_episode("x", obs(0, 12))
        result = algo.train()
    assert "idle" not in result["external"]
    assert result["num_agent_steps_trained"] == 12
    assert result["num_env_steps_sampled"] == 12


# Nobody waits for ever in `get_action`: not where another thread stops sampling, and not where the call was wrong.


ROUNDS = 60


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def sample(base_env: Any) -> None:
    ready = base_env.poll()
    base_env.send_actions(ready.slots, [0] * len(ready.slots))


def call(env: Told, name: str, sampled: threading.Event) -> None:
    env.get_action(name, obs(0, 0))
    sampled.set()


def test_stopping_an_environment_that_is_sampled_leaves_no_thread_waiting(many_switches: None) -> None:
    for _ in range(ROUNDS):
        env, sampled = Told(), threading.Event()
        base_env = env.to_base_env()
        plays = [until_stopped(partial(call, env, env.start_episode(), sampled)) for _ in range(4)]
        with calling(*plays, until_stopped(partial(sample, base_env), "this environment was stopped")):
            assert sampled.wait(LONG)
            base_env.stop()
            env.over.set()
