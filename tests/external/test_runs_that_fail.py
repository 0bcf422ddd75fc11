"""A `run` that raises, returns or says nothing: `train` tells it, soon, and nothing is lost."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from menv.algorithms import DQN, PPO
from menv.errors import CallOrderError, ContractError, EnvCrashError
from tests.external.told import (
    ACTIONS,
    LONG,
    OBS,
    Told,
    ToldTeam,
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


def test_a_run_that_returns_is_a_fault_once_what_it_said_has_been_taken() -> None:
    class Short(Told):
        def run(self) -> None:
            log_steps(self, self.start_episode("x"), 0, 10)
            self.end_episode("x", obs(0, 10))

    env = Short()
    with training(env, DQN) as algo:
        assert steps_of([algo.sample()]) == {0: list(range(10))}
        began = time.monotonic()
        with pytest.raises(EnvCrashError, match=r"Short\.run: returned while its actions are sampled"):
            algo.train()
        assert time.monotonic() - began < LONG


def test_a_fault_surfaces_even_while_others_never_stop_talking() -> None:
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


def test_a_thread_that_waits_for_itself_where_complete_episodes_are_wanted_is_told_what_to_do() -> None:
    env = Told()
    whole = {"batch_mode": "complete_episodes", "rollout_fragment_length": 4, "train_batch_size": 4}

    def by_turns() -> None:
        ask_steps(env, env.start_episode("first"), 0, 5)
        ask_steps(env, env.start_episode("second"), 1, 1)

    with training(env, idle_timeout=0.2, **whole) as algo, calling(by_turns):
        told = algo.train()["external"]["idle"]
        assert "waits for the end of 'first', and others wait for that" in told
        assert (
            "where one thread plays several episodes by turns and waits in a new one, a thread for each"
            in told
        )
        env.end_episode("first", obs(0, 5))
        assert "idle" not in algo.train()["external"]
        algo.train()
        env.end_episode("second", obs(1, 1))


def test_where_nobody_calls_train_returns_and_says_so() -> None:
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


def test_a_fragment_goes_on_where_it_was_given_up_and_nothing_is_lost() -> None:
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
def test_a_train_batch_of_several_fragments_goes_on_where_it_was_given_up() -> None:
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


def test_a_train_batch_that_was_given_up_keeps_nothing_of_a_policy_that_is_removed() -> None:
    env = Told()
    multiagent = {"policies": ["one", "two"], "policy_mapping_fn": lambda *args, **kwargs: "two"}
    config = {"rollout_fragment_length": 4, "train_batch_size": 12, "multiagent": multiagent}
    with training(env, PPO, idle_timeout=0.05, **config) as algo:
        env.start_episode("x")

        def play() -> None:
            for step in range(6):
                env.get_action("x", obs(0, step))

        with calling(play):
            for _ in range(4):
                algo.train()
        algo.remove_policy("two", policy_mapping_fn=lambda *args, **kwargs: "one")
        algo.add_policy("two")
        env.end_episode("x", obs(0, 6))
        env.start_episode("y")
        with calling(lambda: ask_steps(env, "y", 1, 12)):
            results = [algo.train() for _ in range(4)]
        env.end_episode("y", obs(1, 12))
        results.append(algo.train())
    learned = [result for result in results if result["info"]]
    assert set(learned[0]["info"]) - {"learner"} == {"one"}
    assert learned[0]["num_agent_steps_trained"] == 6


@pytest.mark.slow
def test_ends_that_come_one_by_one_are_not_taken_for_silence() -> None:
    env = Told()
    with training(env, DQN, idle_timeout=1.5, rollout_fragment_length=8) as algo:
        for name in "abcd":
            env.start_episode(name)
            log_steps(env, name, ord(name), 2)

        def end() -> None:
            # Nobody waits for an action now.
            for name in "abcd":
                time.sleep(0.25)
                env.end_episode(env.start_episode(), obs(9, 9))
                time.sleep(0.25)
                env.end_episode(name, obs(ord(name), 2))

        with calling(end):
            batch = algo.sample()
        assert not sampler(algo).idle
    assert steps_of([batch]) == {ord(name): [0, 1] for name in "abcd"}


def test_episodes_in_which_nobody_acts_do_not_keep_the_sampler_waiting_for_ever() -> None:
    env = Told()
    over: list[bool] = []

    def begin_and_end() -> None:
        while not over:
            env.end_episode(env.start_episode(), obs(9, 9))
            time.sleep(0.01)

    with training(env, idle_timeout=0.2) as algo, calling(begin_and_end):
        result = algo.train()
        over.append(True)
    assert result["external"]["idle"].startswith("no step in 0.2 s")


# Nobody waits for ever in `get_action`: not where another thread stops sampling, and not where the call was wrong.


ROUNDS = 60


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def sample(base_env: Any, told: list[BaseException]) -> None:
    """Sample by hand until it raises."""
    try:
        while True:
            ready = base_env.poll()
            base_env.send_actions(ready.slots, [0] * len(ready.slots))
    except BaseException as error:
        told.append(error)


def call(env: Told, told: list[BaseException], sampled: threading.Event) -> None:
    """Play until it raises."""
    try:
        name = env.start_episode()
        while True:
            env.get_action(name, obs(0, 0))
            sampled.set()
    except BaseException as error:
        told.append(error)


def test_whoever_stops_an_environment_that_is_sampled_leaves_nobody_waiting(many_switches: None) -> None:
    for _ in range(ROUNDS):
        env, sampled = Told(), threading.Event()
        base_env = env.to_base_env()
        of_callers: list[BaseException] = []
        of_sampler: list[BaseException] = []
        threads = [
            threading.Thread(target=call, args=(env, of_callers, sampled), daemon=True) for _ in range(4)
        ]
        threads.append(threading.Thread(target=sample, args=(base_env, of_sampler), daemon=True))
        for thread in threads:
            thread.start()
        assert sampled.wait(LONG)
        base_env.stop()
        env.over.set()
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
        assert [type(error) for error in of_callers] == [CallOrderError] * 4
        assert [type(error) for error in of_sampler] == [CallOrderError]
        assert "this environment was stopped" in str(of_sampler[0])


@pytest.mark.parametrize(("done", "more"), [({}, ["__all__"]), ({"nobody": True}, [])], ids=["ids", "ends"])
def test_whoever_makes_a_call_that_breaks_the_rules_is_told_so_and_may_go_on(
    done: dict[Any, bool], more: list[str]
) -> None:
    env = ToldTeam(observation_space=dict.fromkeys("ab", OBS), action_space=dict.fromkeys("ab", ACTIONS))
    told: list[Any] = []

    def play() -> None:
        name = env.start_episode()
        env.get_action(name, {"a": obs(0, 0)})
        env.log_returns(name, {}, None, done)
        with pytest.raises(ContractError) as caught:
            env.get_action(name, dict.fromkeys(["a", *more], obs(0, 1)))
        told.append(str(caught.value))
        told.append(env.get_action(name, {"a": obs(0, 1)}))
        env.log_returns(name, {"a": 1.0})
        env.end_episode(name, {"a": obs(0, 2)})

    with training(env, rollout_fragment_length=3) as algo, calling(play):
        with pytest.raises(ContractError) as caught:
            algo.sample()
        batch = algo.sample()
    assert told[0] == str(caught.value)
    assert told[1].keys() == {"a"}
    assert sum(batch[name]["rewards"].sum() for name in batch) == 1.0
